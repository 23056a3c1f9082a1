/// Asynchronous experiments whose trainers report and go on.
#include "coordinator.hpp"

#include <utility>

#include <nlohmann/json.hpp>

namespace troupe::actors::internal {

namespace {

bool says_nothing(const core::decision& d) {
  return d.act == core::decision::action::go_on && d.changes.empty() && !takes_weights(d);
}

} // namespace

/// True: the trainer may be one further ahead; else when the report is written.
bool coordinator::send_to_record(std::uint64_t bytes) {
  const auto times = gate_.times();
  const bool taken = gate_.sent(bytes, clock::now());
  if (gate_.times() > times && (gate_.times() & times) == 0) { // the 1st, 2nd, 4th, 8th … time: a slow disk need not write it each time
    const auto now = record_now();
    event("store_behind", {{"reports", now.unwritten},
                           {"bytes", now.unwritten_bytes},
                           {"times", gate_.times()},
                           {"seconds", now.held_back_seconds},
                           {"reason", std::to_string(now.unwritten) + " reports (" + std::to_string(now.unwritten_bytes) +
                                          " bytes) wait for the disk, so trainers wait at their sync points"}});
  }
  return taken;
}

/// A report is written, and its trainer told if it waits for that.
void coordinator::recorded(const trainer_ref& who, core::sync_index k, std::uint64_t bytes, bool taken) {
  gate_.written(bytes, taken, clock::now());
  if (const auto* t = taken ? nullptr : living(who))
    command(*t, report_taken{{}, k});
}

record_info coordinator::record_now() const {
  return {gate_.unwritten(), gate_.unwritten_bytes(), gate_.most_unwritten(), gate_.held_back(),
          gate_.held_back_seconds(clock::now())};
}

void coordinator::report_asynchronously(trainer& t, const core::metadata& m) {
  const auto k = m.sync;
  const auto ref = ref_of(t);
  core::decision d;
  if (exp_.policy_type != "none" && !interrupting_) {
    remember(m);
    const auto reports = newest_reports();
    auto in = input_of(k, reports);
    in.only = t.id;
    // Each trainer's decision at each of its sync points has numbers of its own.
    auto decisions = ask_policy(in, (std::uint64_t{t.id} + 1) << 32 | k);
    if (const auto i = decisions.find(t.id); i != decisions.end())
      d = i->second;
  }
  if (d.act == core::decision::action::hold) {
    d = {};
    event("decision_refused", {{"trainer", t.id},
                               {"index", k},
                               {"reason", "it cannot be held: the policy does not say that it holds trainers, so none waits"}});
  }
  if (!interrupting_)
    if (auto enough = look_at(t, m))
      d = std::move(*enough);
  const auto bytes = wire_size(m);
  const bool taken = send_to_record(bytes);
  if (taken)
    command(t, report_taken{{}, k});
  auto what = make_event(k, {m},
                         says_nothing(d) ? std::map<core::trainer_id, core::decision>{}
                                         : std::map<core::trainer_id, core::decision>{{t.id, d}});
  ++writes_in_flight_;
  host_.store->sync_point(what, [me = self_handle(), ref, k, d, what, bytes, taken](core::result<void> ok) {
    post(me, [ref, k, d, what, bytes, taken, ok](coordinator& c) {
      --c.writes_in_flight_;
      if (c.ended_)
        return;
      if (!ok) {
        c.fail_run({ok.error().code, "a report cannot be recorded: " + ok.error().text});
        return;
      }
      c.recorded(ref, k, bytes, taken);
      c.host_.tell_sync_point(what);
      if (!says_nothing(d))
        c.decide_asynchronously(ref, k, d);
      c.note_passing(k);
      c.check_end();
    });
  });
}

/// When everybody has passed `k` and was told what to do, a set is due: states that are asked for now have it in them.
void coordinator::note_passing(core::sync_index k) {
  if (interrupting_ || ++passed_[k] < live_)
    return;
  passed_.erase(passed_.begin(), passed_.upper_bound(k));
  if (saves_at(k) && sets_under_way() < max_sets_in_flight)
    begin_saving(occasion::sync_point, k);
}

void coordinator::decide_asynchronously(const trainer_ref& who, core::sync_index k, const core::decision& d) {
  auto* t = current(who);
  if (!t || !t->hdl || interrupting_)
    return;
  if (t->enough) {
    command(*t, stop_training{{}, true, d.reason});
    return;
  }
  if (!takes_weights(d)) {
    send_decision(*t, k, d, {}, false);
    t->state = trainer_state::running;
    return;
  }
  const auto number = ++numbers_;
  auto& g = gatherings_[number];
  g.taker = who;
  g.sync = k;
  g.what = d;
  if (d.copy_from)
    g.waiting.insert(*d.copy_from);
  g.waiting.insert(d.average_of.begin(), d.average_of.end());
  const auto donors = g.waiting;
  for (const auto id : donors) {
    const auto got = [this, number, id](core::result<state_ref> x) {
      const auto i = gatherings_.find(number);
      if (i == gatherings_.end())
        return;
      i->second.waiting.erase(id);
      if (x)
        i->second.states[id] = *x;
      give_gathered(number);
    };
    if (id < trainers_.size() && trainers_[id].hdl && is_live(trainers_[id].state))
      export_from(trainers_[id], k, got, d.copy_from == id ? purpose::copy : purpose::other);
    else
      got(core::error{core::errc::not_found, "it is gone"});
  }
}

void coordinator::give_gathered(std::uint64_t number) {
  const auto i = gatherings_.find(number);
  if (i == gatherings_.end() || !i->second.waiting.empty())
    return;
  auto g = std::move(i->second);
  gatherings_.erase(i);
  auto give = [this, who = g.taker, k = g.sync](core::decision what, std::vector<state_ref> sources) {
    auto* t = current(who);
    if (!t || !t->hdl || sources.empty()) {
      for (const auto& x : sources)
        drop(x);
      return;
    }
    t->sources.insert(t->sources.end(), sources.begin(), sources.end());
    send_decision(*t, k, std::move(what), std::move(sources), false);
    t->state = trainer_state::running;
  };
  if (g.what.copy_from) {
    std::vector<state_ref> sources;
    for (const auto& [t, ref] : g.states)
      sources.push_back(ref);
    give(std::move(g.what), std::move(sources));
    return;
  }
  std::vector<state_ref> sources;
  std::erase_if(g.what.average_of, [&](core::trainer_id t) { return !g.states.contains(t); });
  for (const auto t : g.what.average_of)
    sources.push_back(g.states[t]);
  if (sources.empty())
    return;
  average(sources, [this, what = g.what, sources, give](core::result<state_ref> mean) {
    for (const auto& x : sources)
      drop(x);
    if (mean)
      give(what, {*mean});
    else
      event("average_failed", {{"reason", mean.error().text}});
  });
}

} // namespace troupe::actors::internal
