#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "trainer.hpp"
#include "trainer_states.hpp"
#include "troupe/core/metadata.hpp"
#include "troupe/core/trainer_machine.hpp"

namespace troupe::actors::internal {

class trainer;

struct trainer_state {
  std::unique_ptr<trainer> impl;
  static constexpr const char* name = "trainer";
};

using trainer_self = hosted_trainer;

/// A trainer: what it does when is core::trainer_machine's; this turns messages into its events, and its actions into requests
/// to the slot and facts for the observer. It computes nothing itself. Every request to the slot has a number, and an
/// answer of another number is void. trainer.cpp: its messages, and what it tells; trainer_work.cpp: what its slot does for it.
class trainer {
public:
  using machine = core::trainer_machine;
  using self_pointer = trainer_self::stateful_pointer<trainer_state>;

  trainer(self_pointer self, trainer_setup setup)
      : self_(self), setup_(std::move(setup)), order_(setup_.order), hp_(from_wire(order_.hp)),
        machine_({order_.stop_step, from_wire(order_.schedule), order_.asynchronous}),
        hosted_(make_hosted(setup_.worker, setup_.number)) {}

  trainer_self::behavior_type behavior();
  void start();

private:
  using clock = std::chrono::steady_clock;
  using job = std::variant<push_hyperparameters, export_state, move_trainer, apply_decision>;

  /// What a task on the slot left behind.
  template <class T>
  struct box {
    std::optional<T> value;
    task_outcome outcome;
  };

  struct measured {
    gpu::evaluation eval;
    double loss_sum = 0; ///< of the steps since the last measurement
    std::uint64_t loss_count = 0;
    double compute_seconds = 0, wait_seconds = 0;
    std::uint64_t memory_bytes = 0;
    core::checkpoint_ptr saved;
    state_ref state;
  };

  bool is_mine(const trainer_ref& to) const { return to == order_.who; }
  template <class Fact>
  void tell(Fact x) {
    mail(self_, std::move(x)).send(order_.observer);
  }

  // -- requests ------------------------------------------------------------------------------------------------------
  /// On the slot that it lives on.
  template <class T, class Work, class Then>
  void ask_slot(Work work, Then then);
  template <class T, class Work, class Then>
  void ask_slot(const slot_actor& slot, std::shared_ptr<gpu::hosted> hosted, Work work, Then then);
  void obtain(const state_ref& from, std::function<void(core::result<core::checkpoint_ptr>)> then);
  void build(core::checkpoint_ptr from);
  struct built {
    core::error failure;
    std::string signature;
  };
  std::function<built(gpu::context&, gpu::hosted&)> builder(core::checkpoint_ptr from, const trainer_mark& mark) const;
  void measure_on_slot(bool save, std::function<void(measured)> then);
  std::function<core::checkpoint_ptr(gpu::context&, gpu::hosted&)> saver(bool copied = false) const;

  // -- the machine's actions -----------------------------------------------------------------------------------------
  void perform(machine::actions xs);
  void act(const machine::run& x);
  void act(const machine::interrupt&) { mail(self_, slot_interrupt{hosted_}).send(setup_.slot); }
  void act(const machine::measure& x);
  void act(const machine::work& x);
  void act(const machine::refuse& x);
  void act(const machine::finish& x);
  void act(const machine::report& x);
  void act(const machine::say_paused&) { tell(trainer_paused{order_.who, machine_.step()}); }
  void act(const machine::say_resumed&) { tell(trainer_resumed{order_.who, newest_step()}); }
  void act(const machine::say_finished& x);
  void act(const machine::say_failed&);

  void work_on(const push_hyperparameters& x);
  void work_on(const export_state& x);
  void work_on(const apply_decision& x);
  void work_on(const move_trainer& x);
  void settle(const move_trainer& x, core::checkpoint_ptr from, const trainer_mark& mark, std::shared_ptr<gpu::hosted> there);
  void apply(const apply_decision& x, core::checkpoint_ptr from);
  void answer(const push_hyperparameters& x, const core::error& failure);
  void answer(const move_trainer& x, const core::error& failure);
  void answer(const export_state& x, const core::error& failure, const state_ref& state = {});
  void answer(const apply_decision& x, const core::error& failure, const state_ref& state = {});
  /// Goes on after a job: `failure` was told already.
  void job_done(const core::error& failure, bool device_lost = false);

  void fail(core::error why, bool device_lost);
  core::metadata metadata_of(const measured& x, core::sync_index k) const;
  std::uint64_t newest_step() const;
  next_sync next() const;
  void note_parking();
  template <class Job>
  machine::ticket keep(Job x) {
    jobs_.emplace(++last_ticket_, std::move(x));
    return last_ticket_;
  }

  self_pointer self_;
  trainer_setup setup_;
  const host_trainer& order_;
  core::hyperparameters hp_; ///< in effect
  machine machine_;
  std::shared_ptr<gpu::hosted> hosted_;
  std::string signature_;
  std::uint64_t first_step_ = 0; ///< where this life began
  std::uint64_t request_ = 0;    ///< number of the one in flight, or of the last
  std::map<machine::ticket, job> jobs_;
  machine::ticket last_ticket_ = 0;
  std::deque<machine::action> actions_;
  bool performing_ = false;
  measured last_;                ///< of the measurement that the next report or the end tells
  std::string stop_reason_;
  core::error failure_;
  bool device_lost_ = false;
  double sync_seconds_ = 0;
  std::optional<clock::time_point> parked_since_;
};

} // namespace troupe::actors::internal
