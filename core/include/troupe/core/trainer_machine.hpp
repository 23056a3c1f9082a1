#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "troupe/core/experiment.hpp"
#include "troupe/core/metadata.hpp"

namespace troupe::core {

/// Where a trainer is in its life. `paused` lies over any of them.
enum class trainer_phase : std::uint8_t { building, ready, running, parking, parked, applying, stopping, finished, failed };
std::string_view to_string(trainer_phase x) noexcept;

/// An asynchronous trainer may have so many reports that were not taken: enough that the way of the answer costs no time.
constexpr std::uint32_t reports_ahead = 4;

/// What a trainer may do when, without threads, clocks or messages.
///
/// Its actor feeds events and does what the returned actions say. At most one request is with the slot at any time (a run, a
/// measurement, a job, the final work); whatever comes meanwhile waits for its end, and ends a run after its current step.
///
///   building ──(1) built──► ready ──(2) begin──► running ◄───────────────────────────┐
///                                                  │ (3) at a sync step, or called   │ (6) resume_sync, release
///                                                  ▼                                 │
///                                               parking ──(4) measured: report──► parked ──(5) job──► applying ─► parked
///   any ──(7) stop step, stop, a decision to stop──► stopping ──(8) final work done──► finished
///   any ──(9) a failed build, run, measurement or final work, a lost device──► failed
///
/// Asynchronous trainers report (4) and go straight on to running; but one of which `reports_ahead` reports have not been taken
/// (the store had no room for them and has not written them yet) is held back: it waits at its next sync point, before it measures
/// anything, until one is. A paused trainer does no work of its own: it neither runs nor parks nor finishes at its stop step, but it
/// does the jobs it is given (pushes, exports, decisions) and obeys stop. Jobs are done in the order in which they came. What names a sync point that is over, or a decision given twice, is dropped and
/// counted. So is a move to another slot that finds no run to go on with: it was meant to save time.
///
/// A trainer that is called to a sync point by the clock makes at least one step since the last one (or since its life began) first:
/// without a step it would have no loss to report, and one that waits long for its turns would never get on.
///
/// For every order of events: no run goes past a sync point or the stop step; a pause is acknowledged unless a resume or the end
/// overtakes it; and a trainer that is not paused, parked, held back or waiting to begin has a request with its slot.
class trainer_machine {
public:
  struct plan {
    std::uint64_t stop_step = 0;
    sync_schedule schedule;
    bool asynchronous = false;
    std::uint32_t reports_ahead = core::reports_ahead; ///< asynchronous: so many may not have been taken yet
  };
  /// A push, export, decision or move, numbered by the actor, which keeps what it says.
  using ticket = std::uint64_t;

  // -- actions -----------------------------------------------------------------------------------------
  /// Run so many steps; answer with `run_ended`.
  struct run {
    std::uint64_t steps;
  };
  /// End the run that is with the slot after its current step.
  struct interrupt {};
  /// Evaluate for sync point `sync`; answer with `task_ended`.
  struct measure {
    sync_index sync;
  };
  /// Do this job on the slot; answer with `task_ended`.
  struct work {
    ticket job;
  };
  /// This job will not be done: it is `stale`, or the trainer is at its end.
  struct refuse {
    ticket job;
    bool stale;
  };
  /// Evaluate for the last time, and save if so; answer with `task_ended`.
  struct finish {
    bool save;
    bool stopped; ///< before the stop step
  };
  /// Tell: what was measured for this sync point.
  struct report {
    sync_index sync;
  };
  struct say_paused {};
  struct say_resumed {};
  /// Tell and end.
  struct say_finished {
    bool stopped;
  };
  struct say_failed {};

  using action =
      std::variant<run, interrupt, measure, work, refuse, finish, report, say_paused, say_resumed, say_finished, say_failed>;
  using actions = std::vector<action>;

  explicit trainer_machine(plan p) : plan_(std::move(p)) {}

  // -- events ------------------------------------------------------------------------------------------
  /// The workload is there, `step` updates and `syncs_done` sync points old (0 and 0, or as its checkpoint says).
  actions built(std::uint64_t step, sync_index syncs_done);
  actions begin();
  actions pause();
  actions resume();
  actions stop(bool save);
  actions push(ticket job);
  actions export_state(ticket job);
  /// To another slot, if it would go on running at the next boundary.
  actions move(ticket job);
  /// `stops`: the decision is to stop once it is applied.
  actions apply(ticket job, sync_index sync, bool stops);
  actions call_sync(sync_index sync);
  actions resume_sync(sync_index sync);
  actions release(sync_index sync);
  /// Asynchronous: the store has room again for one of the reports that were made.
  actions report_taken();
  /// The run ended after `steps`. Fewer than asked for means that it was interrupted.
  actions run_ended(std::uint64_t steps, bool failed);
  /// How a measurement, a job or the final work ended. A job may be refused and the trainer goes on; the others may not.
  enum class outcome : std::uint8_t { done, refused, fatal };
  actions task_ended(outcome how);
  /// The build failed, the device was lost, or the trainer's actor cannot go on.
  actions fail();

  // -- queries -----------------------------------------------------------------------------------------
  trainer_phase phase() const noexcept;
  bool paused() const noexcept { return paused_; }
  std::uint64_t step() const noexcept { return step_; } ///< as of the last boundary
  std::optional<sync_index> parked_at() const noexcept { return parked_; }
  sync_index syncs_done() const noexcept { return syncs_done_; }
  /// Parked there and without a decision: a state that is saved now is one of before this sync point.
  std::optional<sync_index> undecided_at() const noexcept {
    return parked_ && undecided_ == parked_ ? parked_ : std::nullopt;
  }
  /// The sync point that the schedule brings next; none before the stop step, or not by steps.
  std::optional<sync_index> next_sync() const;
  /// It stands at a sync point until one of its reports is taken.
  bool held_back() const noexcept { return held_back_ && flight_ == flight::none && !over(); }
  bool over() const noexcept { return end_ != end::no; }
  std::uint64_t dropped() const noexcept { return dropped_; } ///< stale or repeated events

private:
  enum class flight : std::uint8_t { none, build, run, measure, job, finish };
  enum class end : std::uint8_t { no, finished, failed };
  struct queued {
    enum class kind : std::uint8_t { push, export_state, move, apply, resume_sync, release } what;
    ticket job = 0;
    sync_index sync = 0;
    bool stops = false;
  };

  actions enqueue(queued x);
  void advance(actions& out);
  void take_job(actions& out);
  void refuse_jobs(actions& out);
  void attend(actions& out);
  void drop(actions& out, const queued& x);
  std::optional<sync_index> due_sync();
  std::uint64_t run_limit() const;
  bool may_apply(sync_index sync) const noexcept;
  bool would_run();

  plan plan_;
  flight flight_ = flight::build;
  end end_ = end::no;
  std::uint64_t step_ = 0;
  std::uint64_t measured_at_ = 0;   ///< step of the newest measurement, or where this life began
  std::uint64_t asked_ = 0;         ///< steps of the run in flight
  bool interrupted_ = false;        ///< the run in flight was told to end
  bool begun_ = false;
  bool paused_ = false;
  bool pause_owed_ = false;         ///< a pause is not acknowledged yet
  std::optional<bool> stop_;        ///< wanted; with a save or not
  bool stopped_ = false;            ///< finishing before the stop step
  bool stops_ = false;              ///< the job in flight is a decision to stop
  sync_index measuring_ = 0;
  sync_index syncs_done_ = 0;
  sync_index released_ = 0;         ///< sync points below need not be waited at
  std::optional<sync_index> called_;
  std::optional<sync_index> parked_;
  std::optional<sync_index> undecided_; ///< the last sync point reported and not decided
  std::uint32_t untaken_ = 0;       ///< asynchronous: reports that were not taken yet
  bool held_back_ = false;
  sync_index decided_ = 0;          ///< asynchronous: decisions for sync points below are over
  std::deque<queued> jobs_;
  std::uint64_t dropped_ = 0;
};

} // namespace troupe::core
