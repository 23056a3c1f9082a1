#include "trainer.hpp"

#include <algorithm>
#include <utility>

#include "trainer_impl.hpp"

namespace troupe::actors::internal {

using core::errc;

// -- messages --------------------------------------------------------------------------------------------------------

trainer_self::behavior_type trainer::behavior() {
  return make_behavior(self_,
      [this](const begin_training& x) {
        if (is_mine(x.to))
          perform(machine_.begin());
      },
      [this](const pause_training& x) {
        if (is_mine(x.to))
          perform(machine_.pause());
      },
      [this](const resume_training& x) {
        if (is_mine(x.to))
          perform(machine_.resume());
      },
      [this](const push_hyperparameters& x) {
        if (is_mine(x.to))
          perform(machine_.push(keep(x)));
      },
      [this](const call_sync& x) {
        if (is_mine(x.to))
          perform(machine_.call_sync(x.sync));
      },
      [this](const export_state& x) {
        if (is_mine(x.to))
          perform(machine_.export_state(keep(x)));
      },
      [this](const apply_decision& x) {
        if (is_mine(x.to))
          perform(machine_.apply(keep(x), x.sync, from_wire(x.what).act == core::decision::action::stop));
      },
      [this](const resume_sync& x) {
        if (is_mine(x.to))
          perform(machine_.resume_sync(x.sync));
      },
      [this](const release_trainer& x) {
        if (is_mine(x.to))
          perform(machine_.release(x.sync));
      },
      [this](const report_taken& x) {
        if (is_mine(x.to))
          perform(machine_.report_taken());
      },
      [this](const stop_training& x) {
        if (!is_mine(x.to))
          return;
        if (stop_reason_.empty())
          stop_reason_ = x.reason;
        perform(machine_.stop(x.save));
      },
      [this](const query_status&) -> result<trainer_status> {
        trainer_status out;
        out.from = order_.who;
        out.name = order_.name;
        out.phase = static_cast<trainer_phase>(machine_.phase());
        out.paused = machine_.paused();
        out.step = newest_step();
        out.stop_step = order_.stop_step;
        out.sync = machine_.parked_at().value_or(0);
        out.hp = to_wire(hp_);
        return out;
      },
      [this](const move_trainer& x) { perform(machine_.move(keep(x))); },
      [this](const resumption& x) {
        if (x.request == request_)
          x.then();
      },
      on_exit_msg(self_,
                  [this](caf::exit_msg& x) {
                    mail(self_, slot_interrupt{hosted_}).send(setup_.slot); // or it would train on for nobody
                    self_->quit(std::move(x.reason));
                  }),
      on_error_msg(self_, [](caf::error&) {}));
}

// -- actions ---------------------------------------------------------------------------------------------------------

void trainer::perform(machine::actions xs) {
  actions_.insert(actions_.end(), xs.begin(), xs.end());
  if (std::exchange(performing_, true))
    return; // the loop below takes them
  while (!actions_.empty()) {
    const auto x = actions_.front();
    actions_.pop_front();
    std::visit([this](const auto& y) { act(y); }, x);
  }
  performing_ = false;
  note_parking();
}

void trainer::act(const machine::run& x) {
  slot_run run;
  run.who = hosted_;
  run.steps = x.steps;
  run.hint = {order_.priority, order_.barrier && machine_.next_sync().has_value()};
  run.done = [this, me = outside{trainer_self{self_}}, request = ++request_](gpu::run_outcome o) {
    anon_mail(resumption{request, [this, o = std::move(o)] {
                           failure_ = o.failure;
                           device_lost_ = o.device_lost;
                           perform(machine_.run_ended(o.steps, !o.failure.text.empty()));
                         }})
        .send(me.get());
  };
  mail(self_, std::move(run)).send(setup_.slot);
}

void trainer::act(const machine::measure&) {
  measure_on_slot(false, [this](measured x) {
    last_ = std::move(x);
    perform(machine_.task_ended(machine::outcome::done));
  });
}

void trainer::act(const machine::report& x) {
  tell(sync_report{order_.who, x.sync, to_wire(metadata_of(last_, x.sync)), next()});
}

void trainer::act(const machine::finish& x) {
  measure_on_slot(x.save, [this](measured x) {
    last_ = std::move(x);
    perform(machine_.task_ended(machine::outcome::done));
  });
}

void trainer::act(const machine::say_finished& x) {
  tell(trainer_finished{order_.who, to_wire(metadata_of(last_, machine_.syncs_done())), x.stopped,
                        x.stopped ? stop_reason_ : std::string{}, last_.state});
  self_->quit();
}

void trainer::act(const machine::say_failed&) {
  if (failure_.text.empty())
    failure_ = {errc::internal, "the slot reported more steps than it was asked for"};
  tell(trainer_failed{order_.who, machine_.step(), to_wire(failure_), device_lost_});
  self_->quit();
}

void trainer::fail(core::error why, bool device_lost) {
  failure_ = std::move(why);
  device_lost_ = device_lost;
  perform(machine_.fail());
}

// -- jobs ------------------------------------------------------------------------------------------------------------

void trainer::act(const machine::work& x) {
  const auto i = jobs_.find(x.job);
  const auto what = std::move(i->second);
  jobs_.erase(i);
  std::visit([this](const auto& y) { work_on(y); }, what);
}

void trainer::act(const machine::refuse& x) {
  const auto i = jobs_.find(x.job);
  const auto what = std::move(i->second);
  jobs_.erase(i);
  if (const auto* move = std::get_if<move_trainer>(&what)) {
    move->done({errc::cancelled, "the trainer has no run to go on with"});
    return;
  }
  if (x.stale)
    return; // dropped and counted: whoever sent it has moved on
  const core::error why{errc::refused, "the trainer has come to its end"};
  std::visit([&](const auto& y) { answer(y, why); }, what);
}

void trainer::job_done(const core::error& failure, bool device_lost) {
  if (device_lost) {
    failure_ = failure;
    device_lost_ = true;
  }
  perform(machine_.task_ended(device_lost             ? machine::outcome::fatal
                              : failure.text.empty() ? machine::outcome::done
                                                     : machine::outcome::refused));
}

void trainer::answer(const push_hyperparameters& x, const core::error& failure) {
  tell(push_ack{order_.who, x.request, to_wire(failure), machine_.step(), to_wire(hp_)});
}

void trainer::answer(const move_trainer& x, const core::error& failure) {
  tell(trainer_moved{order_.who, machine_.step(), order_.slot, x.index, to_wire(failure)});
  x.done(failure);
}

void trainer::answer(const export_state& x, const core::error& failure, const state_ref& state) {
  tell(state_exported{order_.who, x.sync, to_wire(failure), state});
}

void trainer::answer(const apply_decision& x, const core::error& failure, const state_ref& state) {
  tell(decision_applied{order_.who, x.sync, to_wire(failure), machine_.step(), to_wire(hp_), state});
}

// -- what is told ----------------------------------------------------------------------------------------------------

core::metadata trainer::metadata_of(const measured& x, core::sync_index k) const {
  core::metadata out;
  out.trainer = order_.who.trainer;
  out.name = order_.name;
  out.incarnation = order_.who.incarnation;
  out.sync = k;
  out.step = machine_.step();
  out.epoch = x.eval.epoch;
  out.samples = x.eval.samples;
  if (x.loss_count > 0)
    out.loss = x.loss_sum / static_cast<double>(x.loss_count);
  out.accuracy = x.eval.accuracy;
  out.grad_norm = x.eval.grad_norm;
  out.compute_seconds = x.compute_seconds;
  out.wait_seconds = x.wait_seconds;
  out.sync_seconds = sync_seconds_;
  out.memory_bytes = x.memory_bytes;
  out.numbers = x.eval.numbers;
  out.hp = hp_;
  if (!fits_control_plane(wire_size(out), "the metadata")) {
    // Training goes on without them; the count says that they are missing.
    const auto n = static_cast<double>(out.numbers.size());
    out.numbers = {{"numbers_left_out", n}};
  }
  return out;
}

/// The machine hears of steps when a run on the slot ends; a run that is going on has come further.
std::uint64_t trainer::newest_step() const {
  return std::max(machine_.step(), first_step_ + hosted_->progress.load(std::memory_order_relaxed));
}

next_sync trainer::next() const {
  const auto k = machine_.next_sync();
  return {k.has_value(), k.value_or(0)};
}

void trainer::note_parking() {
  const bool parked = machine_.parked_at().has_value() || machine_.held_back();
  if (parked && !parked_since_) {
    parked_since_ = clock::now();
  } else if (!parked && parked_since_) {
    sync_seconds_ += std::chrono::duration<double>(clock::now() - *parked_since_).count();
    parked_since_.reset();
  }
}

hosted_trainer spawn_trainer(caf::actor_system& sys, trainer_setup setup) {
  return sys.spawn([setup = std::move(setup)](trainer::self_pointer self) -> trainer_self::behavior_type {
    auto& st = state(self);
    on_exception(self);
    drop_unknown(self, std::remove_reference_t<decltype(st)>::name);
    st.impl = std::make_unique<trainer>(self, setup);
    st.impl->start();
    return st.impl->behavior();
  });
}

} // namespace troupe::actors::internal
