#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "troupe/core/metadata.hpp"

namespace troupe::core {

/// A number of the metadata that is good enough.
struct metric_target {
  std::string metric; ///< as for `metadata::number`
  double value = 0;
  bool at_least = true; ///< else at most

  bool reached(const metadata& m) const; ///< never by what is not finite
  std::string text() const;              ///< "accuracy >= 0.9"
  bool operator==(const metric_target&) const = default;
};

/// When a trainer has trained enough, besides its stop step. All but `seconds` are looked at at sync points.
struct stop_rules {
  struct plateau_rule {
    std::string metric = "accuracy";
    bool maximise = true;
    double delta = 0;           ///< an improvement is more than that
    std::uint64_t patience = 5; ///< so many sync points in a row without one
    bool operator==(const plateau_rule&) const = default;
  };

  double seconds = 0; ///< by the clock, since it began; 0: no limit
  std::optional<metric_target> target;
  std::optional<plateau_rule> plateau;
  std::uint64_t burn_in_steps = 0; ///< before that neither target nor plateau count

  bool empty() const { return seconds == 0 && !target && !plateau; }
  bool operator==(const stop_rules&) const = default;
};

/// When a whole experiment has trained enough.
struct run_stop_rules {
  double seconds = 0;                  ///< by the clock, since it began (or was gone on with); 0: no limit
  std::uint64_t steps = 0;             ///< of all trainers together, as of their newest reports; 0: no limit
  std::optional<metric_target> target; ///< reached by any trainer

  bool empty() const { return seconds == 0 && steps == 0 && !target; }
};

/// Follows one trainer's reports. A pure fold: the same reports give the same answers.
class stop_watch {
public:
  explicit stop_watch(stop_rules rules = {}) : rules_(std::move(rules)) {}
  /// Why the trainer should stop now; nullopt: it goes on. A report of a sync point that was seen is passed
  /// over.
  std::optional<std::string> observe(const metadata& m);

private:
  stop_rules rules_;
  std::optional<sync_index> seen_;
  std::optional<double> best_;
  std::uint64_t without_ = 0;
};

/// {"seconds": 600, "target": {"metric": "accuracy", "at_least": 0.9}, "plateau": {"metric": "loss",
/// "patience": 5, "delta": 0.001}, "burn_in_steps": 1000}; keys that are there replace those of `into`.
/// Appends faults with their JSON pointers.
void read_stop_rules(const nlohmann::json& j, std::string_view where, stop_rules& into,
                     std::vector<error>& faults);
void read_run_stop_rules(const nlohmann::json& j, std::string_view where, run_stop_rules& into,
                         std::vector<error>& faults);
nlohmann::json to_json(const stop_rules& x);
nlohmann::json to_json(const run_stop_rules& x);

} // namespace troupe::core
