#include "coordinator.hpp"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "trainer_states.hpp"

namespace troupe::actors::internal {

// -- states on request
// -------------------------------------------------------------------------------------------------------

/// `then` is called once: with the state, which is the caller's to drop, or with why there is none.
void coordinator::export_from(trainer& t, core::sync_index k,
                              std::function<void(core::result<state_ref>)> then, purpose what_for) {
  exports_[t.id].push_back({t.incarnation, std::move(then), what_for});
  command(t, actors::export_state{{}, k, what_for == purpose::copy});
}

void coordinator::on_exported(const state_exported& x) {
  auto* t = current(x.from);
  const auto i = exports_.find(x.from.trainer);
  if (!t || i == exports_.end() || i->second.empty()) {
    drop(x.state);
    return;
  }
  // A trainer answers in the order in which it was asked.
  auto then = std::move(i->second.front().then);
  i->second.pop_front();
  if (x.failure)
    then(from_wire(x.failure));
  else
    then(x.state);
}

void coordinator::cancel_exports(trainer& t, const std::string& why) {
  auto asked = std::exchange(exports_[t.id], {});
  exports_.erase(t.id);
  for (auto& x : asked)
    x.then(core::error{core::errc::failed, why});
}

// -- checkpoint sets
// ---------------------------------------------------------------------------------------------------------

/// A set of what every live trainer is now: after the decisions of `k`, between sync points, or what each one hands over when it stops.
void coordinator::begin_saving(occasion why, std::optional<core::sync_index> k) {
  if (!host_.store->keeps_files())
    return; // newest states stay in memory
  take_older_states();
  save_due_ = false;
  wake_for_saving();
  const auto number = ++numbers_;
  savings_[number].why = why;
  savings_[number].sync = k;
  // Who is not in a set must be on record as finished before it.
  savings_[number].waiting = ending_;
  for (auto& t : trainers_) {
    if (!is_live(t.state))
      continue;
    if (t.hdl && why == occasion::leaving) {
      savings_[number].waiting.insert(t.id);
    } else if (t.kept && (!t.hdl || (k && t.kept_sync == k && !one_by_one_))) {
      add_older_state(number, t);
    } else if (t.hdl) {
      ask_state_for(number, t, k.value_or(0));
    } else {
      add_older_state(number, t);
    }
  }
  write_if_complete(number);
}

/// Sets the alarm for the next set that is due by the clock.
void coordinator::wake_for_saving() {
  if (exp_.checkpoints.every_seconds > 0 && host_.store->keeps_files())
    set_alarm(alarm_kind::save, std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(exp_.checkpoints.every_seconds)));
}

void coordinator::save_if_due() {
  using phase = core::sync_engine::phase;
  const auto now = engine_.current_phase();
  if (!save_due_ || !begun_ || ended_ || interrupt_asked_ || (now != phase::idle && now != phase::collecting))
    return; // a round that is being decided takes it over
  const bool collecting = std::any_of(savings_.begin(), savings_.end(),
                                      [](const auto& s) { return s.second.why == occasion::time && !s.second.asked.empty(); });
  const bool beginning = std::any_of(trainers_.begin(), trainers_.end(), [](const trainer& t) {
    return t.hdl && (t.state == trainer_state::starting || t.state == trainer_state::restarting);
  });
  if (collecting || beginning || sets_under_way() >= max_sets_in_flight)
    return; // asked again when one is written, and when that trainer is told to begin
  const bool news = std::any_of(trainers_.begin(), trainers_.end(), [](const trainer& t) {
    return is_live(t.state) && !(t.state == trainer_state::paused && !t.saved.file.empty() && t.saved.step == t.step);
  });
  if (news) {
    begin_saving(occasion::time);
    return;
  }
  save_due_ = false;
  wake_for_saving();
}

/// A set that waits for the third alarm in vain takes what there is of those who do not answer: their step does not end.
void coordinator::on_save_alarm() {
  save_due_ = true;
  std::vector<std::uint64_t> late;
  for (auto& [number, s] : savings_)
    if (s.why == occasion::time && !s.asked.empty() && ++s.alarms >= 3)
      late.push_back(number);
  for (const auto number : late)
    take_older_states(number, [](const trainer&) { return true; });
  save_if_due();
  if (save_due_)
    wake_for_saving();
}

/// A set that was begun before a sync point is recorded before its decisions, which are not in the set's states. True: one still waits
/// for states. Whoever has not come to this sync point does not hold it up. Where each trainer has decisions of its own, only sets for
/// time's sake come first, and they wait for those that were never saved: others may be in a long step.
bool coordinator::set_comes_first() {
  const auto comes_first = [this](const saving& s) {
    return s.why == occasion::time || (s.why == occasion::sync_point && !one_by_one_);
  };
  std::vector<std::uint64_t> numbers;
  for (const auto& [number, s] : savings_)
    if (comes_first(s))
      numbers.push_back(number);
  for (const auto number : numbers)
    take_older_states(number, [this](const trainer& t) {
      return t.state != trainer_state::parked && (!one_by_one_ || t.kept || !t.saved.file.empty());
    });
  return std::any_of(savings_.begin(), savings_.end(), [&](const auto& s) { return comes_first(s.second); });
}

void coordinator::ask_state_for(std::uint64_t number, trainer& t, core::sync_index k) {
  const auto pending = exports_.find(t.id);
  if (pending != exports_.end() &&
      std::any_of(pending->second.begin(), pending->second.end(), [](const exporting& x) { return x.what_for == purpose::set; })) {
    add_older_state(number, t); // it did not get round to it since the last set
    return;
  }
  savings_[number].waiting.insert(t.id);
  savings_[number].asked.insert(t.id);
  const auto got = [this, number, id = t.id](core::result<state_ref> x) {
    const auto i = savings_.find(number);
    if (i == savings_.end() || i->second.asked.erase(id) == 0) {
      if (x)
        drop(*x);
      return;
    }
    const auto& t = trainers_[id];
    if (x) {
      i->second.held.emplace_back(id, *x);
      i->second.pushed[id] = {t.incarnation, t.pushed};
      add_state(number, t, *x, t.step);
    } else if (x.error().code != core::errc::refused) {
      leave_savings(t);
    } // else it comes to its end, and the set waits until that is on record
  };
  export_from(t, k, got, purpose::set);
}

/// Sets that still wait for states they asked for take older ones: a step that does not end must not keep every set from being
/// complete, and the states of all others in memory.
void coordinator::take_older_states() {
  std::vector<std::uint64_t> late;
  for (auto& [number, s] : savings_)
    if (!s.asked.empty())
      late.push_back(number);
  for (const auto number : late)
    take_older_states(number, [](const trainer&) { return true; });
}

void coordinator::take_older_states(std::uint64_t number, const std::function<bool(const trainer&)>& of) {
  const auto i = savings_.find(number);
  if (i == savings_.end())
    return;
  auto& s = i->second;
  const auto asked = s.asked;
  for (const auto id : asked) {
    if (!of(trainers_[id]))
      continue;
    s.asked.erase(id);
    s.waiting.erase(id);
    add_older_state(number, trainers_[id]);
  }
  write_if_complete(number);
}

/// Those that have all their states or wait for these to arrive: the others are made to by the next one.
std::size_t coordinator::sets_under_way() const {
  return sets_in_flight_ + static_cast<std::size_t>(std::count_if(
                               savings_.begin(), savings_.end(), [](const auto& s) { return s.second.asked.empty(); }));
}

/// Where its next life would begin, if that is not the very beginning.
void coordinator::add_older_state(std::uint64_t number, const trainer& t) {
  if (t.kept) {
    savings_[number].held.emplace_back(t.id, t.kept);
    add_state(number, t, t.kept, t.kept_step);
  } else if (!t.saved.file.empty()) {
    savings_[number].parts.push_back({t.saved, nullptr});
  }
}

/// Brings the state, of step `step`, into this process.
void coordinator::add_state(std::uint64_t number, const trainer& t, const state_ref& x, std::uint64_t step) {
  savings_[number].waiting.insert(t.id);
  core::saved_trainer who;
  who.trainer = t.id;
  who.name = t.spec.name;
  who.incarnation = t.incarnation;
  who.step = step;
  host_.fetch(x, [me = self_handle(), number, who, x](core::result<core::checkpoint_ptr> state) {
    post(me, [number, who, x, state](coordinator& c) {
      const auto i = c.savings_.find(number);
      if (i == c.savings_.end())
        return;
      i->second.waiting.erase(who.trainer);
      if (state) {
        auto in_it = who; // it may have come further than it has told
        if (const auto mark = read_mark(**state))
          in_it.step = mark->step;
        i->second.parts.push_back({in_it, *state});
      } else {
        c.event("state_lost", {{"trainer", who.trainer}, {"name", who.name}, {"reason", state.error().text}});
        // Without it a resumption would have this trainer begin anew, beside others that do not.
        const auto& t = c.trainers_[who.trainer];
        if (t.kept && !(t.kept == x))
          c.add_older_state(number, t);
        else if (!t.saved.file.empty())
          i->second.parts.push_back({t.saved, nullptr});
        else
          i->second.lacks = "the state of " + who.name + " is lost: " + state.error().text;
      }
      c.write_if_complete(number);
    });
  });
}

/// A trainer that is gone is in the sets that wait for it as it was saved before; one that came to its end is not, and the
/// sets wait until that is on record.
void coordinator::leave_savings(const trainer& t) {
  if (ending_.contains(t.id))
    return;
  std::vector<std::uint64_t> waiting;
  for (auto& [number, s] : savings_)
    if (s.waiting.contains(t.id))
      waiting.push_back(number);
  for (const auto number : waiting) {
    const auto i = savings_.find(number);
    if (i == savings_.end())
      continue;
    auto& s = i->second;
    const bool on_its_way =
        std::any_of(s.held.begin(), s.held.end(), [&](const auto& x) { return x.first == t.id; });
    if (on_its_way)
      continue; // its state is out of it already
    s.waiting.erase(t.id);
    s.asked.erase(t.id);
    if (is_live(t.state) || t.state == trainer_state::interrupted)
      add_older_state(number, t);
    write_if_complete(number);
  }
}

void coordinator::write_if_complete(std::uint64_t number) {
  const auto i = savings_.find(number);
  if (ended_ || i == savings_.end() || !i->second.waiting.empty())
    return;
  auto s = std::move(i->second);
  savings_.erase(i);
  if (s.parts.empty() || !s.lacks.empty()) {
    if (!s.lacks.empty())
      event("set_left_out", {{"reason", s.lacks}});
    let_go(s.held, false);
    if (round_.waits)
      record_round();
    check_end();
    return;
  }
  give_up_sets_before(number);
  std::sort(s.parts.begin(), s.parts.end(),
            [](const run_store::part& a, const run_store::part& b) { return a.who.trainer < b.who.trainer; });
  ++sets_in_flight_;
  ++writes_in_flight_;
  host_.store->save_set(
      s.sync, std::move(s.parts), exp_.checkpoints.keep, {},
      [me = self_handle(), held = std::move(s.held),
       pushed = std::move(s.pushed)](core::result<core::checkpoint_set> set) {
        post(me, [set, held, pushed](coordinator& c) {
          --c.sets_in_flight_;
          --c.writes_in_flight_;
          if (c.ended_)
            return;
          if (set) {
            for (const auto& x : set->trainers)
              c.trainers_[x.trainer].saved = x;
            for (const auto& [id, what] : pushed)
              c.forget_pushes(c.trainers_[id], what.first, what.second);
            c.event("checkpoints_written", {{"set", set->number}, {"trainers", set->trainers.size()}});
          }
          c.let_go(held, set.has_value());
          if (!set) { // training on would only add to what is lost
            c.fail_run({set.error().code, "a set of checkpoints cannot be written: " + set.error().text});
            return;
          }
          if (c.round_.waits)
            c.record_round();
          c.save_if_due();
          c.check_end();
        });
      });
  if (round_.waits)
    record_round();
}

/// One that is written after a newer one would take its place.
void coordinator::give_up_sets_before(std::uint64_t number) {
  while (!savings_.empty() && savings_.begin()->first < number) {
    const auto held = std::move(savings_.begin()->second.held);
    savings_.erase(savings_.begin());
    let_go(held, false);
  }
}

/// States that a set had kept in memory, now that it is `written` or will not be.
void coordinator::let_go(const std::vector<std::pair<core::trainer_id, state_ref>>& held, bool written) {
  for (const auto& [id, ref] : held) {
    auto& t = trainers_[id];
    if (!(t.kept == ref))
      drop(ref); // exported for this set alone, or replaced meanwhile (then it is gone already)
    else if (written && (t.hdl || !is_live(t.state)))
      drop(std::exchange(t.kept, {}));
    else if (written) // its new life is on the way and begins with this
      t.loading = std::exchange(t.kept, {});
  }
}

// -- the end of one
// --------------------------------------------------------------------------------------------------------------

/// Its last state goes to final/NAME.safetensors; then its end is recorded. Before that it has not finished: where that state is lost
/// it begins again, and where it cannot be written the run ends.
void coordinator::save_final(trainer& t, const state_ref& x, nlohmann::json details) {
  if (!x) {
    event("trainer_finished", std::move(details));
    end_is_recorded(t.id);
    return;
  }
  ++writes_in_flight_;
  host_.fetch(x, [me = self_handle(), id = t.id, x, details](core::result<core::checkpoint_ptr> state) {
    post(me, [id, x, details, state](coordinator& c) {
      c.drop(x);
      if (state)
        c.write_final(id, *state, details);
      else
        c.final_lost(id, state.error());
    });
  });
}

void coordinator::write_final(core::trainer_id id, core::checkpoint_ptr state, nlohmann::json details) {
  // Of the tensors alone: what a run was through in between (lives, pauses) does not show in it.
  core::checkpoint weights;
  for (const auto& tensor : state->tensors())
    weights.add(tensor);
  trainers_[id].final_hash = core::content_hash(weights);
  if (!host_.store->keeps_files()) {
    end_final(id, std::move(details));
    return;
  }
  const auto file = "final/" + trainers_[id].spec.name + ".safetensors";
  details["file"] = file;
  host_.store->save_file(file, std::move(state), [me = self_handle(), id, details](core::result<void> ok) {
    post(me, [id, details, ok](coordinator& c) {
      if (ok)
        c.end_final(id, details);
      else
        c.final_not_written(id, ok.error());
    });
  });
}

void coordinator::end_final(core::trainer_id id, nlohmann::json details) {
  event("trainer_finished", std::move(details));
  --writes_in_flight_;
  end_is_recorded(id);
  check_end();
}

void coordinator::final_not_written(core::trainer_id id, const core::error& why) {
  --writes_in_flight_;
  if (ended_)
    return;
  auto& t = trainers_[id];
  t.state = trainer_state::interrupted;
  t.reason.clear();
  t.final_hash = 0;
  fail_run({why.code, "the last state of trainer " + t.spec.name + " cannot be written: " + why.text});
}

/// The process that had it is gone, or does not hand it over; then not for ever.
void coordinator::final_lost(core::trainer_id id, const core::error& why) {
  --writes_in_flight_;
  if (ended_)
    return;
  auto& t = trainers_[id];
  const core::error lost{why.code, "its last state was lost before it was saved: " + why.text};
  if (++t.finals_lost > exp_.failures.max_restarts + 1) {
    t.state = trainer_state::interrupted;
    fail_run({why.code, "the last state of trainer " + t.spec.name + " cannot be fetched: " + why.text});
    return;
  }
  event("trainer_failed", {{"trainer", t.id},
                           {"name", t.spec.name},
                           {"incarnation", t.incarnation},
                           {"step", t.step},
                           {"reason", lost.text},
                           {"blameless", true},
                           {"final", false}});
  t.failure = lost;
  t.reason.clear();
  t.stop_reason.clear(); // it stops where it had stopped
  t.enough = false;
  t.spec.stop_step = std::min(t.spec.stop_step, t.step);
  t.state = trainer_state::restarting;
  ++t.incarnation;
  ++live_;
  unchecked_ += t.rules_checked ? 0 : 1;
  ending_.erase(id);
  std::vector<std::uint64_t> waiting; // sets that its end was to be on record before
  for (auto& [number, s] : savings_)
    if (s.waiting.erase(id) > 0)
      waiting.push_back(number);
  for (const auto number : waiting)
    if (savings_.contains(number))
      add_older_state(number, t);
  if (interrupting_) {
    end(t, trainer_state::interrupted);
  } else {
    launch(t);
  }
  for (const auto number : waiting)
    write_if_complete(number);
  check_end();
}

void coordinator::end_is_recorded(core::trainer_id id) {
  ending_.erase(id);
  auto& t = trainers_[id];
  drop(std::exchange(t.kept, {}));
  t.replay.clear();
  std::vector<std::uint64_t> waiting;
  for (auto& [number, s] : savings_)
    if (s.waiting.erase(id) > 0)
      waiting.push_back(number);
  for (const auto number : waiting)
    write_if_complete(number);
}

} // namespace troupe::actors::internal
