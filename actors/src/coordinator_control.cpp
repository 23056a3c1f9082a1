#include "coordinator.hpp"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "troupe/actors/prepare.hpp"
#include "troupe/actors/slot_json.hpp"

namespace troupe::actors::internal {

namespace {
constexpr auto status_timeout = std::chrono::seconds(2);
}

// -- whom
// --------------------------------------------------------------------------------------------------------------------

core::result<std::vector<core::trainer_id>> coordinator::targets(const std::string& who) const {
  std::vector<core::trainer_id> out;
  if (interrupt_asked_ || ended_)
    return core::error{core::errc::refused, "the run is ending"};
  for (const auto& t : trainers_) {
    if (!who.empty() && t.spec.name != who)
      continue;
    if (is_live(t.state))
      out.push_back(t.id);
    else if (!who.empty())
      return core::error{core::errc::refused,
                         "trainer \"" + who + "\" has " + std::string(to_string(t.state)) + " already"};
  }
  if (!out.empty())
    return out;
  if (who.empty())
    return core::error{core::errc::refused, "no trainer is left"};
  std::string names;
  for (const auto& t : trainers_)
    names += (names.empty() ? "" : ", ") + t.spec.name;
  return core::error{core::errc::not_found, "there is no trainer \"" + who + "\"; there are: " + names};
}

// -- operations
// ----------------------------------------------------------------------------------------------------------------

std::uint64_t coordinator::open_operation(operation x) {
  operations_.emplace(++numbers_, std::move(x));
  return numbers_;
}

void coordinator::acknowledge(operation::kind what, const trainer& t, std::uint64_t step) {
  std::vector<std::uint64_t> hit;
  for (auto& [number, o] : operations_)
    if (o.what == what && o.waiting.erase(t.id) > 0) {
      o.done.push_back({t.id, t.spec.name, step});
      hit.push_back(number);
    }
  for (const auto number : hit)
    close_if_complete(number);
}

/// It ended: whoever waits for its answer has it.
void coordinator::leave_operations(const trainer& t) {
  std::vector<std::uint64_t> hit;
  for (auto& [number, o] : operations_)
    if (o.waiting.erase(t.id) > 0) {
      if (o.what == operation::kind::push || o.what == operation::kind::check)
        o.refusals.push_back("trainer \"" + t.spec.name + "\" has " + std::string(to_string(t.state)));
      else if (o.what == operation::kind::stop)
        o.done.push_back({t.id, t.spec.name, t.step});
      hit.push_back(number);
    }
  for (const auto number : hit)
    close_if_complete(number);
}

void coordinator::close_if_complete(std::uint64_t number) {
  const auto i = operations_.find(number);
  if (i == operations_.end() || !i->second.waiting.empty())
    return;
  auto o = std::move(i->second);
  operations_.erase(i);
  std::sort(o.done.begin(), o.done.end(),
            [](const acknowledgement& a, const acknowledgement& b) { return a.trainer < b.trainer; });
  if (o.refusals.empty()) {
    if (o.what == operation::kind::check) {
      // All of them would take it: now they do.
      operation x;
      x.what = operation::kind::push;
      x.changes = std::move(o.changes);
      x.to = o.to;
      for (const auto& a : o.done)
        x.waiting.insert(a.trainer);
      send_push(open_operation(std::move(x)));
      return;
    }
    o.to(std::move(o.done));
    return;
  }
  std::string text;
  constexpr std::size_t told = 4; // a wrong value for all is wrong for each of thousands
  for (std::size_t i = 0; i < std::min(o.refusals.size(), told); ++i)
    text += (text.empty() ? "" : "; ") + o.refusals[i];
  if (o.refusals.size() > told)
    text += "; and " + std::to_string(o.refusals.size() - told) + " more trainers refuse";
  if (!o.done.empty() && o.what == operation::kind::push) {
    text += "; it took effect at";
    for (const auto& a : o.done)
      text += " " + a.name + " (step " + std::to_string(a.step) + ")";
  }
  o.to(core::error{core::errc::invalid_argument, text});
}

// -- pause, resume, stop
// ---------------------------------------------------------------------------------------------------------

void coordinator::pause(const std::string& who, reply<acknowledgements> to) {
  const auto ts = targets(who);
  if (!ts) {
    to(ts.error());
    return;
  }
  operation o;
  o.what = operation::kind::pause;
  o.waiting.insert(ts->begin(), ts->end());
  o.to = to;
  open_operation(std::move(o));
  event("paused", {{"who", who}});
  for (const auto id : *ts) {
    auto& t = trainers_[id];
    t.wants_pause = true;
    if (begun_) // else it is told before it begins
      command(t, pause_training{});
    if (t.waits_for_room) // it stands still anyway
      acknowledge(operation::kind::pause, t, t.step);
  }
}

void coordinator::resume(const std::string& who, reply<acknowledgements> to) {
  const auto ts = targets(who);
  if (!ts) {
    to(ts.error());
    return;
  }
  operation o;
  o.what = operation::kind::resume;
  o.to = to;
  for (const auto id : *ts) {
    auto& t = trainers_[id];
    t.wants_pause = false;
    if (t.hdl && begun_)
      o.waiting.insert(id);
    else
      o.done.push_back({id, t.spec.name, t.step}); // it simply begins
  }
  const auto waiting = o.waiting;
  const auto number = open_operation(std::move(o));
  for (const auto id : waiting)
    command(trainers_[id], resume_training{});
  event("resumed", {{"who", who}});
  close_if_complete(number);
}

void coordinator::stop(const std::string& who, const std::string& reason, reply<acknowledgements> to) {
  const auto ts = targets(who);
  if (!ts) {
    to(ts.error());
    return;
  }
  operation o;
  o.what = operation::kind::stop;
  o.waiting.insert(ts->begin(), ts->end());
  o.to = to;
  open_operation(std::move(o));
  for (const auto id : *ts) {
    auto& t = trainers_[id];
    stop_now(t, reason.empty() ? "stopped on request" : reason);
  }
}

// -- push
// --------------------------------------------------------------------------------------------------------------------------

/// What is known to be wrong without asking anyone.
std::vector<core::error> coordinator::check_push(const std::vector<core::trainer_id>& who,
                                                 const core::hyperparameters& changes) const {
  std::vector<core::error> faults;
  for (const auto id : who) {
    const auto& t = trainers_[id];
    if (!host_.options.workloads)
      continue;
    auto hp = t.hp;
    hp.update(changes);
    const auto options = nlohmann::json::parse(t.spec.workload_options, nullptr, false);
    if (!options.is_discarded())
      host_.options.workloads->check(t.spec.workload_type, options, hp, "/" + t.spec.name, faults);
  }
  return faults;
}

void coordinator::push(const std::string& who, core::hyperparameters changes, reply<acknowledgements> to) {
  const auto ts = targets(who);
  if (!ts) {
    to(ts.error());
    return;
  }
  if (changes.empty()) {
    to(core::error{core::errc::invalid_argument, "there is nothing to push"});
    return;
  }
  if (auto fits = fits_control_plane(wire_size(changes) + 256, "the pushed hyperparameters"); !fits) {
    to(fits.error());
    return;
  }
  if (const auto faults = check_push(*ts, changes); !faults.empty()) {
    std::string text;
    for (const auto& f : faults)
      text += (text.empty() ? "" : "; ") + f.text;
    to(core::error{core::errc::invalid_argument, text});
    return;
  }
  operation o;
  o.what = ts->size() > 1 ? operation::kind::check : operation::kind::push;
  o.waiting.insert(ts->begin(), ts->end());
  o.changes = std::move(changes);
  o.to = to;
  send_push(open_operation(std::move(o)));
}

void coordinator::send_push(std::uint64_t number) {
  auto& o = operations_.at(number);
  const auto waiting = o.waiting;
  for (const auto id : waiting)
    ask(number, o, trainers_[id]);
  if (waiting.empty())
    close_if_complete(number);
  for (const auto id : waiting)
    if (trainers_[id].waits_for_room)
      keep_pushes(trainers_[id]);
}

/// A trainer that waits for room may do so for long: what is pushed meanwhile is kept for its next life, and nobody waits for its
/// answer. (That the values are right for it was checked before anyone was asked.)
void coordinator::keep_pushes(trainer& t) {
  std::vector<std::uint64_t> hit;
  for (auto& [number, o] : operations_) {
    if (!o.waiting.contains(t.id) || (o.what != operation::kind::push && o.what != operation::kind::check))
      continue;
    o.waiting.erase(t.id);
    o.done.push_back({t.id, t.spec.name, t.step});
    if (o.what == operation::kind::push)
      take_in(t, o.changes, t.step);
    hit.push_back(number);
  }
  for (const auto number : hit)
    close_if_complete(number);
}

/// They hold for `t` in all its lives from this state on.
void coordinator::take_in(trainer& t, const core::hyperparameters& changes, std::uint64_t step) {
  t.hp.update(changes);
  t.pushed.update(changes);
  t.pushed_after.update(changes);
  if (!t.replay.empty()) // a new life gets it again after the decision that it followed
    t.replay.rbegin()->second.changes.update(changes);
  event("pushed",
        {{"trainer", t.id}, {"name", t.spec.name}, {"step", step}, {"hyperparameters", core::to_json(changes)}});
}

/// They are in the state that its next life begins from, if it is the same life still.
void coordinator::forget_pushes(trainer& t, std::uint32_t incarnation, const core::hyperparameters& changes) {
  if (t.incarnation != incarnation)
    return;
  t.first_push = {};
  for (const auto& [key, x] : changes)
    if (const auto* now = t.pushed.find(key); now != nullptr && *now == x)
      t.pushed.erase(key);
}

/// Once in each of its lives; a trainer that is not up is asked when it is.
void coordinator::ask(std::uint64_t number, operation& o, const trainer& t) {
  if (t.hdl && o.asked.emplace(t.id, t.incarnation).second)
    command(t, push_hyperparameters{{}, number, to_wire(o.changes), o.what == operation::kind::check});
}

/// A trainer that is up (again): what was pushed since its state, and what waits for it.
void coordinator::send_pushes(trainer& t) {
  auto before = t.first_push;
  before.update(t.pushed);
  if (!before.empty())
    command(t, push_hyperparameters{{}, 0, to_wire(before), false});
  for (auto& [number, o] : operations_)
    if (o.waiting.contains(t.id) && (o.what == operation::kind::push || o.what == operation::kind::check))
      ask(number, o, t);
}

void coordinator::on_push_ack(const push_ack& x) {
  auto* t = current(x.from);
  if (!t)
    return;
  if (!x.failure)
    t->hp = from_wire(x.hp);
  else if (x.request == 0) // of before this life
    event("push_refused", {{"trainer", t->id}, {"name", t->spec.name}, {"step", x.step}, {"reason", x.failure.text}});
  const auto i = operations_.find(x.request);
  if (i == operations_.end() || i->second.waiting.erase(t->id) == 0)
    return;
  auto& o = i->second;
  if (x.failure) {
    o.refusals.push_back("trainer \"" + t->spec.name + "\": " + x.failure.text);
  } else {
    o.done.push_back({t->id, t->spec.name, x.step});
    if (o.what == operation::kind::push) {
      t->step = x.step;
      take_in(*t, o.changes, x.step);
    }
  }
  close_if_complete(x.request);
}

// -- adding
// ------------------------------------------------------------------------------------------------------------------------

void coordinator::add_trainer(const std::string& json, reply<core::trainer_id> to) {
  if (interrupt_asked_ || ended_) {
    to(core::error{core::errc::refused, "the run is ending"});
    return;
  }
  auto parsed =
      core::parse_trainer(json, exp_, checkers_of(*host_.options.workloads, *host_.options.policies));
  if (const auto* faults = std::get_if<std::vector<core::error>>(&parsed)) {
    std::string text;
    for (const auto& f : *faults)
      text += (text.empty() ? "" : "; ") + f.text;
    to(core::error{core::errc::invalid_argument, text});
    return;
  }
  auto spec = std::get<core::trainer_spec>(std::move(parsed));
  if (auto ok = resolve_pins({&spec, 1}); !ok) {
    to(ok.error());
    return;
  }
  const auto id = add(std::move(spec), json);
  if (launched_)
    launch(trainers_[id]);
  to(id);
}

// -- status
// ------------------------------------------------------------------------------------------------------------------------

trainer_info coordinator::info_of(const trainer& t) const {
  trainer_info x;
  x.id = t.id;
  x.name = t.spec.name;
  x.workload_type = t.spec.workload_type;
  x.state = t.state;
  x.incarnation = t.incarnation;
  x.restarts = t.restarts;
  x.step = t.step;
  x.stop_step = t.spec.stop_step;
  x.slot = t.where;
  x.newest = t.newest;
  x.hp = t.hp;
  x.failure = t.failure;
  x.reason = t.reason;
  const auto waits = barriers_.of(t.id);
  x.barrier_seconds = waits.seconds;
  x.barrier_bound_seconds = waits.bound;
  return x;
}

run_status coordinator::status_now() const {
  run_status s;
  s.experiment = exp_.name;
  for (const auto& t : trainers_)
    s.trainers.push_back(info_of(t));
  for (const auto& [number, p] : processes_)
    s.slots.insert(s.slots.end(), p.slots.begin(), p.slots.end());
  s.open_round = engine_.open_round();
  s.rounds = engine_.rounds();
  s.dropped = dropped_ + engine_.dropped();
  s.seconds = std::chrono::duration<double>(clock::now() - began_).count();
  s.record = record_now();
  return s;
}

namespace {

using answers = std::map<std::uint32_t, node_status>;

/// What its process says of a slot.
void fill(slot_info& s, const slot_status& x) {
  s.answered = true;
  s.alive = s.alive && x.alive;
  s.trainers = x.trainers;
  s.running = x.running;
  s.waiting = x.waiting;
  s.steps = x.steps;
  s.slices = x.slices;
  s.fused_steps = x.fused_steps;
  s.fused_slices = x.fused_slices;
  s.fused_members = x.fused_members;
  s.busy_seconds = x.busy_seconds;
  s.idle_seconds = x.idle_seconds;
  s.memory_used = x.memory_used;
  s.memory_peak = x.memory_peak;
  s.memory_budget = x.memory_budget;
  s.pinned_used = x.device.pinned_used;
  s.pinned_budget = x.device.pinned_budget;
  s.pages_out = x.device.swaps_out;
  s.pages_in = x.device.swaps_in;
  s.paged_bytes = x.device.swapped_bytes;
  s.staged_bytes = x.device.staged_bytes;
  s.slot_copies = x.device.slot_copies;
  s.slot_copied_bytes = x.device.slot_copied_bytes;
  s.captures = x.device.captures;
  s.launches = x.device.launches;
  s.capture_fault = x.device.capture_fault;
}

void fill(std::vector<slot_info>& slots, const answers& from) {
  std::uint32_t node = 0;
  std::size_t at = 0; // in its node
  for (auto& s : slots) {
    at = s.node == node ? at : 0;
    node = s.node;
    if (const auto i = from.find(node); i != from.end() && at < i->second.slots.size())
      fill(s, i->second.slots[at]);
    ++at;
  }
}

} // namespace

/// Asks every process for its slots; one that does not answer in time appears without its counters.
void coordinator::collect_slots(std::function<void(std::vector<slot_info>)> then) {
  auto missing = std::make_shared<std::size_t>(1);
  auto heard = std::make_shared<answers>();
  auto one_less = [this, missing, heard, then = std::move(then)] {
    if (--*missing > 0)
      return;
    std::vector<slot_info> slots;
    for (const auto& [number, p] : processes_)
      slots.insert(slots.end(), p.slots.begin(), p.slots.end());
    fill(slots, *heard);
    then(std::move(slots));
  };
  for (const auto& [number, p] : processes_) {
    if (!p.agent)
      continue;
    ++*missing;
    mail(self_, query_node{number})
        .request(p.agent, status_timeout)
        .then(
            [heard, one_less, n = number](const node_status& x) {
              heard->emplace(n, x);
              one_less();
            },
            [one_less](const caf::error&) { one_less(); });
  }
  one_less();
}

/// Asks every trainer for the step it is at, and for the slots; a trainer that does not answer in time appears as it
/// was last heard of.
void coordinator::collect_status(std::function<void(run_status)> then) {
  auto missing = std::make_shared<std::size_t>(2);
  auto slots = std::make_shared<std::vector<slot_info>>();
  auto one_less = [this, missing, slots, then = std::move(then)] {
    if (--*missing > 0)
      return;
    auto s = status_now();
    s.slots = std::move(*slots);
    then(std::move(s));
  };
  collect_slots([slots, one_less](std::vector<slot_info> x) {
    *slots = std::move(x);
    one_less();
  });
  for (auto& t : trainers_) {
    if (!t.hdl)
      continue;
    ++*missing;
    mail(self_, query_status{ref_of(t)})
        .request(t.hdl, status_timeout)
        .then(
            [this, one_less](const trainer_status& x) {
              if (auto* now = current(x.from))
                now->step = std::max(now->step, x.step);
              one_less();
            },
            [one_less](const caf::error&) { one_less(); });
  }
  one_less();
}

void coordinator::status(reply<run_status> to) {
  collect_status([to](run_status s) { to(std::move(s)); });
}

namespace {

/// Whoever looks at a run that was cut off learns what its slots did up to so long before.
constexpr auto slots_interval = std::chrono::seconds(10);

nlohmann::json to_json(const std::vector<slot_info>& slots) {
  auto out = nlohmann::json::array();
  for (const auto& x : slots)
    out.push_back(actors::to_json(x));
  return out;
}

} // namespace

void coordinator::keep_slots() {
  if (!host_.store->keeps_files())
    return;
  collect_slots([this](const std::vector<slot_info>& slots) {
    if (ended_)
      return;
    host_.store->slots(to_json(slots), false);
    set_alarm(alarm_kind::slots, slots_interval);
  });
}

// -- the end of the run
// -----------------------------------------------------------------------------------------------------

/// `ask_slots`: what they did is kept with the run, for `troupe status`.
void coordinator::finish_run(bool ask_slots) {
  if (std::exchange(ended_, true))
    return;
  run_summary s;
  s.error = run_failure_.text.empty() ? no_slot_ : run_failure_;
  s.rounds = engine_.rounds();
  s.seconds = std::chrono::duration<double>(clock::now() - began_).count();
  s.directory = host_.options.directory;
  s.record = record_now();
  s.barrier_seconds = barriers_.total().seconds;
  s.barrier_bound_seconds = barriers_.total().bound;
  bool any_failed = !run_failure_.text.empty();
  bool any_left = false;
  for (auto& t : trainers_) {
    if (is_live(t.state) || ending_.contains(t.id)) {
      t.state = trainer_state::interrupted; // what is not on disk is not done
      t.final_hash = 0;
    }
    any_left = any_left || t.state == trainer_state::interrupted;
    any_failed = any_failed || t.state == trainer_state::failed;
    trainer_summary x;
    static_cast<trainer_info&>(x) = info_of(t);
    x.final_hash = t.final_hash;
    s.trainers.push_back(std::move(x));
  }
  s.outcome = !run_failure_.text.empty() ? run_outcome_kind::failed
              : any_left                 ? run_outcome_kind::interrupted
              : any_failed               ? run_outcome_kind::failed
                                         : run_outcome_kind::done;
  event("run_ended", {{"outcome", std::string{to_string(s.outcome)}}, {"reason", s.error.text}});
  operations_.clear(); // their askers learn that the run is over
  const auto leave = [this, s](const std::vector<slot_info>* slots) {
    if (slots)
      host_.store->slots(to_json(*slots), true);
    host_.store->flush([on_end = settings_.on_end, s, host = settings_.host](core::result<void> ok) mutable {
      if (!ok && (s.error.text.empty() || s.outcome == run_outcome_kind::interrupted)) {
        s.error = ok.error();
        s.outcome = run_outcome_kind::failed;
      }
      host->tell_finished(s);
      host->listening->post([on_end, s] { on_end(s); }); // whoever waits for the end finds everything told
    });
    supervise([](supervisor& x) { x.shut_down(); });
    self_->quit();
  };
  if (ask_slots)
    collect_slots([leave](const std::vector<slot_info>& slots) { leave(&slots); });
  else
    leave(nullptr);
}

} // namespace troupe::actors::internal
