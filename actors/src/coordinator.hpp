#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "control_messages.hpp"
#include "reply.hpp"
#include "run_host.hpp"
#include "supervisor.hpp"
#include "troupe/actors/messages.hpp"
#include "troupe/actors/run.hpp"
#include "troupe/core/barrier_ledger.hpp"
#include "troupe/core/report_gate.hpp"
#include "troupe/core/sync_engine.hpp"

namespace troupe::actors::internal {

inline bool takes_weights(const core::decision& d) { return d.copy_from || !d.average_of.empty(); }

/// At most so many sets are on their way to the disk: what is in memory stays bounded when the disk is slow.
inline constexpr std::uint32_t max_sets_in_flight = 2;

/// Runs the sync points of one experiment and answers those who steer it.
///
/// The rules of a round are core::sync_engine's; this turns messages into its events and its actions into
/// messages, keeps the record of every trainer, and sees that decisions are written before anyone acts on
/// them. Nothing here blocks: disks are behind the store, placement behind the supervisor, listeners behind a
/// queue.
///
/// A trainer's life:
///
///   launch ──► supervisor places it, its node builds it ──► trainer_up ──► (all of the first ones up) begin
///   ──► rounds
///     ▲ │ └── on_failure: restarts left, or its node was lost ◄── trainer_failed, on_lost
///     ◄────────────────────────┤
///                        │ none left │ ▼ ▼
///                    failed for good (fail fast, refill) trainer_finished
///
/// One for which no slot is left fails nobody: all stop where they are, and the run ends as interrupted. (Were it left out, the
/// others would end with other weights than a resumption that has such a slot again.)
///
/// Running out of memory does not count as a failure while the next life can be placed beside fewer others; until there is room it
/// waits, and no sync point waits for it.
///
/// A new life begins from the newest state there is: one kept in memory, else the newest checkpoint file,
/// else the beginning. What was decided and pushed since that state is given again as it comes by.
class coordinator {
public:
  struct settings {
    std::shared_ptr<run_host> host; ///< store, states, listener: what lives beside the actors
    std::function<void(run_summary)> on_end;
  };

  coordinator(caf::event_based_actor* self, settings s);
  caf::behavior behavior();

  // -- told by the session and the supervisor
  // ------------------------------------------------------------------------
  void start(caf::actor supervisor);
  void on_node(const node_up& x);
  void on_node_lost(std::uint32_t number, const std::string& reason);
  void on_slot_lost(std::uint32_t node, std::uint32_t slot, const std::string& reason);
  void on_placed(const trainer_ref& who, const std::string& where);
  void on_not_placed(const trainer_ref& who, const core::error& why);
  /// There is no room for it until others have left a slot. Nobody waits for it meanwhile.
  void on_waiting(const trainer_ref& who, const core::error& why);
  /// It ran out of memory alone on every slot that it may live on.
  void on_no_room(const trainer_ref& who, const core::error& why);
  /// `blameless`: it is not the trainer's fault (its node is gone) and does not count.
  void on_lost(const trainer_ref& who, const core::error& why, bool blameless);
  /// Ends the run as failed, at once: the ground it stands on is gone.
  void fail_run(const core::error& why);

  // -- control
  // -------------------------------------------------------------------------------------------------------
  void status(reply<run_status> to);
  void pause(const std::string& who, reply<acknowledgements> to);
  void resume(const std::string& who, reply<acknowledgements> to);
  void push(const std::string& who, core::hyperparameters changes, reply<acknowledgements> to);
  void stop(const std::string& who, const std::string& reason, reply<acknowledgements> to);
  void add_trainer(const std::string& json, reply<core::trainer_id> to);
  void interrupt();

private:
  using clock = std::chrono::steady_clock;

  struct trainer {
    core::trainer_spec spec;
    core::trainer_id id = 0;
    trainer_state state = trainer_state::starting;
    bool wants_pause = false; ///< from outside
    std::string stop_reason;  ///< to be stopped as soon as it is up; empty: not
    std::uint32_t incarnation = 0;
    std::uint32_t restarts = 0; ///< that count
    bool waits_for_room = false;
    trainer_actor hdl;          ///< null while it is not up
    std::string signature;
    core::hyperparameters hp; ///< in effect
    std::uint64_t step = 0;
    std::optional<core::metadata> newest;
    core::error failure;
    std::string where;
    // Where a new life begins.
    state_ref kept; ///< in some process's memory; held
    std::uint64_t kept_step = 0;
    std::optional<core::sync_index> kept_sync;
    std::vector<state_ref> sources;                    ///< held until its decision is applied (asynchronous)
    core::saved_trainer saved;                         ///< on disk; no file: never
    core::hyperparameters first_push;                  ///< given before it begins (a refilled trainer's own)
    std::map<core::sync_index, core::decision> replay; ///< decided since
    core::hyperparameters pushed;                      ///< pushed since
    core::hyperparameters pushed_after;                ///< of these, what came after its newest decision
    core::decision deciding;                           ///< newest one sent
    state_ref loading;                                 ///< put into memory for this launch
    std::uint64_t final_hash = 0;
    std::uint32_t finals_lost = 0; ///< how often its last state was, before it was saved
    core::stop_watch watch;
    bool enough = false;                      ///< told to stop because of its own rules
    bool rules_checked = false;               ///< whether it reports what they look at
    std::optional<clock::time_point> stop_at; ///< its time is over then
    std::string reason;                       ///< why it was stopped
    // Of the place that it fills:
    std::uint64_t place_step = 0; ///< how far those before it came
    std::uint32_t fruitless = 0;  ///< so many in a row came no further
  };

  /// A pause, resume, push or stop that waits for its trainers.
  struct operation {
    enum class kind { pause, resume, check, push, stop };
    kind what = kind::pause;
    std::set<core::trainer_id> waiting;
    acknowledgements done;
    std::vector<std::string> refusals;
    core::hyperparameters changes;
    std::set<std::pair<core::trainer_id, std::uint32_t>> asked{}; ///< push, check: the lives that were
    reply<acknowledgements> to;
  };

  /// The open round, as far as the engine does not know it.
  struct round {
    core::sync_index index = 0;
    std::shared_ptr<sync_point_event> what;
    std::map<core::trainer_id, core::decision>
        decisions;      ///< with one for everybody whose state is to be saved
    bool saves = false; ///< a checkpoint set is due
    bool waits = false; ///< to be recorded when fewer sets are on their way to the disk
    std::map<core::trainer_id, state_ref> exports;
    std::map<std::vector<core::trainer_id>, state_ref> means;
    std::map<std::vector<core::trainer_id>, std::vector<core::sync_engine::apply>> for_mean; ///< wait for it
  };

  /// Why a set of checkpoints is written.
  enum class occasion : std::uint8_t {
    sync_point, ///< after its decisions
    time,       ///< none was written for as long as the experiment allows
    leaving     ///< each gives its state as it stops
  };

  /// A checkpoint set of which not every state has come.
  struct saving {
    occasion why = occasion::sync_point;
    std::optional<core::sync_index> sync;
    std::string lacks{}; ///< why it cannot be whole, so that it is not written; empty: it can
    std::vector<run_store::part> parts;
    std::vector<std::pair<core::trainer_id, state_ref>> held; ///< kept states that this set makes superfluous
    std::set<core::trainer_id> waiting;
    std::set<core::trainer_id> asked; ///< of these, who has not given its state yet
    unsigned alarms = 0;              ///< for the next set by the clock, that came meanwhile
    /// What had been pushed to those whose states were asked for: it is in them.
    std::map<core::trainer_id, std::pair<std::uint32_t, core::hyperparameters>> pushed{};
  };

  enum class purpose : std::uint8_t {
    copy, ///< a trainer takes it
    set,  ///< of checkpoints
    other
  };

  /// Who asked a trainer for its state, and what for.
  struct exporting {
    std::uint32_t incarnation = 0;
    std::function<void(core::result<state_ref>)> then;
    purpose what_for = purpose::other;
  };

  /// Asynchronous: a decision that waits for its donors' states.
  struct gathering {
    trainer_ref taker;
    core::sync_index sync = 0;
    core::decision what;
    std::set<core::trainer_id> waiting;
    std::map<core::trainer_id, state_ref> states;
  };

  /// A process with slots, for those who ask how the run is; it stays in the list when it is lost.
  struct host_process {
    node_agent_actor agent; ///< null: lost
    std::vector<slot_info> slots;
  };

  // coordinator.cpp: facts, places, alarms
  trainer* living(const trainer_ref& x);  ///< null if it is of an older life
  trainer* current(const trainer_ref& x); ///< the same; counted then
  trainer_ref ref_of(const trainer& t) const;
  void take_over_record();
  template <class Command>
  void command(const trainer& t, Command x) {
    x.to = ref_of(t);
    if (t.hdl)
      mail(self_, std::move(x)).urgent().send(t.hdl);
  }
  void on_up(const trainer_up& x);
  void on_report(const sync_report& x);
  void on_exported(const state_exported& x);
  void on_applied(const decision_applied& x);
  void on_paused(const trainer_paused& x);
  void on_resumed(const trainer_resumed& x);
  void on_push_ack(const push_ack& x);
  void on_moved(const trainer_moved& x);
  void on_finished(const trainer_finished& x);
  void on_failed(const trainer_failed& x);
  void on_alarm(const alarm& x);
  void set_alarm(alarm_kind kind, clock::duration in);
  void event(const std::string& kind, nlohmann::json details);
  void supervise(std::function<void(supervisor&)> what);
  outside<caf::actor> self_handle() const;
  /// Has `f` done in the coordinator's turn; from any thread. Dropped if it is gone.
  static void post(const outside<caf::actor>& to, std::function<void(coordinator&)> f);

  // coordinator_life.cpp: beginnings and ends
  void launch(trainer& t);
  void launch_from(core::trainer_id id, std::uint32_t incarnation, const state_ref& from);
  void begin_all_if_ready();
  void begin(trainer& t);
  void on_failure(trainer& t, const core::error& why, bool blameless);
  void give_up(trainer& t, const core::error& why, bool told = false);
  void refill(const trainer& gone);
  void stop_waiting(trainer& t);
  core::trainer_id add(core::trainer_spec spec, const std::string& text);
  void end(trainer& t, trainer_state as);
  void leave_all(trainer& t, const std::string& why);
  void check_end();
  void interrupt_now();
  void leave_for_want_of_slots(const trainer& t, const core::error& why);
  std::optional<core::decision> look_at(trainer& t, const core::metadata& m);
  void check_rules(trainer& t, const core::metadata& m);
  void stop_all(const std::string& reason);
  void stop_now(trainer& t, const std::string& reason);
  void wake_for_time();
  void on_time();
  void set_newest(trainer& t, const core::metadata& m);
  void drop(const state_ref& x);
  void keep(trainer& t, const state_ref& x, std::optional<core::sync_index> k);

  // coordinator_rounds.cpp
  void perform(core::sync_engine::actions as);
  void act(core::sync_engine::decide& x);
  void act(core::sync_engine::export_state& x);
  void act(core::sync_engine::apply& x);
  void act(core::sync_engine::resume& x);
  void act(core::sync_engine::release& x);
  void act(core::sync_engine::hold& x);
  void act(core::sync_engine::promote& x);
  void act(core::sync_engine::stop_straggler& x);
  void act(core::sync_engine::wake_at& x);
  void act(core::sync_engine::note& x);
  void act(core::sync_engine::all_done& x);
  core::policy_input input_of(core::sync_index k, const std::vector<core::metadata>& reports);
  std::vector<core::metadata> newest_reports() const;
  void remember(const core::metadata& m);
  std::map<core::trainer_id, core::decision> ask_policy(const core::policy_input& in, std::uint64_t stream);
  std::shared_ptr<sync_point_event> make_event(core::sync_index k, std::vector<core::metadata> reports,
                                               std::map<core::trainer_id, core::decision> decisions) const;
  void record_round();
  bool saves_at(core::sync_index k);
  void send_decision(trainer& t, core::sync_index k, core::decision what, std::vector<state_ref> sources,
                     bool saves);
  void average(std::vector<state_ref> sources, std::function<void(core::result<state_ref>)> then);
  void make_mean(const std::vector<core::trainer_id>& of);
  void bring_here(const decision_applied& x);
  void settle(trainer& t, const decision_applied& x);
  void call_round();

  // coordinator_free.cpp
  void report_asynchronously(trainer& t, const core::metadata& m);
  bool send_to_record(std::uint64_t bytes);
  void recorded(const trainer_ref& who, core::sync_index k, std::uint64_t bytes, bool taken);
  record_info record_now() const;
  void note_passing(core::sync_index k);
  void decide_asynchronously(const trainer_ref& who, core::sync_index k, const core::decision& d);
  void give_gathered(std::uint64_t number);

  // coordinator_saves.cpp
  void export_from(trainer& t, core::sync_index k, std::function<void(core::result<state_ref>)> then,
                   purpose what_for = purpose::other);
  void cancel_exports(trainer& t, const std::string& why);
  void begin_saving(occasion why, std::optional<core::sync_index> k = std::nullopt);
  void ask_state_for(std::uint64_t number, trainer& t, core::sync_index k);
  void add_state(std::uint64_t number, const trainer& t, const state_ref& x, std::uint64_t step);
  void add_older_state(std::uint64_t number, const trainer& t);
  void take_older_states();
  void take_older_states(std::uint64_t number, const std::function<bool(const trainer&)>& of);
  bool set_comes_first();
  void give_up_sets_before(std::uint64_t number);
  void wake_for_saving();
  void save_if_due();
  void on_save_alarm();
  std::size_t sets_under_way() const;
  void leave_savings(const trainer& t);
  void end_is_recorded(core::trainer_id id);
  void write_if_complete(std::uint64_t number);
  void let_go(const std::vector<std::pair<core::trainer_id, state_ref>>& held, bool written);
  void save_final(trainer& t, const state_ref& x, nlohmann::json details);
  void write_final(core::trainer_id id, core::checkpoint_ptr state, nlohmann::json details);
  void end_final(core::trainer_id id, nlohmann::json details);
  void final_not_written(core::trainer_id id, const core::error& why);
  void final_lost(core::trainer_id id, const core::error& why);

  // coordinator_control.cpp
  core::result<std::vector<core::trainer_id>> targets(const std::string& who) const;
  std::uint64_t open_operation(operation x);
  void acknowledge(operation::kind what, const trainer& t, std::uint64_t step);
  void leave_operations(const trainer& t);
  void close_if_complete(std::uint64_t number);
  void send_push(std::uint64_t number);
  void ask(std::uint64_t number, operation& o, const trainer& t);
  void send_pushes(trainer& t);
  void keep_pushes(trainer& t);
  void forget_pushes(trainer& t, std::uint32_t incarnation, const core::hyperparameters& changes);
  void take_in(trainer& t, const core::hyperparameters& changes, std::uint64_t step);
  void collect_status(std::function<void(run_status)> then);
  void collect_slots(std::function<void(std::vector<slot_info>)> then);
  void keep_slots();
  void finish_run(bool ask_slots = true);
  run_status status_now() const;
  trainer_info info_of(const trainer& t) const;
  std::vector<core::error> check_push(const std::vector<core::trainer_id>& who,
                                      const core::hyperparameters& changes) const;

  caf::event_based_actor* self_;
  settings settings_;
  run_host& host_;
  core::experiment& exp_;
  const bool one_by_one_;   ///< asynchronous, and trainers wait for their own decisions
  const bool free_running_; ///< asynchronous, and they do not wait
  caf::actor supervisor_;
  core::sync_engine engine_;
  clock::time_point began_;
  std::deque<trainer> trainers_;              ///< by number; references stay good when one is added
  std::set<core::trainer_id> starting_first_; ///< of the first ones, not up yet
  bool launched_ = false, begun_ = false, interrupt_asked_ = false, interrupting_ = false, ended_ = false;
  std::set<std::uint32_t> nodes_;
  std::map<std::uint32_t, host_process> processes_;
  std::size_t live_ = 0;
  std::uint64_t dropped_ = 0;
  core::error run_failure_;
  core::error no_slot_; ///< why the run is left without having been asked to

  round round_;
  std::map<core::trainer_id, core::sync_index> replaying_; ///< get a decision again before they are released
  std::uint32_t sets_in_flight_ = 0;
  std::uint32_t writes_in_flight_ = 0; ///< of any kind: the run does not end before them
  std::uint64_t numbers_ = 0; ///< of operations, savings and gatherings
  std::map<std::uint64_t, saving> savings_;
  bool save_due_ = false; ///< a set for time's sake, as soon as no round is being decided or applied
  std::set<core::trainer_id> ending_; ///< have finished, but it is not on record yet
  bool target_is_reported_ = false; ///< the number of the experiment's stop target, by somebody
  std::size_t unchecked_ = 0;       ///< live trainers that have reported nothing yet in this session
  std::uint64_t reported_steps_ = 0; ///< of all trainers together, by their newest reports
  bool all_stopped_ = false;         ///< everybody there is was told to
  std::map<core::trainer_id, std::deque<exporting>> exports_;
  std::map<std::uint64_t, gathering> gatherings_;
  std::map<std::uint64_t, operation> operations_;
  std::map<alarm_kind, std::uint64_t> alarms_;
  core::sync_index next_call_ = 0;
  core::report_gate gate_; ///< free running: how many reports wait for the disk
  std::map<core::sync_index, std::size_t> passed_; ///< asynchronous: how many passed each sync point
  std::uint64_t reports_since_save_ = 0;           ///< one by one
  std::vector<core::metadata> history_;            ///< for policies that want it
  std::map<std::pair<core::trainer_id, core::sync_index>, std::size_t> in_history_; ///< where it is
  core::barrier_ledger barriers_;
  std::vector<core::trainer_standing> standing_; ///< by number; made anew for each question to the policy
};

caf::actor spawn_coordinator(caf::actor_system& sys, coordinator::settings s);

} // namespace troupe::actors::internal
