#include "coordinator.hpp"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "averaging.hpp"

namespace troupe::actors::internal {

void coordinator::perform(core::sync_engine::actions as) {
  for (auto& a : as) {
    if (ended_)
      return;
    std::visit([this](auto& x) { act(x); }, a);
  }
  using phase = core::sync_engine::phase;
  const auto now = engine_.current_phase();
  if (interrupt_asked_ && !interrupting_ && !ended_ && (now == phase::idle || now == phase::collecting))
    interrupt_now();
  else
    save_if_due();
}

// -- deciding
// ------------------------------------------------------------------------------------------------------------

/// Once for each report; one by one, when as many reports have come as there are trainers.
bool coordinator::saves_at(core::sync_index k) {
  const std::uint64_t every = exp_.checkpoints.every_syncs;
  if (!one_by_one_)
    return save_due_ || (every > 0 && (std::uint64_t{k} + 1) % every == 0);
  if (save_due_ && sets_under_way() < max_sets_in_flight)
    return true;
  if (every == 0 || ++reports_since_save_ < every * live_ || sets_under_way() >= max_sets_in_flight)
    return false;
  reports_since_save_ = 0;
  return true;
}

/// The newest report of each live trainer.
std::vector<core::metadata> coordinator::newest_reports() const {
  std::vector<core::metadata> out;
  for (const auto& x : trainers_)
    if (is_live(x.state) && x.newest)
      out.push_back(*x.newest);
  return out;
}

void coordinator::remember(const core::metadata& m) {
  if (!host_.policy->wants_history())
    return;
  const auto [i, fresh] = in_history_.try_emplace({m.trainer, m.sync}, history_.size());
  if (fresh)
    history_.push_back(m);
  else
    history_[i->second] = m;
}

core::policy_input coordinator::input_of(core::sync_index k, const std::vector<core::metadata>& reports) {
  using standing = core::trainer_standing;
  standing_.clear();
  for (const auto& t : trainers_)
    standing_.push_back(t.state == trainer_state::held       ? standing::held
                        : t.state == trainer_state::finished ? standing::finished
                        : t.state == trainer_state::stopped  ? standing::stopped
                        : t.state == trainer_state::failed   ? standing::failed
                                                             : standing::running);
  core::policy_input in;
  in.index = k;
  in.reports = reports;
  in.standing = standing_;
  in.history = history_;
  in.signature = [this](core::trainer_id t) -> std::string_view {
    return t < trainers_.size() ? std::string_view(trainers_[t].signature) : std::string_view();
  };
  return in;
}

std::map<core::trainer_id, core::decision> coordinator::ask_policy(const core::policy_input& in,
                                                                   std::uint64_t stream) {
  std::map<core::trainer_id, core::decision> decisions;
  try {
    core::random_stream rng(exp_.seed, "policy", stream);
    decisions = host_.policy->decide(in, rng);
    core::sanitize(decisions, in);
  } catch (const std::exception& e) {
    // A user's policy may have defects: the sync point goes on without it, and says so.
    decisions.clear();
    event("policy_failed", {{"index", in.index}, {"reason", e.what()}});
  }
  return decisions;
}

std::shared_ptr<sync_point_event>
coordinator::make_event(core::sync_index k, std::vector<core::metadata> reports,
                        std::map<core::trainer_id, core::decision> decisions) const {
  auto x = std::make_shared<sync_point_event>();
  x->index = k;
  x->reports = std::move(reports);
  x->decisions = std::move(decisions);
  if (host_.options.listener)
    for (const auto& r : x->reports)
      x->names[r.trainer] = r.name;
  return x;
}

void coordinator::act(core::sync_engine::decide& x) {
  round_ = {};
  round_.index = x.index;
  round_.saves = saves_at(x.index);
  for (const auto& r : x.reports)
    remember(r);
  std::map<core::trainer_id, core::decision> decisions;
  if (one_by_one_ && !x.last_call) {
    const auto reports = newest_reports();
    auto in = input_of(x.index, reports);
    in.only = x.reports.front().trainer;
    // Each trainer's decision at each of its sync points has numbers of its own.
    decisions = ask_policy(in, (std::uint64_t{*in.only} + 1) << 32 | x.index);
  } else {
    auto in = input_of(x.index, x.reports);
    in.last_call = x.last_call;
    decisions = ask_policy(in, x.index);
  }
  if (!exp_.sync.asynchronous && !x.last_call)
    barriers_.add(x.reports);
  for (const auto& r : x.reports)
    if (auto enough = look_at(trainers_[r.trainer], r))
      decisions[r.trainer] = std::move(*enough);
  round_.what = make_event(x.index, std::move(x.reports), decisions);
  round_.decisions = std::move(decisions);
  if (round_.saves)
    for (const auto& r : round_.what->reports)
      round_.decisions.try_emplace(r.trainer);
  record_round();
}

/// Nobody acts on a decision before it is written to the record.
void coordinator::record_round() {
  round_.waits = false;
  if (set_comes_first() || (round_.saves && sets_in_flight_ >= max_sets_in_flight)) {
    round_.waits = true;
    return;
  }
  ++writes_in_flight_;
  host_.store->sync_point(round_.what, [me = self_handle(), k = round_.index](core::result<void> ok) {
    post(me, [k, ok](coordinator& c) {
      --c.writes_in_flight_;
      if (c.ended_)
        return;
      if (!ok) {
        c.fail_run(
            {ok.error().code, "sync point " + std::to_string(k) + " cannot be recorded: " + ok.error().text});
        return;
      }
      c.host_.tell_sync_point(c.round_.what);
      c.perform(c.engine_.decided(k, std::move(c.round_.decisions), clock::now()));
      c.check_end();
    });
  });
}

// -- weights
// -------------------------------------------------------------------------------------------------------------

void coordinator::act(core::sync_engine::export_state& x) {
  auto& t = trainers_[x.trainer];
  if (t.incarnation != x.incarnation || !t.hdl)
    return; // its end is on the way to the engine
  export_from(t, x.index, [this, x](core::result<state_ref> state) {
    if (!state)
      event("export_failed", {{"trainer", x.trainer}, {"index", x.index}, {"reason", state.error().text}});
    else if (engine_.open_round() == x.index)
      round_.exports[x.trainer] = *state;
    else
      drop(*state);
    perform(engine_.exported(x.index, x.trainer, x.incarnation, state.has_value(), clock::now()));
  }, x.copied ? purpose::copy : purpose::other);
}

void coordinator::average(std::vector<state_ref> sources, std::function<void(core::result<state_ref>)> then) {
  struct gathered {
    std::vector<core::checkpoint_ptr> states;
    std::size_t missing;
    core::error failure;
  };
  auto g = std::make_shared<gathered>();
  g->states.resize(sources.size());
  g->missing = sources.size();
  auto finish = [me = self_handle(), host = settings_.host, g, then](coordinator&) {
    if (!g->failure.text.empty()) {
      then(g->failure);
      return;
    }
    // Long work: not in an actor's turn.
    host->store->post([me, host, g, then] {
      auto mean = internal::average(g->states);
      g->states.clear();
      const auto ref =
          mean ? core::result<state_ref>(host->put(*mean)) : core::result<state_ref>(mean.error());
      post(me, [then, ref](coordinator&) { then(ref); });
    });
  };
  for (std::size_t i = 0; i < sources.size(); ++i)
    host_.fetch(sources[i], [me = self_handle(), g, i, finish](core::result<core::checkpoint_ptr> x) {
      post(me, [g, i, finish, x](coordinator& c) {
        if (x)
          g->states[i] = *x;
        else
          g->failure = x.error();
        if (--g->missing == 0)
          finish(c);
      });
    });
}

/// One mean for all that take the same one.
void coordinator::make_mean(const std::vector<core::trainer_id>& of) {
  std::vector<state_ref> sources;
  for (const auto t : of)
    sources.push_back(round_.exports.at(t));
  average(std::move(sources), [this, of, k = round_.index](core::result<state_ref> mean) {
    if (round_.index != k || engine_.open_round() != k) {
      if (mean)
        drop(*mean);
      return;
    }
    if (mean)
      round_.means[of] = *mean;
    else
      event("average_failed", {{"index", k}, {"reason", mean.error().text}});
    for (auto& x : std::exchange(round_.for_mean[of], {})) {
      auto& t = trainers_[x.trainer];
      if (t.incarnation != x.incarnation || !t.hdl)
        continue;
      if (!mean) {
        x.what.average_of.clear();
        x.what.changes = {};
        x.what.reason += "; could not be averaged: " + mean.error().text;
      }
      // A held one is parked at an older sync point than this.
      send_decision(t, x.index, x.what, mean ? std::vector{*mean} : std::vector<state_ref>{}, round_.saves);
    }
  });
}

// -- applying
// ------------------------------------------------------------------------------------------------------------

void coordinator::send_decision(trainer& t, core::sync_index k, core::decision what,
                                std::vector<state_ref> sources, bool saves) {
  apply_decision c;
  c.sync = k;
  c.save = (saves || takes_weights(what)) && what.act == core::decision::action::go_on;
  if (!what.average_of.empty()) { // to a trainer a mean is a state like any other
    what.copy_from = what.average_of.front();
    what.average_of.clear();
  }
  c.what = to_wire(what);
  c.sources = std::move(sources);
  t.state = trainer_state::parked;
  t.deciding = std::move(what);
  command(t, std::move(c));
}

void coordinator::act(core::sync_engine::apply& x) {
  auto& t = trainers_[x.trainer];
  if (t.incarnation != x.incarnation || !t.hdl)
    return;
  if (t.enough) { // its state is worth keeping; the engine hears that it finished
    command(t, stop_training{{}, true, x.what.reason});
    return;
  }
  if (!x.what.average_of.empty()) {
    const auto of = x.what.average_of;
    if (const auto mean = round_.means.find(of); mean != round_.means.end()) {
      send_decision(t, x.index, x.what, {mean->second}, round_.saves);
      return;
    }
    auto& waiting = round_.for_mean[of];
    waiting.push_back(x);
    if (waiting.size() == 1)
      make_mean(of);
    return;
  }
  std::vector<state_ref> sources;
  if (x.what.copy_from)
    sources.push_back(round_.exports.at(*x.what.copy_from));
  send_decision(t, x.index, std::move(x.what), std::move(sources), round_.saves);
}

void coordinator::on_applied(const decision_applied& x) {
  auto* t = current(x.from);
  if (!t) {
    drop(x.state);
    return;
  }
  t->step = x.step;
  t->hp = from_wire(x.hp);
  t->pushed_after = {};
  if (x.state.node != 0)
    bring_here(x);
  else
    settle(*t, x);
}

/// A state in a trainer's own process is lost with it. Nobody goes on before it is here: where a trainer begins anew, what it
/// took from others at this sync point must be in it.
void coordinator::bring_here(const decision_applied& x) {
  host_.fetch(x.state, [me = self_handle(), host = settings_.host, x](core::result<core::checkpoint_ptr> state) {
    auto here = x;
    here.state = state ? host->put(*state) : state_ref{};
    post(me, [x, here, failure = state ? core::error{} : state.error()](coordinator& c) {
      c.drop(x.state);
      auto* t = c.current(x.from);
      if (!t) {
        c.drop(here.state);
        return;
      }
      if (!here.state) // its process is lost, and that will be told; or it begins anew from further back
        c.event("state_lost", {{"trainer", t->id}, {"reason", failure.text}});
      c.settle(*t, here);
    });
  });
}

void coordinator::settle(trainer& who, const decision_applied& x) {
  auto* t = &who;
  const bool ok = !x.failure;
  if (!ok) {
    event("decision_refused", {{"trainer", t->id}, {"index", x.sync}, {"reason", x.failure.text}});
    t->deciding.act = core::decision::action::go_on;
  }
  if (x.state)
    keep(*t, x.state, x.sync);
  else if (ok && !free_running_ && !t->deciding.changes.empty())
    t->replay[x.sync].changes.update(t->deciding.changes);
  for (const auto& s : std::exchange(t->sources, {}))
    drop(s);
  if (free_running_)
    return;
  if (const auto i = replaying_.find(t->id); i != replaying_.end() && i->second == x.sync) {
    replaying_.erase(i);
    t->state = trainer_state::running;
    command(*t, release_trainer{{}, x.sync});
    return;
  }
  perform(engine_.applied(x.sync, t->id, t->incarnation, ok, clock::now()));
}

void coordinator::act(core::sync_engine::resume& x) {
  for (const auto& [t, ref] : std::exchange(round_.exports, {}))
    drop(ref);
  for (const auto& [of, ref] : std::exchange(round_.means, {}))
    drop(ref);
  if (round_.saves)
    begin_saving(occasion::sync_point, x.index);
  for (const auto id : x.trainers) {
    auto& t = trainers_[id];
    if (!t.hdl)
      continue;
    t.state = t.wants_pause ? trainer_state::paused : trainer_state::running;
    command(t, resume_sync{{}, x.index});
  }
}

void coordinator::act(core::sync_engine::release& x) {
  auto& t = trainers_[x.trainer];
  if (t.incarnation != x.incarnation || !t.hdl)
    return;
  // A trainer that comes by here again, from a state of before, gets again what was decided then.
  if (const auto i = t.replay.find(x.index); i != t.replay.end()) {
    replaying_[t.id] = x.index;
    send_decision(t, x.index, i->second, {}, false);
    return;
  }
  t.state = t.wants_pause ? trainer_state::paused : trainer_state::running;
  command(t, release_trainer{{}, x.index});
}

void coordinator::act(core::sync_engine::hold& x) {
  auto& t = trainers_[x.trainer];
  if (t.incarnation == x.incarnation && is_live(t.state))
    t.state = trainer_state::held;
  barriers_.skip(x.trainer);
}

void coordinator::act(core::sync_engine::promote& x) {
  auto& t = trainers_[x.trainer];
  if (t.incarnation != x.incarnation || !t.hdl)
    return;
  t.state = t.wants_pause ? trainer_state::paused : trainer_state::running;
  command(t, resume_sync{{}, x.index});
}

void coordinator::act(core::sync_engine::stop_straggler& x) {
  auto& t = trainers_[x.trainer];
  if (t.incarnation != x.incarnation || !t.hdl)
    return;
  const bool was_decided = t.deciding.act == core::decision::action::stop; // and its life ended before it did
  command(t, stop_training{{}, true,
                           was_decided ? t.deciding.reason
                                       : "had not reported at sync point " + std::to_string(x.index)});
}

void coordinator::act(core::sync_engine::wake_at& x) {
  set_alarm(alarm_kind::deadline, x.when - clock::now());
}

void coordinator::act(core::sync_engine::note& x) {
  nlohmann::json names = nlohmann::json::array();
  for (const auto t : x.missing)
    names.push_back(t < trainers_.size() ? trainers_[t].spec.name : std::to_string(t));
  event("sync_note", {{"index", x.index}, {"trainers", names}, {"text", x.text}});
}

void coordinator::act(core::sync_engine::all_done&) {
} // the record of trainers says more: one may be about to start

// -- sync points by the clock
// ----------------------------------------------------------------------------------------------

void coordinator::call_round() {
  if (interrupting_)
    return;
  if (engine_.current_phase() == core::sync_engine::phase::idle && live_ > 0) {
    const auto k = next_call_++;
    perform(engine_.called(k, clock::now()));
    for (auto& t : trainers_)
      if (t.hdl && is_live(t.state) && t.state != trainer_state::held)
        command(t, call_sync{{}, k});
  }
  set_alarm(alarm_kind::clock, std::chrono::duration_cast<clock::duration>(
                                   std::chrono::duration<double>(exp_.sync.schedule.every_seconds)));
}

} // namespace troupe::actors::internal
