#include "coordinator.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

#include "troupe/core/refill.hpp"

namespace troupe::actors::internal {

namespace {
/// Why trainers stop when the run is left.
const std::string interrupted = "interrupted";
} // namespace

// -- beginning a life
// ----------------------------------------------------------------------------------------------------

/// Finds the newest state of `t` and has it placed with that.
void coordinator::launch(trainer& t) {
  const auto id = t.id;
  const auto incarnation = t.incarnation;
  if (t.kept) {
    launch_from(id, incarnation, t.kept);
    return;
  }
  if (t.saved.file.empty()) {
    launch_from(id, incarnation, {});
    return;
  }
  host_.store->read_state(t.saved.file, [me = self_handle(), id, incarnation, file = t.saved.file,
                                         host = settings_.host](core::result<core::checkpoint_ptr> state) {
    state_ref ref;
    if (state)
      ref = host->put(*state);
    post(me, [id, incarnation, file, ref, failure = state ? core::error{} : state.error()](coordinator& c) {
      auto& t = c.trainers_[id];
      if (t.incarnation != incarnation || !is_live(t.state)) {
        c.drop(ref);
      } else if (!failure.text.empty() && t.saved.file != file) {
        c.launch(t); // a newer set replaced that file meanwhile
      } else {
        if (!failure.text.empty()) {
          c.event("checkpoint_unusable", {{"trainer", id}, {"file", file}, {"reason", failure.text}});
          t.saved = {};
        }
        t.loading = ref;
        c.launch_from(id, incarnation, ref);
      }
    });
  });
}

void coordinator::launch_from(core::trainer_id id, std::uint32_t incarnation, const state_ref& from) {
  auto& t = trainers_[id];
  if (t.incarnation != incarnation || !is_live(t.state) || ended_)
    return;
  supervisor::order x;
  x.pin = t.spec.slot;
  auto& h = x.what;
  h.who = ref_of(t);
  h.name = t.spec.name;
  h.workload_type = t.spec.workload_type;
  h.workload_options = t.spec.workload_options;
  h.hp = to_wire(t.spec.hp);
  h.seed = t.spec.seed;
  h.stop_step = t.spec.stop_step;
  h.schedule = to_wire(exp_.sync.schedule);
  h.asynchronous = free_running_;
  h.fusion = exp_.fusion;
  h.priority = t.spec.priority;
  h.barrier = !exp_.sync.asynchronous;
  h.movable = exp_.rebalance && t.spec.slot.empty();
  h.state = from;
  const auto size = h.workload_options.size() + wire_size(t.spec.hp) + 16 * h.schedule.at_steps.size() + 512;
  if (auto fits = fits_control_plane(size, "the description of trainer " + t.spec.name); !fits) {
    give_up(t, fits.error());
    return;
  }
  supervise([x](supervisor& s) { s.start(x); });
}

void coordinator::begin_all_if_ready() {
  if (begun_ || !launched_ || !starting_first_.empty())
    return;
  begun_ = true;
  for (auto& t : trainers_)
    if (t.hdl)
      begin(t);
  if (exp_.sync.schedule.every_seconds > 0)
    set_alarm(alarm_kind::clock, std::chrono::duration_cast<clock::duration>(
                                     std::chrono::duration<double>(exp_.sync.schedule.every_seconds)));
  host_.tell([s = status_now()](run_listener& l) { l.on_started(s); });
  keep_slots();
  wake_for_time();
  wake_for_saving();
}

// -- enough
// --------------------------------------------------------------------------------------------------------------

/// Tells of rules that will never fire, because nobody reports the number that they look at.
void coordinator::check_rules(trainer& t, const core::metadata& m) {
  if (std::exchange(t.rules_checked, true))
    return;
  --unchecked_;
  const auto tell = [&](const std::string& rule, std::string_view metric) {
    if (const auto why = m.lacks(metric); !why.empty())
      event("stop_rule_is_idle", {{"trainer", t.id}, {"name", t.spec.name}, {"reason", rule + " never fires: " + why}});
  };
  if (t.spec.stop.target)
    tell("its stop.target", t.spec.stop.target->metric);
  if (t.spec.stop.plateau)
    tell("its stop.plateau", t.spec.stop.plateau->metric);
  if (!exp_.stop.target)
    return;
  // Of the experiment, one trainer that reports it is enough.
  target_is_reported_ = target_is_reported_ || m.lacks(exp_.stop.target->metric).empty();
  if (unchecked_ == 0 && !target_is_reported_)
    tell("of the experiment, stop.target", exp_.stop.target->metric);
}

/// A decision to stop if the trainer has trained enough; and whether all have.
std::optional<core::decision> coordinator::look_at(trainer& t, const core::metadata& m) {
  check_rules(t, m);
  const auto why = t.watch.observe(m);
  const auto& rules = exp_.stop;
  if (rules.target && rules.target->reached(m))
    stop_all("the experiment reached its target: " + t.spec.name + " has " + rules.target->text());
  if (rules.steps > 0 && reported_steps_ >= rules.steps) // not what a status happened to find: a run can be repeated
    stop_all("the experiment's " + std::to_string(rules.steps) + " steps are done");
  if (!why)
    return std::nullopt;
  t.enough = true;
  if (t.stop_reason.empty())
    t.stop_reason = *why; // should it fail and be restarted before it hears of it
  return core::decision{core::decision::action::stop, {}, {}, {}, *why};
}

void coordinator::set_newest(trainer& t, const core::metadata& m) {
  reported_steps_ += m.step - (t.newest ? t.newest->step : 0); // a new life may begin further back
  t.newest = m;
}

void coordinator::stop_all(const std::string& reason) {
  if (std::exchange(all_stopped_, true))
    return;
  for (auto& t : trainers_) {
    if (!is_live(t.state) || !t.stop_reason.empty())
      continue;
    stop_now(t, reason);
  }
}

void coordinator::stop_now(trainer& t, const std::string& reason) {
  t.stop_reason = reason;
  if (t.hdl && begun_)
    command(t, stop_training{{}, true, reason});
  else if (t.waits_for_room)
    stop_waiting(t);
}

/// Sets the alarm for whose time is over next.
void coordinator::wake_for_time() {
  auto next = clock::time_point::max();
  if (exp_.stop.seconds > 0)
    next = began_ + std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(exp_.stop.seconds));
  for (const auto& t : trainers_)
    if (t.stop_at && is_live(t.state) && t.stop_reason.empty())
      next = std::min(next, *t.stop_at);
  const auto now = clock::now();
  if (next != clock::time_point::max())
    set_alarm(alarm_kind::time, std::min<clock::duration>(next - now, std::chrono::hours(24 * 365)));
}

void coordinator::on_time() {
  const auto now = clock::now();
  const auto seconds = std::chrono::duration<double>(now - began_).count();
  const auto text = [](double s) {
    auto out = std::to_string(s);
    out.erase(out.find_last_not_of('0') + 1);
    if (out.back() == '.')
      out.pop_back();
    return out + " s are over";
  };
  for (auto& t : trainers_)
    if (t.stop_at && *t.stop_at <= now && is_live(t.state) && t.stop_reason.empty())
      stop_now(t, "its " + text(t.spec.stop.seconds));
  if (exp_.stop.seconds > 0 && seconds >= exp_.stop.seconds)
    stop_all("the experiment's " + text(exp_.stop.seconds));
  else
    wake_for_time();
}

void coordinator::begin(trainer& t) {
  if (t.wants_pause)
    command(t, pause_training{});
  send_pushes(t);
  t.state = t.wants_pause ? trainer_state::paused : trainer_state::running;
  if (t.spec.stop.seconds > 0 && !t.stop_at) {
    t.stop_at = clock::now() + std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(t.spec.stop.seconds));
  }
  if (t.stop_reason.empty())
    command(t, begin_training{});
  else
    command(t, stop_training{{}, true, t.stop_reason});
}

core::trainer_id coordinator::add(core::trainer_spec spec, const std::string& text) {
  trainer t;
  t.id = static_cast<core::trainer_id>(trainers_.size());
  t.spec = spec;
  t.hp = spec.hp;
  t.watch = core::stop_watch(spec.stop);
  exp_.trainers.push_back(std::move(spec));
  trainers_.push_back(std::move(t));
  ++live_;
  ++unchecked_;
  all_stopped_ = false;
  auto& added = trainers_.back();
  engine_.expected(added.id);
  event("trainer_added", {{"trainer", added.id}, {"name", added.spec.name}, {"text", text}});
  return added.id;
}

// -- failing
// -----------------------------------------------------------------------------------------------------------

void coordinator::on_failure(trainer& t, const core::error& why, bool blameless) {
  t.failure = why;
  if (interrupting_) {
    end(t, trainer_state::interrupted);
    check_end();
    return;
  }
  const bool again = blameless || t.restarts < exp_.failures.max_restarts;
  event("trainer_failed", {{"trainer", t.id},
                           {"name", t.spec.name},
                           {"incarnation", t.incarnation},
                           {"step", t.step},
                           {"reason", why.text},
                           {"blameless", blameless},
                           {"final", !again}});
  if (!again) {
    give_up(t, why, true);
    return;
  }
  if (!blameless)
    ++t.restarts;
  const auto was = t.incarnation++;
  t.hdl = nullptr;
  t.state = trainer_state::restarting;
  leave_all(t, why.text);
  acknowledge(operation::kind::resume, t, t.step); // its new life simply begins
  starting_first_.erase(t.id); // the engine knows from here on that it is coming
  perform(engine_.member_down(t.id, was, true, clock::now()));
  launch(t);
  begin_all_if_ready();
}

void coordinator::on_waiting(const trainer_ref& who, const core::error& why) {
  auto* t = current(who);
  if (!t || std::exchange(t->waits_for_room, true))
    return;
  event("trainer_waits", {{"trainer", t->id}, {"name", t->spec.name}, {"step", t->step}, {"reason", why.text}});
  // Those who would have to leave may be waiting at a sync point: it must not be for this one.
  if (const auto known = engine_.incarnation_of(t->id))
    perform(engine_.member_down(t->id, *known, false, clock::now()));
  keep_pushes(*t);
  if (t->wants_pause)
    acknowledge(operation::kind::pause, *t, t->step);
  if (!t->stop_reason.empty())
    stop_waiting(*t);
}

/// Fewer others there cannot be: from here on it is a failure like any other.
void coordinator::on_no_room(const trainer_ref& who, const core::error& why) {
  auto* t = current(who);
  if (!t)
    return;
  t->waits_for_room = false;
  supervise([id = t->id](supervisor& s) { s.forget_crowding(id); });
  if (t->restarts >= exp_.failures.max_restarts) {
    give_up(*t, {core::errc::out_of_memory, t->failure.text + "; " + why.text});
    return;
  }
  ++t->restarts;
  drop(std::exchange(t->loading, {}));
  launch(*t);
}

/// A trainer that waits for room and is to stop: nothing of it is anywhere but its last checkpoint.
void coordinator::stop_waiting(trainer& t) {
  supervise([ref = ref_of(t)](supervisor& s) { s.forget(ref, false); });
  nlohmann::json details{{"trainer", t.id},
                         {"name", t.spec.name},
                         {"incarnation", t.incarnation},
                         {"step", t.step},
                         {"stopped", true},
                         {"reason", t.stop_reason}};
  if (t.newest)
    details["metadata"] = core::to_json(*t.newest);
  event("trainer_finished", std::move(details));
  t.reason = t.stop_reason;
  end(t, trainer_state::stopped);
  check_end();
}

/// What waited for its state waits no more.
void coordinator::leave_all(trainer& t, const std::string& why) {
  replaying_.erase(t.id);
  cancel_exports(t, why);
  leave_savings(t);
  drop(std::exchange(t.loading, {}));
  for (const auto& x : std::exchange(t.sources, {}))
    drop(x);
}

void coordinator::give_up(trainer& t, const core::error& why, bool told) {
  t.failure = why;
  const auto was = t.incarnation;
  if (!told)
    event("trainer_failed", {{"trainer", t.id},
                             {"name", t.spec.name},
                             {"incarnation", was},
                             {"step", t.step},
                             {"reason", why.text},
                             {"final", true}});
  supervise([ref = ref_of(t)](supervisor& s) { s.forget(ref, true); });
  end(t, trainer_state::failed);
  // Not where it was to stop in any case, and so is the run.
  if (exp_.failures.refill && !exp_.failures.fail_fast && !interrupt_asked_ && t.stop_reason.empty())
    refill(t);
  perform(engine_.member_down(t.id, was, false, clock::now()));
  if (exp_.failures.fail_fast && run_failure_.text.empty()) {
    run_failure_ = {why.code, "trainer " + t.spec.name + " failed: " + why.text};
    interrupt();
  }
  begin_all_if_ready();
  check_end();
}

/// Another one takes the place of a trainer that failed for good.
void coordinator::refill(const trainer& gone) {
  std::vector<core::metadata> reports;
  for (const auto& t : trainers_)
    if (is_live(t.state) && t.newest)
      reports.push_back(*t.newest);
  core::refill_input in;
  in.failed = gone.id;
  in.hp = gone.hp;
  in.signature = gone.signature;
  in.reports = reports;
  in.signature_of = [this](core::trainer_id t) -> std::string_view { return trainers_.at(t).signature; };
  in.fruitless = gone.step > gone.place_step ? 0 : gone.fruitless;
  core::random_stream rng(exp_.seed, "refill", gone.id);
  const auto plan = core::plan_refill(in, exp_.space, {}, rng);
  if (!plan) {
    event("place_left_empty",
          {{"trainer", gone.id},
           {"name", gone.spec.name},
           {"reason", in.fruitless >= core::max_fruitless_refills
                          ? std::to_string(in.fruitless) + " in a row came no further than step " +
                                std::to_string(gone.place_step)
                          : "there is neither a healthy trainer to copy nor a search space to draw from"}});
    return;
  }
  const trainer* donor = plan->copy_from ? &trainers_.at(*plan->copy_from) : nullptr;
  auto spec = donor ? donor->spec : gone.spec;
  const auto base = gone.spec.name.substr(0, gone.spec.name.rfind("-again"));
  const auto taken = [this](const std::string& name) {
    return std::any_of(trainers_.begin(), trainers_.end(),
                       [&](const trainer& t) { return t.spec.name == name; });
  };
  unsigned n = 1;
  while (taken(base + "-again" + std::to_string(n)))
    ++n;
  spec.name = base + "-again" + std::to_string(n);
  spec.seed = core::derive_seed(exp_.seed, spec.name);
  spec.hp = plan->hp;
  nlohmann::json text{{"name", spec.name},
                      {"seed", spec.seed},
                      {"stop_step", spec.stop_step},
                      {"workload", nlohmann::json::parse(spec.workload_options)},
                      {"hyperparameters", core::to_json(spec.hp)}};
  text["workload"]["type"] = spec.workload_type;
  if (!spec.slot.empty())
    text["slot"] = spec.slot;
  if (spec.priority != 0)
    text["priority"] = spec.priority;
  if (!spec.stop.empty())
    text["stop"] = core::to_json(spec.stop);
  event("trainer_refilled", {{"trainer", gone.id}, {"by", spec.name}, {"reason", plan->reason}});
  auto& fresh = trainers_[add(spec, text.dump())];
  fresh.place_step = std::max(gone.step, gone.place_step);
  fresh.fruitless = in.fruitless + 1;
  if (!donor || !(donor->kept || donor->hdl)) {
    launch(fresh);
    return;
  }
  // Its weights come from the donor, its hyperparameters are its own.
  fresh.first_push = plan->hp;
  const auto take = [this, id = fresh.id](const state_ref& from, bool ours) {
    host_.fetch(from, [me = self_handle(), host = settings_.host, id, from,
                       ours](core::result<core::checkpoint_ptr> state) {
      const auto ref = state ? host->put(*state) : state_ref{};
      post(me, [id, ref, from, ours](coordinator& c) {
        if (ours)
          c.drop(from);
        c.trainers_[id].loading = ref;
        c.launch_from(id, c.trainers_[id].incarnation, ref);
      });
    });
  };
  if (donor->kept)
    take(donor->kept, false);
  else
    export_from(trainers_[donor->id], 0, [this, take, id = fresh.id](core::result<state_ref> x) {
      if (x)
        take(*x, true);
      else
        launch_from(id, trainers_[id].incarnation, {});
    });
}

// -- ending
// --------------------------------------------------------------------------------------------------------------

void coordinator::end(trainer& t, trainer_state as) {
  if (!is_live(t.state))
    return;
  t.state = as;
  t.hdl = nullptr;
  --live_;
  unchecked_ -= t.rules_checked ? 0 : 1;
  starting_first_.erase(t.id);
  leave_all(t, "it ended");
  leave_operations(t);
  if (as != trainer_state::interrupted && !ending_.contains(t.id)) { // until its last state is safe it may begin again
    drop(std::exchange(t.kept, {}));
    t.replay.clear();
  }
}

void coordinator::on_finished(const trainer_finished& x) {
  auto* t = current(x.from);
  if (!t) {
    drop(x.state);
    return;
  }
  auto m = from_wire(x.what);
  m.trainer = t->id;
  m.name = t->spec.name;
  m.incarnation = t->incarnation;
  if (t->newest && t->newest->step == m.step && std::isnan(m.loss))
    m.loss = t->newest->loss; // it has made no step since
  t->step = m.step;
  t->hp = m.hp;
  set_newest(*t, m);
  if (!exp_.sync.asynchronous)
    barriers_.finish(m);
  supervise([ref = x.from](supervisor& s) { s.forget(ref, false); });
  acknowledge(operation::kind::stop, *t, m.step);
  if (interrupting_ && x.stopped && x.reason == interrupted) { // not by a decision or a stop of before
    for (auto& [number, s] : savings_)
      if (s.why == occasion::leaving && s.waiting.contains(t->id) && x.state) {
        s.held.emplace_back(t->id, x.state);
        add_state(number, *t, x.state, t->step);
        break;
      }
    end(*t, trainer_state::interrupted);
    check_end();
    return;
  }
  const auto was = t->incarnation;
  if (x.stopped)
    t->reason = x.reason;
  ending_.insert(t->id);
  end(*t, x.stopped ? trainer_state::stopped : trainer_state::finished);
  save_final(*t, x.state,
             {{"trainer", t->id},
              {"name", t->spec.name},
              {"incarnation", was},
              {"step", m.step},
              {"stopped", x.stopped},
              {"reason", x.reason},
              {"metadata", core::to_json(m)}});
  if (!interrupting_)
    perform(engine_.member_finished(t->id, was, clock::now()));
  check_end();
}

void coordinator::check_end() {
  if (launched_ && live_ == 0 && savings_.empty() && writes_in_flight_ == 0)
    finish_run();
}

void coordinator::interrupt() {
  if (ended_ || interrupt_asked_)
    return;
  interrupt_asked_ = true;
  if (!launched_) {
    finish_run();
    return;
  }
  perform({}); // at once unless a round is being applied
}

void coordinator::leave_for_want_of_slots(const trainer& t, const core::error& why) {
  if (no_slot_.text.empty() && !interrupt_asked_)
    no_slot_ = {why.code, why.text + (t.failure.text.empty() ? "" : "; " + t.failure.text)};
  interrupt();
}

/// Nobody is between decision and resumption: everyone stops where it is.
void coordinator::interrupt_now() {
  interrupting_ = true;
  const auto& why = run_failure_.text.empty() ? no_slot_ : run_failure_;
  event("interrupted", {{"reason", why.text.empty() ? "asked to leave" : why.text}});
  begin_saving(occasion::leaving);
  for (auto& t : trainers_) {
    if (!is_live(t.state))
      continue;
    if (t.hdl) {
      command(t, stop_training{{}, true, interrupted});
    } else {
      supervise([ref = ref_of(t)](supervisor& s) { s.forget(ref, true); });
      end(t, trainer_state::interrupted);
    }
  }
  check_end();
}

void coordinator::fail_run(const core::error& why) {
  if (run_failure_.text.empty())
    run_failure_ = why;
  finish_run();
}

// -- states
// --------------------------------------------------------------------------------------------------------------

void coordinator::drop(const state_ref& x) {
  if (!x)
    return;
  if (x.node == 0)
    host_.blobs->drop(x.blob);
  else
    supervise([node = x.node, blob = x.blob](supervisor& s) { s.drop_state(node, blob); });
}

/// `x` is where its next life begins, should there be one.
void coordinator::keep(trainer& t, const state_ref& x, std::optional<core::sync_index> k) {
  const auto old = std::exchange(t.kept, x);
  const bool being_fetched = std::any_of(savings_.begin(), savings_.end(), [&](const auto& s) {
    return std::any_of(s.second.held.begin(), s.second.held.end(),
                       [&](const auto& h) { return h.second == old; });
  });
  if (!being_fetched) // otherwise it is dropped when its set is written
    drop(old);
  t.kept_step = t.step;
  t.kept_sync = k;
  t.pushed = std::exchange(t.pushed_after, {});
  t.first_push = {};
  if (k)
    t.replay.erase(t.replay.begin(), t.replay.upper_bound(*k));
}

} // namespace troupe::actors::internal
