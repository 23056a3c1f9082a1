#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
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
/// Members: running → parked(k) → (applied) → running …, or finished, failed, lost. A lost member that is
/// restarted comes back with a higher incarnation and runs up to the open sync point. Everything that names
/// an older sync point or incarnation is counted and dropped. No sequence of events can leave the engine
/// waiting for a member that is gone.
///
/// A decision to hold takes a member out of the barrier as it is parked: running → parked(k) → held(k). Every
/// later round asks about the held ones too; one that is let go on runs from where it was held. It may then
/// come to sync points that are over for the others: these are opened once more, before any later round goes
/// on. When nobody but held members is left, and nobody else is expected, there is a last call; if the policy lets none of
/// them go on, and still nobody else is there, all are stopped, so that none is held for ever.
///
/// A round k waits for the members that will reach k: running ones whose next sync point is k or an earlier
/// one, and those that are coming back. It closes when all of them have reported, when a quorum of them has,
/// or at the deadline. Whoever has not reported by then is a straggler: `go_on_without` leaves it running and
/// releases it unchanged when it comes; `stop` stops it; `wait` keeps waiting at a deadline (and says so,
/// again after each further deadline), but does not hold up a quorum. A report for k that comes after the
/// round was closed to it is held until the round is over and then released; one for a later sync point is
/// held until that round opens. Asynchronous experiments have no rounds: the engine only knows who lives;
/// but where members wait for their own decisions (`one_by_one`), each report is a round of its own, in the
/// order in which they came.
///
/// An event costs O(1) on average, whatever the number of members; a round costs O(n log n) once, for sorting
/// its reports.
class sync_engine {
public:
  using time_point = std::chrono::steady_clock::time_point;

  // -- actions ------------------------------------------------------------------------------------
  /// Run the policy over `reports` and call `decided`. Trainers that finished or failed since are not in it.
  /// It may decide about the held ones too.
  struct decide {
    sync_index index;
    std::vector<metadata> reports;
    std::vector<trainer_id> held{}; ///< ascending
    bool last_call = false;         ///< nobody is running; without reports
  };
  /// Ask `trainer` (parked) to export its state; answer with `exported`. `copied`: others take it as it is, not only a mean.
  struct export_state {
    sync_index index;
    trainer_id trainer;
    std::uint32_t incarnation;
    bool copied = false;
  };
  /// Send `what` to `trainer`; answer with `applied`. `index` is where the trainer is parked: for a held one
  /// an older sync point than the open one.
  struct apply {
    sync_index index;
    trainer_id trainer;
    std::uint32_t incarnation;
    decision what;
  };
  /// Let these go on; the round is over. Members that decided to stop are not in it.
  struct resume {
    sync_index index;
    std::vector<trainer_id> trainers;
  };
  /// A late or left-out trainer at a sync point that is already over: it goes on unchanged.
  struct release {
    sync_index index;
    trainer_id trainer;
    std::uint32_t incarnation;
  };
  /// It stays parked at `index`, outside the barrier.
  struct hold {
    sync_index index;
    trainer_id trainer;
    std::uint32_t incarnation;
  };
  /// A held one goes on from `index`, where it was parked.
  struct promote {
    sync_index index;
    trainer_id trainer;
    std::uint32_t incarnation;
  };
  /// The stragglers' treatment is `stop`: stop this one.
  struct stop_straggler {
    sync_index index;
    trainer_id trainer;
    std::uint32_t incarnation;
  };
  /// Call `tick` not later than this; replaces an earlier one.
  struct wake_at {
    time_point when;
  };
  /// For the log: who did not report in time, and what was done.
  struct note {
    sync_index index;
    std::vector<trainer_id> missing;
    std::string text;
  };
  /// No live member is left.
  struct all_done {};

  using action =
      std::variant<decide, export_state, apply, resume, release, hold, promote, stop_straggler, wake_at, note, all_done>;
  using actions = std::vector<action>;

  /// `closed`: the newest sync point that is over already, when a run goes on from its checkpoints.
  /// `one_by_one`: in an asynchronous experiment members wait for their own decisions.
  explicit sync_engine(sync_options options, std::optional<sync_index> closed = std::nullopt,
                       bool one_by_one = false);

  /// What was decided about a trainer before a run was cut off.
  struct past {
    std::optional<sync_index> passed;  ///< the newest sync point at which something was decided about it
    std::optional<sync_index> held_at; ///< it is held there
    bool behind = false;               ///< let go on after the others had passed its next sync point
  };
  /// Before the trainer's first `member_up`.
  void restore(trainer_id t, const past& x);

  // -- events -------------------------------------------------------------------------------------
  /// A trainer that was never up is on its way. Nobody waits for it, but there is no last call before it is up or gone.
  /// Ignored (and counted) if it was heard of before.
  void expected(trainer_id t);
  /// A trainer starts (or starts again: higher incarnation) at `step`. `next` is the first sync point it will
  /// reach; nullopt: it
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
  /// Sync points by the clock: every running member was told to park as soon as it can, for sync point `k`.
  /// Ignored (and
  /// counted) while a round is open or if `k` is over.
  actions called(sync_index k, time_point now);

  // -- queries ------------------------------------------------------------------------------------
  enum class phase : std::uint8_t { idle, collecting, deciding, exporting, applying };
  phase current_phase() const noexcept;
  std::optional<sync_index> open_round() const noexcept;
  std::size_t live() const noexcept; ///< running or parked, or coming back
  std::size_t parked() const noexcept; ///< held ones are not in it
  std::size_t held() const noexcept;
  std::uint64_t dropped() const noexcept; ///< stale or repeated events so far
  std::uint64_t
  rounds() const noexcept; ///< closed so far, not counting those that nobody was left to take part in
  std::optional<sync_index> closed() const noexcept; ///< the newest sync point that is over
  /// The incarnation that counts; nullopt for a trainer that was never heard of.
  std::optional<std::uint32_t> incarnation_of(trainer_id t) const;
  /// True while `t` is in the open round (it reported, and has neither left nor been resumed).
  bool in_round(trainer_id t) const;
  /// Everything that future behaviour depends on, as text without meaning: engines of the same options that
  /// give the same text
  /// act alike from there on (times are relative to `now`). For exploring states in tests. Costs O(n log n).
  std::string fingerprint(time_point now) const;

private:
  enum class state : std::uint8_t {
    running,
    parked, ///< in the open round
    aside,  ///< parked, but too late or too early for the open round
    held,   ///< parked outside the barrier
    down,   ///< coming back
    ended   ///< finished or gone for good
  };

  struct member {
    std::uint32_t incarnation = 0;
    state where = state::ended;
    bool stopping = false; ///< told to stop; nobody waits for it
    bool owes_export = false, owes_apply = false;
    std::optional<sync_index> next;          ///< running: the next sync point; parked: the one after
    std::optional<sync_index> last_reported; ///< by this incarnation
    std::optional<sync_index> apply_at;      ///< of the decision that it owes
    // What outlives an incarnation.
    std::optional<sync_index> held_at; ///< it stays there, or is on its way back to there
    std::optional<sync_index> passed;  ///< the newest sync point at which something was decided about it
    bool behind = false;               ///< it comes to sync points that are over for the others
  };

  struct seat {
    trainer_id trainer;
    std::uint32_t incarnation;
    sync_index at;
  };

  member* accept(trainer_id t, std::uint32_t incarnation);
  void move_to(member& m, state to, std::optional<sync_index> next);
  void count(const member& m, int by);
  static bool excused(const member& m) { return m.stopping || m.held_at; }
  bool awaited(const member& m) const;
  bool over(const member& m, sync_index k) const;
  bool still_held(const seat& s) const;
  void ask_about_held();
  void take_aside();
  bool only_held_left() const { return held_ > 0 && held_ == live_ && expected_.empty(); }
  void take_next(actions& out);
  void last_call(actions& out);
  bool seated(const seat& s) const;
  void leave(member& m, bool coming_back);
  void open(sync_index k);
  void first_report(time_point now, actions& out);
  void wait_until_deadline(time_point now, actions& out);
  void advance(time_point now, actions& out);
  bool quorum_reached() const;
  void close_collecting(bool at_deadline, actions& out);
  void give(const seat& s, decision what, actions& out);
  void begin_applying(actions& out);
  void give_to_held(actions& out);
  decision without_lost_donors(trainer_id t, decision d, actions& out) const;
  void finish_round(time_point now, actions& out);
  void open_early(time_point now, actions& out);

  sync_options options_;
  bool one_by_one_;
  phase phase_ = phase::idle;
  sync_index index_ = 0; ///< of the open round
  std::optional<sync_index> closed_;
  std::unordered_map<trainer_id, member> members_;
  std::set<trainer_id> expected_; ///< never up so far
  std::map<sync_index, std::size_t>
      running_by_next_; ///< how many running, not stopping members head for each sync point
  std::size_t coming_back_ = 0, live_ = 0, parked_ = 0, held_ = 0;
  std::size_t missing_ = 0;       ///< members that the open round awaits
  std::size_t seated_ = 0;        ///< members in the open round
  std::vector<metadata> reports_; ///< of the open round; may hold some of members that left it since
  std::vector<seat> seats_;       ///< who was in the round when it was decided, by number
  std::vector<seat> asked_;       ///< who was held then, by number
  bool last_call_ = false;
  std::vector<seat> late_;
  std::deque<metadata> queue_; ///< one by one: who waits for their turn
  std::map<sync_index, std::vector<metadata>> early_;
  std::map<trainer_id, decision> decisions_;
  std::set<trainer_id> donors_; ///< whose state was exported
  std::size_t owed_exports_ = 0, owed_applies_ = 0;
  std::optional<time_point> deadline_;
  std::uint64_t dropped_ = 0, rounds_ = 0;
  bool done_said_ = false;
};

} // namespace troupe::core
