#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "troupe/core/metadata.hpp"
#include "troupe/core/random.hpp"
#include "troupe/core/search_space.hpp"

namespace troupe::core {

struct experiment;

/// What one trainer does after a sync point.
struct decision {
  /// `hold`: it stays parked, with its state and without a slot, until a later decision lets it go on or
  /// stops it.
  enum class action : std::uint8_t { go_on, stop, hold };
  action act = action::go_on;
  hyperparameters changes;             ///< applied after any weights; empty: none
  std::optional<trainer_id> copy_from; ///< take this trainer's weights and optimizer state, as it was parked
  std::vector<trainer_id> average_of;  ///< take the mean of these trainers' weights (itself included or not)
  std::string reason;                  ///< for people: "exploits b (accuracy 0.87 > 0.81)"

  bool operator==(const decision&) const = default;
};

std::string_view to_string(decision::action x) noexcept; ///< "go_on", "stop", "hold"
/// {"action": "go_on", "changes": {…}, "copy_from": 1, "average_of": [0, 1], "reason": "…"}; what is empty is
/// left out.
nlohmann::json to_json(const decision& x);
/// "action" must be there; an unknown key is an error.
result<decision> decision_from_json(const nlohmann::json& j, std::string_view where);

/// Where a trainer is, as far as policies care.
enum class trainer_standing : std::uint8_t {
  running,  ///< on its way to a sync point, at this one, or not begun
  held,     ///< by an earlier decision
  finished, ///< came to its stop step
  stopped,
  failed ///< for good
};

/// What a policy sees: everything the live trainers reported for this sync point, in order of their numbers.
struct policy_input {
  sync_index index = 0;
  std::span<const metadata> reports;
  /// By trainer number: the workload's signature; weights go only between equals. If it is empty, all are
  /// equal.
  std::function<std::string_view(trainer_id)> signature;
  /// Asynchronous experiments ask for one trainer at a time; `reports` then has everyone's newest. Else
  /// empty.
  std::optional<trainer_id> only;
  /// By trainer number, of all there ever were; empty: all are running. Held ones can be decided about at any
  /// sync point: `go_on` lets them go on, `stop` ends them; without a decision they stay.
  std::span<const trainer_standing> standing{};
  /// For a policy that `wants_history`: every report at sync points so far, oldest first, with those of this
  /// one. A trainer that came to a sync point again, after a restart, is there once: with its newest report.
  std::span<const metadata> history{};
  /// Nobody is running: whom the policy does not let go on now is stopped.
  bool last_call = false;
};

/// Decides at a sync point. A pure function of the input and the random stream, so a run can be replayed;
/// keeps no state between sync points. Decisions that are missing mean "go on".
class policy {
public:
  virtual ~policy() = default;
  virtual std::map<trainer_id, decision> decide(const policy_input& in, random_stream& rng) const = 0;
  /// True if decisions may carry weights, so that trainers must be ready to give theirs.
  virtual bool moves_weights() const { return false; }
  /// True if decisions may be `hold`. In an asynchronous experiment trainers then wait at their sync points
  /// for their own decision (for nobody else's).
  virtual bool holds() const { return false; }
  /// True if `policy_input::history` is needed.
  virtual bool wants_history() const { return false; }
  /// Faults of the experiment as a whole that concern this policy, with JSON pointers.
  virtual void check(const experiment&, std::vector<error>&) const {}
};

/// Policies by name, filled explicitly. docs/policies.md describes Troupe's own.
class policy_registry {
public:
  /// `options`: the experiment's "policy" object less "type". Appends faults (with JSON pointers below
  /// `where`) and may then return null.
  using factory = std::function<std::unique_ptr<policy>(
      const nlohmann::json& options, const search_space& space, std::span<const std::string> trainer_names,
      std::string_view where, std::vector<error>& faults)>;
  /// Replaces an entry of the same name.
  void add(std::string type, factory make);
  /// An unknown type is a fault at `where`/type that lists the known ones.
  std::unique_ptr<policy> make(std::string_view type, const nlohmann::json& options,
                               const search_space& space, std::span<const std::string> trainer_names,
                               std::string_view where, std::vector<error>& faults) const;
  std::vector<std::string> names() const;

private:
  std::map<std::string, factory, std::less<>> factories_;
};

/// Troupe's own; docs/policies.md lists every option.
policy_registry builtin_policies();

/// Drops from `decisions` what cannot be done and says why in the decision's reason: weights from a trainer
/// that did not report or is of another signature, a donor whose loss is not finite, an average of nothing. A
/// decision that loses all its weights loses its changes too, as they were meant for those weights. Decisions
/// about trainers that did not report (or, with `in.only`, about others) are dropped whole, unless these are
/// held. Chains stay: a donor that is itself replaced or stopped still gives what it had when parked. Applied to every policy's
/// answer.
void sanitize(std::map<trainer_id, decision>& decisions, const policy_input& in);

} // namespace troupe::core
