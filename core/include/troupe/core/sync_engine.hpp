#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "troupe/core/experiment.hpp"
#include "troupe/core/metadata.hpp"
#include "troupe/core/policy.hpp"

namespace troupe::core {

/// The rules of sync points, without threads, clocks or messages.
///
/// The coordinator feeds events and does what the returned actions say. One round at a time:
///
///            first report of k                all live members reported, or quorum, or deadline
///   (1) idle ───────────────► (2) collecting ─────────────────────────────────────────► (3) deciding
///                                                                                          │ decided()
///   (1) idle ◄─────────── (5) applying ◄──── all donors exported or gone ──── (4) exporting ◄┘
///        resume all   every member applied or gone                     (skipped when nothing is copied)
///
/// Members: running → parked(k) → (applied) → running …, or finished, failed, lost. A lost member that is restarted comes
/// back with a higher incarnation and runs up to the open sync point. Everything that names an older sync point or
/// incarnation is counted and dropped. No sequence of events can leave the engine waiting for a member that is gone.
class sync_engine {
public:
  using time_point = std::chrono::steady_clock::time_point;

  // -- actions ---------------------------------------------------------------------------------------------------------
  /// Run the policy over `reports` and call `decided`. Trainers that finished or failed since are not in it.
  struct decide { sync_index index; std::vector<metadata> reports; };
  /// Ask `trainer` (parked) to export its state; answer with `exported`.
  struct export_state { sync_index index; trainer_id trainer; std::uint32_t incarnation; };
  /// Send `what` to `trainer`; answer with `applied`.
  struct apply { sync_index index; trainer_id trainer; std::uint32_t incarnation; decision what; };
  /// Let these go on; the round is over. Members that decided to stop are not in it.
  struct resume { sync_index index; std::vector<trainer_id> trainers; };
  /// A late or left-out trainer at a sync point that is already over: it goes on unchanged.
  struct release { sync_index index; trainer_id trainer; std::uint32_t incarnation; };
  /// The stragglers' treatment is `stop`: stop this one.
  struct stop_straggler { sync_index index; trainer_id trainer; std::uint32_t incarnation; };
  /// Call `tick` not later than this; replaces an earlier one.
  struct wake_at { time_point when; };
  /// For the log: who did not report in time, and what was done.
  struct note { sync_index index; std::vector<trainer_id> missing; std::string text; };
  /// No live member is left.
  struct all_done {};

  using action = std::variant<decide, export_state, apply, resume, release, stop_straggler, wake_at, note, all_done>;
  using actions = std::vector<action>;

  explicit sync_engine(sync_options options);

  // -- events ----------------------------------------------------------------------------------------------------------
  /// A trainer starts (or starts again: higher incarnation) at `step`. `next` is the first sync point it will reach; nullopt: it
  /// reaches none before its stop step.
  actions member_up(trainer_id t, std::uint32_t incarnation, std::optional<sync_index> next, time_point now);
  /// It will be restarted (`coming_back`), or is gone for good.
  actions member_down(trainer_id t, std::uint32_t incarnation, bool coming_back, time_point now);
  actions member_finished(trainer_id t, std::uint32_t incarnation, time_point now);
  /// It parked. `next` is the sync point after this one, as above.
  actions reported(metadata m, std::optional<sync_index> next, time_point now);
  actions decided(sync_index k, std::map<trainer_id, decision> decisions, time_point now);
  actions exported(sync_index k, trainer_id t, std::uint32_t incarnation, bool ok, time_point now);
  actions applied(sync_index k, trainer_id t, std::uint32_t incarnation, bool ok, time_point now);
  actions tick(time_point now);
  /// Ends the wait: closes the open round with what there is.
  actions close_now(time_point now);

  // -- queries ---------------------------------------------------------------------------------------------------------
  enum class phase : std::uint8_t { idle, collecting, deciding, exporting, applying };
  phase current_phase() const noexcept;
  std::optional<sync_index> open_round() const noexcept;
  std::size_t live() const noexcept;    ///< running or parked, or coming back
  std::size_t parked() const noexcept;
  std::uint64_t dropped() const noexcept; ///< stale or repeated events so far
  std::uint64_t rounds() const noexcept;  ///< closed so far
};

} // namespace troupe::core
