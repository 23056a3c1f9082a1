#include "coordinator.hpp"

#include <utility>

#include <nlohmann/json.hpp>

namespace troupe::actors::internal {

namespace {

struct coordinator_state {
  static constexpr const char* name = "coordinator";
  std::unique_ptr<coordinator> rules;
};

std::optional<core::sync_index> index_of(const next_sync& x) {
  return x.any ? std::optional(x.index) : std::nullopt;
}

bool waits_one_by_one(const run_host& host) {
  return host.options.exp.sync.asynchronous && host.policy && host.policy->holds();
}

/// Where the engine stands when a run is gone on with.
std::optional<core::sync_index> closed_before(const run_host& host) {
  return host.resumed ? host.resumed->last_sync : std::nullopt;
}

} // namespace

caf::actor spawn_coordinator(caf::actor_system& sys, coordinator::settings s) {
  return sys.spawn([s](caf::stateful_actor<coordinator_state>* self) -> caf::behavior {
    state(self).rules = std::make_unique<coordinator>(self, s);
    return state(self).rules->behavior();
  });
}

coordinator::coordinator(caf::event_based_actor* self, settings s)
    : self_(self), settings_(std::move(s)), host_(*settings_.host), exp_(host_.options.exp),
      one_by_one_(waits_one_by_one(host_)), free_running_(exp_.sync.asynchronous && !one_by_one_),
      engine_(exp_.sync, closed_before(host_), one_by_one_), began_(clock::now()), gate_(exp_.record) {
  if (const auto closed = engine_.closed())
    next_call_ = *closed + 1;
}

caf::behavior coordinator::behavior() {
  on_exception(self_, [this](const std::string& text) {
    // A defect: nothing more can be trusted to go on, but whoever waits for the run must learn of it.
    run_failure_ = {core::errc::internal, "the coordinator failed: " + text};
    finish_run(false);
  });
  return {
      [this](const trainer_up& x) { on_up(x); },
      [this](const sync_report& x) { on_report(x); },
      [this](const state_exported& x) { on_exported(x); },
      [this](const decision_applied& x) { on_applied(x); },
      [this](const trainer_paused& x) { on_paused(x); },
      [this](const trainer_resumed& x) { on_resumed(x); },
      [this](const push_ack& x) { on_push_ack(x); },
      [this](const trainer_moved& x) { on_moved(x); },
      [this](const trainer_finished& x) { on_finished(x); },
      [this](const trainer_failed& x) { on_failed(x); },
      [this](coordinator_call& x) { x.what(*this); },
      [this](const alarm& x) { on_alarm(x); },
      on_error_msg(
          self_,
          [](caf::error&) {}), // of a command that came too late: the fact that explains it comes by itself
      otherwise(self_, [this](const std::string&) { ++dropped_; }),
  };
}

outside<caf::actor> coordinator::self_handle() const { return outside{caf::actor_cast<caf::actor>(self_->address())}; }

void coordinator::post(const outside<caf::actor>& to, std::function<void(coordinator&)> f) {
  anon_mail(coordinator_call{std::move(f)}).send(to.get());
}

void coordinator::supervise(std::function<void(supervisor&)> what) {
  mail(self_, supervisor_call{std::move(what)}).send(supervisor_);
}

void coordinator::event(const std::string& kind, nlohmann::json details) {
  host_.tell_event(kind, details);
  host_.store->event(kind, std::move(details));
}

// -- beginning
// ---------------------------------------------------------------------------------------------------------

void coordinator::start(caf::actor supervisor) {
  supervisor_ = std::move(supervisor);
  host_.store->on_failure([me = self_handle()](core::error why) {
    post(me, [why = std::move(why)](coordinator& c) { c.fail_run(why); });
  });
  for (auto& spec : exp_.trainers) {
    trainer t;
    t.spec = spec;
    t.id = static_cast<core::trainer_id>(trainers_.size());
    t.hp = spec.hp;
    t.watch = core::stop_watch(spec.stop);
    trainers_.push_back(std::move(t));
  }
  live_ = unchecked_ = trainers_.size();
  take_over_record();
  set_alarm(alarm_kind::node_wait, host_.options.node_wait);
  if (host_.options.progress_interval.count() > 0)
    set_alarm(alarm_kind::progress, host_.options.progress_interval);
}

/// What a run that is gone on with says of its trainers.
void coordinator::take_over_record() {
  if (!host_.resumed)
    return;
  const auto& r = *host_.resumed;
  for (const auto& m : r.history) {
    remember(m);
    if (m.trainer < trainers_.size())
      (void)trainers_[m.trainer].watch.observe(m);
  }
  for (auto& t : trainers_) {
    if (t.id < r.trainers.size()) {
      const auto& past = r.trainers[t.id];
      t.incarnation = past.incarnation;
      if (past.last)
        set_newest(t, *past.last);
      if (past.last)
        t.hp = past.last->hp;
      t.step = past.step;
      using status = core::trainer_record::status;
      if (past.state == status::finished || past.state == status::failed) {
        t.state = past.state == status::failed                      ? trainer_state::failed
                  : past.last && past.last->step < t.spec.stop_step ? trainer_state::stopped
                                                                    : trainer_state::finished;
        if (past.state == status::failed)
          t.failure = {core::errc::failed, past.reason};
        else if (past.stopped)
          t.reason = past.reason;
        --live_;
        --unchecked_;
        continue;
      }
      // Another life than any on record, so that nothing of an old process is taken for this one's.
      t.incarnation = past.newest_incarnation + 1;
    }
    if (const auto i = r.standing.find(t.id); i != r.standing.end())
      engine_.restore(t.id, i->second);
    if (const auto i = r.replay.find(t.id); i != r.replay.end())
      t.replay = i->second;
    if (const auto i = r.saved.find(t.id); i != r.saved.end()) {
      t.saved = i->second;
      t.step = t.saved.step;
    } else {
      t.step = 0;
    }
  }
}

void coordinator::on_node(const node_up& x) {
  nodes_.insert(x.node);
  auto& p = processes_[x.node] = {x.agent, {}};
  for (const auto& s : x.slots) {
    slot_info info;
    info.name = std::to_string(x.node) + "/" + std::to_string(s.index);
    info.node = x.node;
    info.device = s.kind == "cuda" ? "cuda:" + std::to_string(s.ordinal) : s.device;
    info.device_id = s.device;
    info.model = s.name;
    info.memory_budget = s.memory_budget;
    info.alive = s.alive;
    p.slots.push_back(std::move(info));
  }
  event("node_joined", {{"node", x.node}, {"slots", x.slots.size()}});
  const auto expected = host_.options.other_nodes + (host_.options.slots.empty() ? 0u : 1u);
  if (launched_ || nodes_.size() < expected)
    return;
  launched_ = true;
  ++alarms_[alarm_kind::node_wait];
  for (auto& t : trainers_)
    if (is_live(t.state))
      starting_first_.insert(t.id);
  if (starting_first_.empty())
    check_end();
  for (std::size_t i = 0; i < trainers_.size(); ++i)
    if (is_live(trainers_[i].state))
      launch(trainers_[i]);
}

void coordinator::on_node_lost(std::uint32_t number, const std::string& reason) {
  nodes_.erase(number);
  if (const auto i = processes_.find(number); i != processes_.end()) {
    i->second.agent = node_agent_actor{};
    for (auto& s : i->second.slots)
      s.alive = false;
  }
  for (auto& t : trainers_)
    if (t.kept && t.kept.node == number)
      t.kept = {};
  event("node_lost", {{"node", number}, {"reason", reason}});
}

void coordinator::on_slot_lost(std::uint32_t node, std::uint32_t slot, const std::string& reason) {
  if (const auto i = processes_.find(node); i != processes_.end() && slot < i->second.slots.size())
    i->second.slots[slot].alive = false;
  event("slot_lost", {{"node", node}, {"slot", slot}, {"reason", reason}});
}

void coordinator::on_placed(const trainer_ref& who, const std::string& where) {
  if (auto* t = current(who)) {
    t->where = where;
    t->waits_for_room = false;
  }
}

void coordinator::on_not_placed(const trainer_ref& who, const core::error& why) {
  auto* t = current(who);
  if (!t)
    return;
  // Its slots are lost, or this time there are others: that is not its failure, and its states are worth keeping.
  if (why.code == core::errc::refused || (host_.resumed && t->id < host_.resumed->trainers.size()))
    leave_for_want_of_slots(*t, why);
  else
    give_up(*t, why);
}

// -- facts from trainers
// -----------------------------------------------------------------------------------------------

coordinator::trainer* coordinator::living(const trainer_ref& x) {
  if (!ended_ && x.experiment == host_.experiment_id && x.trainer < trainers_.size()) {
    auto& t = trainers_[x.trainer];
    if (t.incarnation == x.incarnation && is_live(t.state))
      return &t;
  }
  return nullptr;
}

coordinator::trainer* coordinator::current(const trainer_ref& x) {
  auto* t = living(x);
  dropped_ += t ? 0 : 1;
  return t;
}

trainer_ref coordinator::ref_of(const trainer& t) const { return {host_.experiment_id, t.id, t.incarnation}; }

void coordinator::on_up(const trainer_up& x) {
  auto* t = current(x.from);
  if (!t || t->hdl) {
    if (!t) // nobody will ever speak to it
      supervise([ref = x.from](supervisor& s) { s.forget(ref, true); });
    return;
  }
  t->hdl = x.who;
  t->signature = x.signature;
  t->hp = from_wire(x.hp);
  t->step = x.step;
  drop(std::exchange(t->loading, {}));
  supervise([ref = x.from, hdl = x.who](supervisor& s) { s.watch(ref, hdl); });
  auto next = index_of(x.next);
  const bool called =
      exp_.sync.schedule.every_seconds > 0 && engine_.current_phase() == core::sync_engine::phase::collecting;
  if (called)
    next = engine_.open_round();
  perform(engine_.member_up(t->id, t->incarnation, next, clock::now()));
  event("trainer_started", {{"trainer", t->id},
                            {"name", t->spec.name},
                            {"incarnation", t->incarnation},
                            {"step", t->step},
                            {"slot", t->where}});
  if (begun_) {
    begin(*t);
    wake_for_time();
    if (called)
      command(*t, call_sync{{}, *next});
  } else {
    starting_first_.erase(t->id);
    begin_all_if_ready();
  }
}

void coordinator::on_report(const sync_report& x) {
  auto m = from_wire(x.what);
  m.trainer = x.from.trainer;
  m.incarnation = x.from.incarnation;
  m.sync = x.sync;
  auto* t = current(x.from);
  if (!t || (interrupting_ && !free_running_))
    return; // a run that is being left decides nothing more, and who is parked reports again when it goes on
  t->step = m.step;
  t->hp = m.hp;
  m.name = t->spec.name;
  set_newest(*t, m);
  if (free_running_) {
    if (!interrupting_)
      perform(engine_.reported(m, index_of(x.next), clock::now()));
    report_asynchronously(*t, m);
    return;
  }
  t->state = trainer_state::parked;
  perform(engine_.reported(std::move(m), index_of(x.next), clock::now()));
}

void coordinator::on_paused(const trainer_paused& x) {
  auto* t = current(x.from);
  if (!t)
    return;
  t->step = x.step;
  if (t->state == trainer_state::running)
    t->state = trainer_state::paused;
  acknowledge(operation::kind::pause, *t, x.step);
}

void coordinator::on_resumed(const trainer_resumed& x) {
  auto* t = current(x.from);
  if (!t)
    return;
  t->step = x.step;
  if (t->state == trainer_state::paused)
    t->state = trainer_state::running;
  acknowledge(operation::kind::resume, *t, x.step);
}

void coordinator::on_moved(const trainer_moved& x) {
  auto* t = current(x.from);
  if (!t)
    return;
  t->step = x.step;
  const auto node = t->where.substr(0, t->where.find('/') + 1);
  nlohmann::json details{{"trainer", t->id},
                         {"name", t->spec.name},
                         {"step", x.step},
                         {"from", node + std::to_string(x.from_slot)},
                         {"to", node + std::to_string(x.to_slot)}};
  if (x.failure) {
    details["reason"] = x.failure.text;
    event("move_failed", std::move(details));
    return;
  }
  t->where = node + std::to_string(x.to_slot);
  supervise([who = x.from, slot = x.to_slot](supervisor& s) { s.moved(who, slot); });
  event("moved", std::move(details));
}

void coordinator::on_failed(const trainer_failed& x) {
  auto* t = current(x.from);
  if (!t)
    return;
  t->step = x.step;
  const auto why = from_wire(x.failure);
  const bool crowded = why.code == core::errc::out_of_memory;
  supervise([ref = x.from, crowded](supervisor& s) { crowded ? s.crowded(ref) : s.forget(ref, false); });
  on_failure(*t, why, crowded);
}

void coordinator::on_lost(const trainer_ref& who, const core::error& why, bool blameless) {
  auto* t = current(who);
  if (!t)
    return;
  supervise([who](supervisor& s) { s.forget(who, false); });
  on_failure(*t, why, blameless);
}

// -- alarms
// --------------------------------------------------------------------------------------------------------------

void coordinator::set_alarm(alarm_kind kind, clock::duration in) {
  const auto generation = ++alarms_[kind];
  mail(self_, alarm{kind, generation})
      .delay(std::max<caf::timespan>(in, std::chrono::microseconds(1)))
      .send(self_);
}

void coordinator::on_alarm(const alarm& x) {
  if (x.generation != alarms_[x.kind] || ended_)
    return;
  switch (x.kind) {
  case alarm_kind::deadline:
    if (!interrupting_)
      perform(engine_.tick(clock::now()));
    break;
  case alarm_kind::clock:
    call_round();
    break;
  case alarm_kind::progress:
    collect_status([this](run_status s) {
      host_.tell_progress(std::move(s));
      set_alarm(alarm_kind::progress, host_.options.progress_interval);
    });
    break;
  case alarm_kind::time:
    on_time();
    break;
  case alarm_kind::slots:
    keep_slots();
    break;
  case alarm_kind::save:
    on_save_alarm();
    break;
  case alarm_kind::node_wait:
    if (!launched_)
      fail_run({core::errc::timeout,
                "only " + std::to_string(nodes_.size()) + " of " +
                    std::to_string(host_.options.other_nodes + (host_.options.slots.empty() ? 0u : 1u)) +
                    " processes with slots have come in " + std::to_string(host_.options.node_wait.count()) +
                    " ms"});
    break;
  }
}

} // namespace troupe::actors::internal
