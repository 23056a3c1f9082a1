#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "troupe/core/checkpoint.hpp"
#include "troupe/core/experiment.hpp"
#include "troupe/core/metadata.hpp"
#include "troupe/core/policy.hpp"
#include "troupe/core/result.hpp"
#include "troupe/gpu/context.hpp"
#include "troupe/gpu/workload.hpp"

namespace caf {
class actor_system;
}

/// Running an experiment from a program: what `troupe run` does, without the command line.
///
///     run_options o;
///     o.exp = …;                                  // core::parse_experiment
///     o.workloads = std::make_shared<gpu::workload_registry>(gpu::builtin_workloads());
///     o.policies = std::make_shared<core::policy_registry>(core::builtin_policies());
///     o.slots = {…};                              // gpu::slot_options, one per slot of this process
///     auto run = run_session::start(std::move(o));
///     if (!run) …                                 // run.error().text says what is wrong
///     auto summary = (*run)->wait();
namespace troupe::actors {

class blob_store;
using core::trainer_id;

// -- what a run tells
// ----------------------------------------------------------------------------------------------

/// What a trainer is doing, for people.
enum class trainer_state : std::uint8_t {
  starting, ///< being placed, built, loaded
  running,
  parked,     ///< at a sync point
  held,       ///< by the policy, until it lets it go on or stops it
  paused,     ///< from outside
  restarting, ///< after a failure or the loss of its node
  finished,   ///< reached its stop step
  stopped,    ///< by a decision, from outside, or as a straggler
  failed,     ///< for good
  interrupted ///< the run ended before it did
};
std::string_view to_string(trainer_state x) noexcept;
/// True for those that go on: everything before `finished`.
bool is_live(trainer_state x) noexcept;

struct trainer_info {
  trainer_id id = 0;
  std::string name;
  std::string workload_type;
  trainer_state state = trainer_state::starting;
  std::uint32_t incarnation = 0;
  std::uint32_t restarts = 0; ///< that count against max_restarts
  std::uint64_t step = 0, stop_step = 0;
  std::string slot;                     ///< "node/slot", empty while it has none
  std::optional<core::metadata> newest; ///< its newest report
  core::hyperparameters hp;             ///< in effect
  core::error failure;                  ///< its newest failure; empty text: none
  std::string reason;                   ///< why it was stopped; empty: it was not
  double barrier_seconds = 0;           ///< parked at sync points for the others, in this session
  double barrier_bound_seconds = 0;     ///< of these, what the slowest trainer of each sync point sets
};

/// A slot: what it offers, and what it does.
struct slot_info {
  std::string name;                ///< "node/slot", as of a trainer
  std::uint32_t node = 0;          ///< 0: the head's own process
  std::string device;              ///< as experiment files name it: "cpu", "cuda:1"
  std::string device_id;           ///< "cpu", or the GPU's UUID
  std::string model;               ///< of the device, for people
  std::uint64_t memory_budget = 0; ///< bytes; 0: no limit but the device's
  bool alive = true;               ///< false: its device or its process is lost
  /// False: its process has not been asked, or did not answer in time. What follows is not known then.
  bool answered = false;
  std::uint32_t trainers = 0; ///< that live on it, at work or not
  std::uint64_t running = 0;  ///< of them have the device now, several only as one
  std::uint64_t waiting = 0;  ///< of them wait for their turn
  std::uint64_t steps = 0, slices = 0;
  /// Slices in which several ran as one, how many (summed over these slices), and their steps.
  std::uint64_t fused_slices = 0, fused_members = 0, fused_steps = 0;
  double busy_seconds = 0, idle_seconds = 0; ///< since it was opened
  std::uint64_t memory_used = 0, memory_peak = 0;     ///< bytes
  std::uint64_t pinned_used = 0, pinned_budget = 0;   ///< bytes of host memory; budget 0: no limit
  std::uint64_t pages_out = 0, pages_in = 0, paged_bytes = 0; ///< states that went to host memory and came back
  std::uint64_t staged_bytes = 0;                     ///< examples sent batch by batch
  std::uint64_t slot_copies = 0, slot_copied_bytes = 0; ///< states that came from device memory, of this or another slot
  std::uint64_t captures = 0, launches = 0;           ///< how often a step was captured, and launched whole
  std::string capture_fault;                          ///< why steps are not captured; empty: no fault
};

/// What is on its way to the run's record where trainers report without waiting for each other; docs/failure.md says how it is
/// bounded. All zero elsewhere.
struct record_info {
  std::uint64_t unwritten = 0, unwritten_bytes = 0; ///< reports that wait for the disk
  std::uint64_t most_unwritten = 0;                 ///< at any time so far
  std::uint64_t held_back = 0;                      ///< of those that wait: too many, so their trainers wait with them
  double held_back_seconds = 0;                     ///< in which there were such, in this session
};

struct run_status {
  std::string experiment;
  std::vector<trainer_info> trainers; ///< in the order of their numbers
  std::vector<slot_info> slots;       ///< in the order of nodes and slots; of lost processes too
  std::optional<core::sync_index> open_round;
  std::uint64_t rounds = 0;  ///< sync points that are over, in this session
  std::uint64_t dropped = 0; ///< stale or repeated messages
  double seconds = 0;        ///< since this session began
  record_info record;
};

/// A sync point: recorded, and about to be applied.
struct sync_point_event {
  core::sync_index index = 0;
  std::vector<core::metadata> reports;            ///< in the order of the trainers' numbers
  std::map<trainer_id, core::decision> decisions; ///< missing: goes on
  std::map<trainer_id, std::string> names;        ///< of everyone named here
};

enum class run_outcome_kind : std::uint8_t {
  done,       ///< every trainer finished or was stopped on purpose
  failed,     ///< at least one failed for good, or the run itself did (see `error`)
  interrupted ///< asked to leave, or a trainer has no slot left (see `error`); `troupe resume` goes on
};
std::string_view to_string(run_outcome_kind x) noexcept;

struct trainer_summary : trainer_info {
  std::uint64_t final_hash = 0; ///< content hash of its final state; 0: it left none in this session
};

struct run_summary {
  run_outcome_kind outcome = run_outcome_kind::done;
  core::error error;                     ///< what ended the run; empty text: nothing but its trainers
  std::vector<trainer_summary> trainers; ///< in the order of their numbers
  std::uint64_t rounds = 0;
  double seconds = 0;
  double barrier_seconds = 0;       ///< of all trainers together, as in `trainer_info`
  double barrier_bound_seconds = 0;
  record_info record;
  std::string directory;
};

/// Told what happens, on one thread of its own, in order. A slow listener delays nobody: `on_progress` is
/// left out while it is behind, and sync points and events are too while `run_options::listener_backlog` waits for it
/// already. How many it missed is told before the next one; the run's record has them all. The default does nothing.
class run_listener {
public:
  virtual ~run_listener() = default;
  /// All slots are there and all trainers have been placed.
  virtual void on_started(const run_status&) {}
  virtual void on_sync_point(const sync_point_event&) {}
  /// Every `progress_interval`.
  virtual void on_progress(const run_status&) {}
  /// Everything that is recorded besides sync points; docs/file-formats.md lists the kinds and their members.
  virtual void on_event(std::string_view kind, const nlohmann::json& details);
  /// It was too slow for so many that happened here; what comes next is newer.
  virtual void on_missed(std::uint64_t /*sync_points*/, std::uint64_t /*events*/) {}
  virtual void on_finished(const run_summary&) {}
};

// -- starting one
// --------------------------------------------------------------------------------------------------

/// Brings a state that lies in another process into this one; see net's tensor transport. Calls back once, on
/// any thread.
struct remote_state {
  std::string host;
  std::uint16_t port = 0;
  std::uint64_t blob = 0, bytes = 0, hash = 0;
};
using state_fetcher =
    std::function<void(const remote_state&, std::function<void(core::result<core::checkpoint_ptr>)>)>;

struct run_options {
  core::experiment exp;
  std::shared_ptr<const gpu::workload_registry> workloads;
  std::shared_ptr<const core::policy_registry> policies;
  /// The run directory; empty: nothing is recorded, and there are no checkpoint files (states are kept in
  /// memory).
  std::string directory;
  bool resume = false;                  ///< go on with the run that `directory` holds
  /// With `resume`, where no set of checkpoints can be used any more: begin at step 0 instead of refusing. New sets take the place of
  /// what cannot be used.
  bool from_start = false;
  std::vector<gpu::slot_options> slots; ///< of this process; may be empty where other processes have some
  unsigned other_nodes = 0;             ///< start when so many node agents of other processes have come
  std::chrono::milliseconds node_wait{60000};     ///< fail if they have not come by then
  std::chrono::milliseconds progress_interval{0}; ///< 0: no on_progress
  std::shared_ptr<run_listener> listener;         ///< may be null
  std::uint64_t listener_backlog = 65536; ///< reports and events that may wait for it; beyond it misses some
  state_fetcher fetch;                            ///< needed where weights move between processes
  std::string host; ///< of this process's tensor transport, for other nodes; empty: none
  std::uint16_t port = 0;
  /// Where this process keeps states for others; shared with the tensor transport, which serves them. Null: one of the
  /// run's own.
  std::shared_ptr<blob_store> blobs;
  /// Use this system instead of one of the run's own. It must know Troupe's messages (system_config) and
  /// outlive the run.
  caf::actor_system* system = nullptr;
};

// -- control while it runs
// -----------------------------------------------------------------------------------------

/// One trainer's answer to pause, resume or push: the step at which it took effect.
struct acknowledgement {
  trainer_id trainer = 0;
  std::string name;
  std::uint64_t step = 0;
};
using acknowledgements = std::vector<acknowledgement>;

/// For those who may not wait, such as actors: called once, on a thread of Troupe's, where it should only hand the answer on. It may not
/// throw.
template <class T>
using answer_to = std::function<void(core::result<T>)>;

/// Steers a run from any thread. Copies are alike; one that outlives its run answers "the run is over".
/// `who`: a trainer's name; empty: all that are live. An unknown or ended trainer is an error that says so.
/// No call blocks. Each call answers through a future, or, in its second form, by calling back.
class run_control {
public:
  std::future<core::result<run_status>> status() const;
  void status(answer_to<run_status> then) const;
  /// Answered when each one stands between two steps or at a sync point.
  std::future<core::result<acknowledgements>> pause(std::string who = {}) const;
  void pause(std::string who, answer_to<acknowledgements> then) const;
  std::future<core::result<acknowledgements>> resume(std::string who = {}) const;
  void resume(std::string who, answer_to<acknowledgements> then) const;
  /// Takes effect at each trainer's next step boundary. Refused whole, for everybody, if a key or a value is
  /// wrong for one. A trainer that is being restarted gets it when it is back.
  std::future<core::result<acknowledgements>> push(std::string who, core::hyperparameters changes) const;
  void push(std::string who, core::hyperparameters changes, answer_to<acknowledgements> then) const;
  /// Answered when they have stopped.
  std::future<core::result<acknowledgements>> stop(std::string who = {},
                                                   std::string reason = "stopped on request") const;
  void stop(std::string who, std::string reason, answer_to<acknowledgements> then) const;
  /// `json`: as an entry of the experiment file's "trainers". Answered when it is placed; the value is its
  /// number.
  std::future<core::result<trainer_id>> add_trainer(std::string json) const;
  void add_trainer(std::string json, answer_to<trainer_id> then) const;
  /// Ctrl-C: every trainer finishes its step, all states are saved, and the run ends as `interrupted`. `wait`
  /// then returns.
  void interrupt() const;

private:
  friend class run_session;
  struct link;
  std::shared_ptr<link> link_;
};

/// Where a run that was gone on with began, and what could not be used on the way there.
struct resumption {
  std::optional<std::uint32_t> set; ///< of checkpoints; none: from step 0
  std::uint64_t step = 0;           ///< the furthest of its trainers
  std::vector<core::error> damage;  ///< newer sets that cannot be used: which file, and why
  std::vector<std::string> notes;   ///< why its weights may differ from those of a run without an interruption
};

/// A run in progress.
class run_session {
public:
  /// Checks, opens the run directory, slots and actors, and starts training. What is wrong with the options,
  /// the directory or the slots is an error here; later failures are in the summary.
  static core::result<std::unique_ptr<run_session>> start(run_options options);
  /// Ends what is still running as an abrupt death would: nothing more is saved, states on disk stay as they
  /// are.
  ~run_session();

  run_control control() const;
  /// Nullopt: the run began here.
  const std::optional<resumption>& resumed() const noexcept;
  /// Returns when the run is over and its listener has been told everything.
  run_summary wait();
  /// False: the time is over and the run is not.
  bool wait_for(std::chrono::milliseconds time);

private:
  friend struct run_access;
  struct impl;
  explicit run_session(std::unique_ptr<impl> x);
  std::unique_ptr<impl> impl_;
};

} // namespace troupe::actors
