#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "troupe/core/metadata.hpp"
#include "troupe/core/policy.hpp"
#include "troupe/core/search_space.hpp"
#include "troupe/core/stop_rules.hpp"

namespace troupe::core {

/// One entry of "trainers" (an entry with "count": n, or with a "search", stands for several trainers named name-0 …).
struct trainer_spec {
  std::string name;
  std::string workload_type;
  std::string workload_options;  ///< the workload object less "type", as compact JSON text
  hyperparameters hp;            ///< initial; drawn from the search space where the file does not give them
  std::uint64_t seed = 0;        ///< derived from the experiment's seed and the trainer's name unless given (with count: + n)
  std::uint64_t stop_step = 0;
  std::string slot;              ///< "" any, or a slot's number, or a device selector
  std::int32_t priority = 0;     ///< on its slot, those of a higher one go first; -1000 to 1000
  stop_rules stop;
  std::string where{};           ///< its entry in the file ("/trainers/2"), for faults that are found later; empty: it is in none
};

/// When trainers meet.
struct sync_schedule {
  std::uint64_t every_steps = 0;          ///< 0: not by steps
  std::vector<std::uint64_t> at_steps{};    ///< ascending, distinct; may be combined with every_steps
  double every_seconds = 0;               ///< > 0: the coordinator calls them together by the clock

  /// The next step after `step` at which a trainer parks, strictly before `stop_step`; nullopt: none.
  std::optional<std::uint64_t> next_after(std::uint64_t step, std::uint64_t stop_step) const;
  /// The number of the sync point at `step`, which must be one (by steps).
  sync_index index_of(std::uint64_t step) const;
};

enum class straggler_treatment : std::uint8_t { wait, go_on_without, stop };
std::string_view to_string(straggler_treatment x) noexcept;

struct sync_options {
  sync_schedule schedule;
  bool asynchronous = false;
  double quorum = 1.0;             ///< share of the live trainers that closes a sync point, (0, 1]
  double deadline_seconds = 0;     ///< after the first report; 0: none
  straggler_treatment stragglers = straggler_treatment::wait;
};

struct checkpoint_options {
  std::uint32_t every_syncs = 1;   ///< 0: no set at sync points
  double every_seconds = 300;      ///< the longest time without a set, also between sync points; 0: none for time's sake
  std::uint32_t keep = 2;          ///< complete sets kept, besides what is in use
};

/// How much of an asynchronous experiment's reports may wait for the disk; beyond it trainers wait with them (see `report_gate`).
struct record_options {
  std::uint64_t max_unwritten = 4096;                        ///< reports
  std::uint64_t max_unwritten_bytes = std::uint64_t{16} << 20; ///< of them together
};

struct failure_options {
  std::uint32_t max_restarts = 2;  ///< per trainer
  bool fail_fast = false;          ///< the first trainer that fails for good ends the run
  bool refill = false;             ///< replace a trainer that failed for good by a fresh draw or a copy (population kept)
};

struct slot_request {
  std::string device = "cpu";      ///< selector
  std::uint32_t count = 1;
  std::uint32_t milli_share = 0;   ///< thousandths of the device per slot; 0: an equal share
  std::uint64_t memory_bytes = 0;  ///< budget per slot; 0: share of the device's memory, none on the CPU
  std::uint64_t pinned_bytes = 0;  ///< of host memory per slot that states and batches wait in; 0: a part of a quarter of what is available
  bool capture = true;             ///< GPU: steps are captured once and launched whole; false: each operation is enqueued by itself
};

/// An experiment file, checked whole. docs/experiment.md lists every key and default.
struct experiment {
  std::string name;
  std::uint64_t seed = 1;
  std::vector<trainer_spec> trainers;
  sync_options sync;
  search_space space;
  std::string policy_type = "none";
  std::string policy_options = "{}"; ///< JSON text
  checkpoint_options checkpoints;
  record_options record;
  failure_options failures;
  run_stop_rules stop;
  std::vector<slot_request> slots;   ///< empty: the command line decides
  double quantum_ms = 2.0;
  bool fusion = true;                ///< equal models on a slot run their steps as one
  bool rebalance = true;             ///< an idle CPU slot takes over a trainer that waits on another of its process
  std::string math = "fp32";         ///< "fp32" or "tf32" on GPUs
  std::string text;                  ///< the file itself, kept in the run directory; empty: `experiment_text` is kept
};

/// What can check the parts that core does not know.
struct experiment_checkers {
  const policy_registry* policies = nullptr;
  /// Known workload types, and a checker of their options (see gpu::workload_registry::check).
  std::function<bool(std::string_view type)> known_workload;
  std::function<std::vector<std::string>()> workload_names;
  /// `where` is the trainer's pointer ("/trainers/2"); faults begin with where + "/workload/…" or "/hyperparameters/…".
  std::function<void(std::string_view type, const nlohmann::json& options, const hyperparameters& hp, std::string_view where,
                     std::vector<error>& faults)>
    check_workload;
};

/// All faults of the file together, each text beginning with its JSON pointer ("/trainers/2/workload/hidden: …"), or with
/// line and column if it is not JSON. Comments (// and /* */) are allowed.
std::variant<experiment, std::vector<error>> parse_experiment(std::string_view text, const experiment_checkers& with);

/// What keeps a text from being read as an experiment at all: it is no JSON, has a key twice, is nested too deep. For those who change a
/// file's text before it is parsed, and would lose these faults with it.
std::vector<error> document_faults(std::string_view text);

/// One more trainer for a running experiment: the same rules as an entry of "trainers". `count` and `search` are not allowed.
std::variant<trainer_spec, std::vector<error>> parse_trainer(std::string_view text, const experiment& of,
                                                             const experiment_checkers& with);

/// An experiment file that parses to the same experiment, with every key given: for experiments made in code, and to show
/// what defaults and draws came to. `x.text` is not looked at.
std::string experiment_text(const experiment& x);

} // namespace troupe::core
