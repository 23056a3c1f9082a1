#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "trainer_impl.hpp"
#include "trainer_states.hpp"

namespace troupe::actors::internal {

using core::errc;

namespace {

double seconds_since(std::chrono::steady_clock::time_point x) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - x).count();
}

/// Into host memory and out again, and the messages.
double transfer_seconds(std::uint64_t bytes) {
  constexpr double bytes_per_second = 1e9, messages = 1e-3;
  return messages + 2 * static_cast<double>(bytes) / bytes_per_second;
}

} // namespace

// -- requests --------------------------------------------------------------------------------------------------------

template <class T, class Work, class Then>
void trainer::ask_slot(Work work, Then then) {
  ask_slot<T>(setup_.slot, hosted_, std::move(work), std::move(then));
}

/// `work(ctx, hosted)` on the slot's thread makes a T; `then(box)` goes on in the trainer's turn.
template <class T, class Work, class Then>
void trainer::ask_slot(const slot_actor& slot, std::shared_ptr<gpu::hosted> hosted, Work work, Then then) {
  auto b = std::make_shared<box<T>>();
  slot_task task;
  task.work = [b, h = std::move(hosted), work = std::move(work)](gpu::context& ctx) { b->value.emplace(work(ctx, *h)); };
  task.done = [b, me = outside{trainer_self{self_}}, request = ++request_, then = std::move(then)](task_outcome o) {
    b->outcome = std::move(o);
    anon_mail(resumption{request, [b, then] { then(*b); }}).send(me.get());
  };
  mail(self_, std::move(task)).send(slot);
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
  setup_.fetch(from, [me = outside{trainer_self{self_}}, request = ++request_,
                      then = std::move(then)](core::result<core::checkpoint_ptr> x) {
    anon_mail(resumption{request, [then, x = std::move(x)] { then(x); }}).send(me.get());
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
  ask_slot<built>(builder(std::move(from), mark), [this, mark](box<built>& b) {
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

/// Makes the workload, as `from` has it if that is given.
std::function<trainer::built(gpu::context&, gpu::hosted&)> trainer::builder(core::checkpoint_ptr from,
                                                                            const trainer_mark& mark) const {
  return [workloads = setup_.workloads, type = order_.workload_type, text = order_.workload_options,
                     name = order_.name, seed = order_.seed, hp = hp_, fuse = order_.fusion, mark, from](gpu::context& ctx, gpu::hosted& h) {
    const auto began = clock::now();
    built out;
    const auto options = nlohmann::json::parse(text, nullptr, false);
    if (options.is_discarded()) {
      out.failure = {errc::invalid_argument, "the options of workload \"" + type + "\" are not JSON: " + text};
      return out;
    }
    auto made = workloads->make(ctx, type, {name, seed, &options, hp, fuse});
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
    h.move_seconds = seconds_since(began) + transfer_seconds(w->memory_bytes());
    h.work = std::move(w);
    return out;
  };
}

/// Saves what the trainer is now, so that another life goes on as this one would: one that is parked and waits for a decision
/// comes to its sync point again, and reports the same.
std::function<core::checkpoint_ptr(gpu::context&, gpu::hosted&)> trainer::saver(bool copied) const {
  auto mark = trainer_mark{machine_.step(), machine_.syncs_done(), 0, 0, hp_, signature_, order_.who.incarnation};
  const auto parked = machine_.undecided_at();
  if (parked) {
    mark.syncs_done = *parked;
    mark.loss_sum = last_.loss_sum;
    mark.loss_count = last_.loss_count;
  }
  return [mark, parked, copied](gpu::context& ctx, gpu::hosted& h) {
    auto now = mark;
    if (!parked) {
      now.loss_sum = h.loss_sum;
      now.loss_count = h.loss_count;
    }
    return save_state(ctx, *h.work, now, copied);
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

// -- jobs ------------------------------------------------------------------------------------------------------------

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
  const auto work = [save = saver(x.copied), blobs = setup_.blobs](gpu::context& ctx, gpu::hosted& h) {
    return blobs->put(save(ctx, h));
  };
  ask_slot<state_ref>(work, [this, x](box<state_ref>& b) {
    answer(x, b.outcome.failure, b.value.value_or(state_ref{}));
    job_done(b.outcome.failure, b.outcome.device_lost);
  });
}

/// The state goes from the old slot to the new one. The old workload stays until the new one is there: if that
/// cannot be built, the trainer goes on where it was.
void trainer::work_on(const move_trainer& x) {
  struct leaving {
    core::checkpoint_ptr state;
    double seconds = 0; ///< saving took
    double compute_seconds = 0, wait_seconds = 0, step_seconds = 0;
  };
  const auto save_it = [save = saver(true)](gpu::context& ctx, gpu::hosted& h) {
    const auto began = clock::now();
    leaving out{save(ctx, h), 0, h.compute_seconds, h.wait_seconds, h.step_seconds};
    out.seconds = seconds_since(began);
    return out;
  };
  ask_slot<leaving>(save_it, [this, x](box<leaving>& b) {
    if (!b.outcome.failure.text.empty()) {
      answer(x, b.outcome.failure);
      return job_done(b.outcome.failure, b.outcome.device_lost);
    }
    const auto mark = read_mark(*b.value->state);
    if (!mark) {
      answer(x, mark.error());
      return job_done(mark.error());
    }
    auto there = make_hosted(x.worker, setup_.number);
    const auto build_it = [make = builder(b.value->state, *mark), was = *b.value](gpu::context& ctx, gpu::hosted& h) {
      const auto began = clock::now();
      auto out = make(ctx, h);
      h.compute_seconds = h.settled_at = was.compute_seconds;
      h.wait_seconds = was.wait_seconds;
      h.step_seconds = was.step_seconds;
      h.move_seconds = was.seconds + seconds_since(began) + transfer_seconds(0);
      return out;
    };
    ask_slot<built>(x.slot, there, build_it, [this, x, there](box<built>& made) {
      auto failure = made.outcome.failure; // a lost device is the other slot's
      if (failure.text.empty())
        failure = made.value->failure;
      answer(x, failure);
      if (failure.text.empty()) {
        setup_.order.slot = x.index;
        setup_.worker = x.worker;
        setup_.slot = x.slot;
        hosted_ = there;
        first_step_ = machine_.step();
      }
      job_done(failure);
    });
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

} // namespace troupe::actors::internal
