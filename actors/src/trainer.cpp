#include "trainer.hpp"

#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <variant>

#include <nlohmann/json.hpp>

#include "trainer_messages.hpp"
#include "trainer_states.hpp"
#include "troupe/core/trainer_machine.hpp"

namespace troupe::actors::internal {
namespace {

using machine = core::trainer_machine;
using trainer_self = extend<trainer_actor, result<void>(resumption)>;
using core::errc;

class trainer;

struct trainer_state {
  std::unique_ptr<trainer> impl;
  static constexpr const char* name = "trainer";
};

using self_pointer = trainer_self::stateful_pointer<trainer_state>;

/// A trainer: what it does when is core::trainer_machine's; this turns messages into its events, and its actions into requests
/// to the slot and facts for the observer. It computes nothing itself. Every request to the slot has a number, and an
/// answer of another number is void.
class trainer {
public:
  trainer(self_pointer self, trainer_setup setup)
      : self_(self), setup_(std::move(setup)), order_(setup_.order), hp_(from_wire(order_.hp)),
        machine_({order_.stop_step, from_wire(order_.schedule), order_.asynchronous}),
        hosted_(make_hosted(setup_.worker)) {}

  trainer_self::behavior_type behavior();
  void start();

private:
  using clock = std::chrono::steady_clock;
  using job = std::variant<push_hyperparameters, export_state, apply_decision>;

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
  template <class T, class Work, class Then>
  void ask_slot(Work work, Then then);
  void obtain(const state_ref& from, std::function<void(core::result<core::checkpoint_ptr>)> then);
  void build(core::checkpoint_ptr from);
  void measure_on_slot(bool save, std::function<void(measured)> then);
  std::function<core::checkpoint_ptr(gpu::context&, gpu::hosted&)> saver() const;

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
  void act(const machine::say_resumed&) { tell(trainer_resumed{order_.who, machine_.step()}); }
  void act(const machine::say_finished& x);
  void act(const machine::say_failed&);

  void work_on(const push_hyperparameters& x);
  void work_on(const export_state& x);
  void work_on(const apply_decision& x);
  void apply(const apply_decision& x, core::checkpoint_ptr from);
  void answer(const push_hyperparameters& x, const core::error& failure);
  void answer(const export_state& x, const core::error& failure, const state_ref& state = {});
  void answer(const apply_decision& x, const core::error& failure, const state_ref& state = {});
  /// Goes on after a job: `failure` was told already.
  void job_done(const core::error& failure, bool device_lost = false);

  void fail(core::error why, bool device_lost);
  core::metadata metadata_of(const measured& x, core::sync_index k) const;
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
        out.step = std::max(machine_.step(), first_step_ + hosted_->progress.load(std::memory_order_relaxed));
        out.stop_step = order_.stop_step;
        out.sync = machine_.parked_at().value_or(0);
        out.hp = to_wire(hp_);
        return out;
      },
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

// -- requests --------------------------------------------------------------------------------------------------------

/// `work(ctx, hosted)` on the slot's thread makes a T; `then(box)` goes on in the trainer's turn.
template <class T, class Work, class Then>
void trainer::ask_slot(Work work, Then then) {
  auto b = std::make_shared<box<T>>();
  slot_task task;
  task.work = [b, h = hosted_, work = std::move(work)](gpu::context& ctx) { b->value.emplace(work(ctx, *h)); };
  task.done = [b, me = trainer_self{self_}, request = ++request_, then = std::move(then)](task_outcome o) {
    b->outcome = std::move(o);
    anon_mail(resumption{request, [b, then] { then(*b); }}).send(me);
  };
  mail(self_, std::move(task)).send(setup_.slot);
}

void trainer::obtain(const state_ref& from, std::function<void(core::result<core::checkpoint_ptr>)> then) {
  if (from.node == setup_.blobs->node()) {
    auto x = setup_.blobs->get(from.blob);
    if (x)
      then(std::move(x));
    else
      then(core::error{errc::not_found, "state " + std::to_string(from.blob) + " is not held by this process any more"});
    return;
  }
  if (!setup_.fetch || from.host.empty()) {
    then(core::error{errc::refused, "the state lies on node " + std::to_string(from.node) +
                                        ", and there is no tensor transport between the two processes"});
    return;
  }
  setup_.fetch(from, [me = trainer_self{self_}, request = ++request_,
                      then = std::move(then)](core::result<core::checkpoint_ptr> x) {
    anon_mail(resumption{request, [then, x = std::move(x)] { then(x); }}).send(me);
  });
}

void trainer::start() {
  if (order_.state)
    obtain(order_.state, [this](core::result<core::checkpoint_ptr> x) {
      if (x)
        build(std::move(*x));
      else
        fail({x.error().code, "its state could not be had: " + x.error().text}, false);
    });
  else
    build(nullptr);
}

void trainer::build(core::checkpoint_ptr from) {
  trainer_mark mark;
  if (from) {
    auto read = read_mark(*from);
    if (!read)
      return fail(read.error(), false);
    mark = std::move(*read);
    hp_.update(mark.hp);
  }
  struct built {
    core::error failure;
    std::string signature;
  };
  const auto work = [workloads = setup_.workloads, type = order_.workload_type, text = order_.workload_options,
                     name = order_.name, seed = order_.seed, hp = hp_, mark, from](gpu::context& ctx, gpu::hosted& h) {
    built out;
    const auto options = nlohmann::json::parse(text, nullptr, false);
    if (options.is_discarded()) {
      out.failure = {errc::invalid_argument, "the options of workload \"" + type + "\" are not JSON: " + text};
      return out;
    }
    auto made = workloads->make(ctx, type, {name, seed, &options, hp});
    if (!made) {
      out.failure = made.error();
      return out;
    }
    auto w = std::move(*made);
    out.signature = w->signature();
    if (from) {
      if (auto ok = check_signature(*from, out.signature); !ok) {
        out.failure = ok.error();
        return out;
      }
      w->load(ctx, *from, gpu::workload::load_mode::everything);
      h.loss_sum = mark.loss_sum;
      h.loss_count = mark.loss_count;
    }
    h.work = std::move(w);
    return out;
  };
  ask_slot<built>(work, [this, mark](box<built>& b) {
    if (!b.outcome.failure.text.empty())
      return fail(b.outcome.failure, b.outcome.device_lost);
    if (!b.value->failure.text.empty())
      return fail(b.value->failure, false);
    signature_ = b.value->signature;
    first_step_ = mark.step;
    auto xs = machine_.built(mark.step, mark.syncs_done);
    tell(trainer_up{order_.who, order_.name, mark.step, next(), signature_, to_wire(hp_), trainer_actor{self_}});
    perform(std::move(xs));
  });
}

/// Saves what the trainer is now, so that another life goes on as this one would: one that is parked and waits for a decision
/// comes to its sync point again, and reports the same.
std::function<core::checkpoint_ptr(gpu::context&, gpu::hosted&)> trainer::saver() const {
  auto mark = trainer_mark{machine_.step(), machine_.syncs_done(), 0, 0, hp_, signature_, order_.who.incarnation};
  const auto parked = machine_.undecided_at();
  if (parked) {
    mark.syncs_done = *parked;
    mark.loss_sum = last_.loss_sum;
    mark.loss_count = last_.loss_count;
  }
  return [mark, parked](gpu::context& ctx, gpu::hosted& h) {
    auto now = mark;
    if (!parked) {
      now.loss_sum = h.loss_sum;
      now.loss_count = h.loss_count;
    }
    return save_state(ctx, *h.work, now);
  };
}

void trainer::measure_on_slot(bool save, std::function<void(measured)> then) {
  const auto work = [save = save ? saver() : nullptr, blobs = setup_.blobs](gpu::context& ctx, gpu::hosted& h) {
    measured out;
    if (save)
      out.state = blobs->put(save(ctx, h));
    out.eval = h.work->evaluate(ctx);
    out.loss_sum = std::exchange(h.loss_sum, 0);
    out.loss_count = std::exchange(h.loss_count, 0);
    out.compute_seconds = h.compute_seconds;
    out.wait_seconds = h.wait_seconds;
    out.memory_bytes = h.work->memory_bytes();
    return out;
  };
  ask_slot<measured>(work, [this, then = std::move(then)](box<measured>& b) {
    if (b.outcome.failure.text.empty())
      return then(std::move(*b.value));
    failure_ = b.outcome.failure;
    device_lost_ = b.outcome.device_lost;
    perform(machine_.task_ended(machine::outcome::fatal));
  });
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
  run.done = [this, me = trainer_self{self_}, request = ++request_](gpu::run_outcome o) {
    anon_mail(resumption{request, [this, o = std::move(o)] {
                           failure_ = o.failure;
                           device_lost_ = o.device_lost;
                           perform(machine_.run_ended(o.steps, !o.failure.text.empty()));
                         }})
        .send(me);
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

void trainer::work_on(const push_hyperparameters& x) {
  const auto changes = from_wire(x.changes);
  auto all = hp_;
  all.update(changes);
  if (auto fits = fits_control_plane(wire_size(all), "the hyperparameters of trainer " + order_.name); !fits) {
    answer(x, fits.error());
    return job_done(fits.error());
  }
  const auto work = [changes, check_only = x.check_only](gpu::context& ctx, gpu::hosted& h) -> core::result<void> {
    if (auto ok = h.work->check(changes); !ok || check_only)
      return ok;
    h.work->set(ctx, changes);
    return {};
  };
  ask_slot<core::result<void>>(work, [this, x, changes](box<core::result<void>>& b) {
    auto failure = b.outcome.failure;
    if (failure.text.empty() && !*b.value)
      failure = b.value->error();
    if (failure.text.empty() && !x.check_only)
      hp_.update(changes);
    answer(x, failure);
    job_done(failure, b.outcome.device_lost);
  });
}

void trainer::work_on(const export_state& x) {
  const auto work = [save = saver(), blobs = setup_.blobs](gpu::context& ctx, gpu::hosted& h) {
    return blobs->put(save(ctx, h));
  };
  ask_slot<state_ref>(work, [this, x](box<state_ref>& b) {
    answer(x, b.outcome.failure, b.value.value_or(state_ref{}));
    job_done(b.outcome.failure, b.outcome.device_lost);
  });
}

void trainer::work_on(const apply_decision& x) {
  const auto what = from_wire(x.what);
  core::error why;
  if (x.sources.size() > 1)
    why = {errc::invalid_argument, "a decision came with " + std::to_string(x.sources.size()) + " states: average them first"};
  else if (what.copy_from && x.sources.empty())
    why = {errc::invalid_argument, "a decision to copy came without a state"};
  if (!why.text.empty()) {
    answer(x, why);
    return job_done(why);
  }
  if (x.sources.empty())
    return apply(x, nullptr);
  obtain(x.sources.front(), [this, x](core::result<core::checkpoint_ptr> from) {
    if (from)
      return apply(x, std::move(*from));
    answer(x, from.error());
    job_done(from.error());
  });
}

void trainer::apply(const apply_decision& x, core::checkpoint_ptr from) {
  const auto what = from_wire(x.what);
  auto after = hp_;
  after.update(what.changes);
  struct applied {
    core::error failure;
    state_ref state;
  };
  auto mark = trainer_mark{machine_.step(), machine_.syncs_done(), 0, 0, after, signature_, order_.who.incarnation};
  const auto work = [changes = what.changes, from, own = signature_, save = x.save, mark, blobs = setup_.blobs](
                        gpu::context& ctx, gpu::hosted& h) {
    applied out;
    // Everything that can be refused comes before anything is changed.
    if (auto ok = h.work->check(changes); !ok) {
      out.failure = ok.error();
      return out;
    }
    if (from) {
      if (auto ok = check_signature(*from, own); !ok) {
        out.failure = ok.error();
        return out;
      }
      h.work->load(ctx, *from, gpu::workload::load_mode::model);
    }
    if (!changes.empty())
      h.work->set(ctx, changes);
    if (save)
      out.state = blobs->put(save_state(ctx, *h.work, mark));
    return out;
  };
  ask_slot<applied>(work, [this, x, after, reason = what.reason](box<applied>& b) {
    auto failure = b.outcome.failure;
    state_ref state;
    if (failure.text.empty()) {
      failure = b.value->failure;
      state = b.value->state;
    }
    if (failure.text.empty()) {
      hp_ = after;
      if (from_wire(x.what).act == core::decision::action::stop && stop_reason_.empty())
        stop_reason_ = reason;
    }
    answer(x, failure, state);
    job_done(failure, b.outcome.device_lost);
  });
}

void trainer::answer(const push_hyperparameters& x, const core::error& failure) {
  tell(push_ack{order_.who, x.request, to_wire(failure), machine_.step(), to_wire(hp_)});
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

next_sync trainer::next() const {
  const auto k = machine_.next_sync();
  return {k.has_value(), k.value_or(0)};
}

void trainer::note_parking() {
  const bool parked = machine_.parked_at().has_value();
  if (parked && !parked_since_) {
    parked_since_ = clock::now();
  } else if (!parked && parked_since_) {
    sync_seconds_ += std::chrono::duration<double>(clock::now() - *parked_since_).count();
    parked_since_.reset();
  }
}

} // namespace

trainer_actor spawn_trainer(caf::actor_system& sys, trainer_setup setup) {
  return sys.spawn([setup = std::move(setup)](self_pointer self) -> trainer_self::behavior_type {
    auto& st = state(self);
    on_exception(self);
    st.impl = std::make_unique<trainer>(self, setup);
    st.impl->start();
    return st.impl->behavior();
  });
}

} // namespace troupe::actors::internal
