#include "troupe/core/trainer_machine.hpp"

#include <algorithm>
#include <utility>

namespace troupe::core {

std::string_view to_string(trainer_phase x) noexcept {
  switch (x) {
  case trainer_phase::building: return "building";
  case trainer_phase::ready: return "ready";
  case trainer_phase::running: return "running";
  case trainer_phase::parking: return "parking";
  case trainer_phase::parked: return "parked";
  case trainer_phase::applying: return "applying";
  case trainer_phase::stopping: return "stopping";
  case trainer_phase::finished: return "finished";
  case trainer_phase::failed: return "failed";
  }
  return "unknown";
}

trainer_machine::actions trainer_machine::built(std::uint64_t step, sync_index syncs_done) {
  actions out;
  if (over() || flight_ != flight::build) {
    ++dropped_;
    return out;
  }
  flight_ = flight::none;
  step_ = measured_at_ = step;
  syncs_done_ = syncs_done;
  decided_ = syncs_done;
  advance(out);
  return out;
}

trainer_machine::actions trainer_machine::begin() {
  actions out;
  if (over() || begun_) {
    ++dropped_;
    return out;
  }
  begun_ = true;
  advance(out);
  return out;
}

trainer_machine::actions trainer_machine::pause() {
  actions out;
  if (over()) {
    ++dropped_;
    return out;
  }
  paused_ = true;
  pause_owed_ = true;
  attend(out);
  advance(out);
  return out;
}

trainer_machine::actions trainer_machine::resume() {
  actions out;
  if (over()) {
    ++dropped_;
    return out;
  }
  paused_ = false;
  pause_owed_ = false;
  out.push_back(say_resumed{});
  advance(out);
  return out;
}

trainer_machine::actions trainer_machine::stop(bool save) {
  actions out;
  if (over() || flight_ == flight::finish) {
    ++dropped_;
    return out;
  }
  stop_ = stop_.value_or(false) || save;
  attend(out);
  advance(out);
  return out;
}

trainer_machine::actions trainer_machine::push(ticket job) { return enqueue({queued::kind::push, job}); }

trainer_machine::actions trainer_machine::export_state(ticket job) { return enqueue({queued::kind::export_state, job}); }

trainer_machine::actions trainer_machine::move(ticket job) { return enqueue({queued::kind::move, job}); }

trainer_machine::actions trainer_machine::apply(ticket job, sync_index sync, bool stops) {
  queued x{queued::kind::apply, job, sync, stops};
  if (over() || may_apply(sync))
    return enqueue(x);
  actions out; // not worth an interrupt
  drop(out, x);
  return out;
}

trainer_machine::actions trainer_machine::call_sync(sync_index sync) {
  actions out;
  if (over() || sync < syncs_done_ || (flight_ == flight::measure && sync <= measuring_)) {
    ++dropped_;
    return out;
  }
  called_ = std::max(called_.value_or(sync), sync);
  attend(out);
  advance(out);
  return out;
}

trainer_machine::actions trainer_machine::resume_sync(sync_index sync) {
  if (over() || parked_ != sync) {
    ++dropped_;
    return {};
  }
  return enqueue({queued::kind::resume_sync, 0, sync});
}

trainer_machine::actions trainer_machine::release(sync_index sync) {
  if (over() || sync < released_) {
    ++dropped_;
    return {};
  }
  if (parked_)
    return enqueue({queued::kind::release, 0, sync});
  released_ = sync + 1;
  return {};
}

trainer_machine::actions trainer_machine::report_taken() {
  actions out;
  if (over() || untaken_ == 0) {
    ++dropped_;
    return out;
  }
  --untaken_;
  advance(out);
  return out;
}

trainer_machine::actions trainer_machine::run_ended(std::uint64_t steps, bool failed) {
  actions out;
  if (over() || flight_ != flight::run) {
    ++dropped_;
    return out;
  }
  flight_ = flight::none;
  step_ += steps;
  if (failed || steps > asked_)
    return fail();
  advance(out);
  return out;
}

trainer_machine::actions trainer_machine::task_ended(outcome how) {
  actions out;
  if (over() || flight_ == flight::none || flight_ == flight::run || flight_ == flight::build) {
    ++dropped_;
    return out;
  }
  const auto was = std::exchange(flight_, flight::none);
  if (how == outcome::fatal || (how == outcome::refused && was != flight::job))
    return fail();
  if (was == flight::measure) {
    measured_at_ = step_;
    syncs_done_ = measuring_ + 1;
    if (called_ && *called_ <= measuring_)
      called_.reset();
    undecided_ = measuring_;
    if (plan_.asynchronous)
      ++untaken_;
    else if (measuring_ >= released_)
      parked_ = measuring_;
    out.push_back(report{measuring_});
  } else if (was == flight::job) {
    if (stops_ && how == outcome::done)
      stop_ = stop_.value_or(false);
    stops_ = false;
  } else {
    end_ = end::finished;
    refuse_jobs(out);
    out.push_back(say_finished{stopped_});
    return out;
  }
  advance(out);
  return out;
}

trainer_machine::actions trainer_machine::fail() {
  actions out;
  if (over()) {
    ++dropped_;
    return out;
  }
  end_ = end::failed;
  refuse_jobs(out);
  out.push_back(say_failed{});
  return out;
}

trainer_phase trainer_machine::phase() const noexcept {
  if (end_ != end::no)
    return end_ == end::failed ? trainer_phase::failed : trainer_phase::finished;
  if (flight_ == flight::finish || stop_)
    return trainer_phase::stopping;
  if (flight_ == flight::build)
    return trainer_phase::building;
  if (flight_ == flight::measure)
    return trainer_phase::parking;
  if (parked_)
    return flight_ == flight::job ? trainer_phase::applying : trainer_phase::parked;
  return begun_ ? trainer_phase::running : trainer_phase::ready;
}

std::optional<sync_index> trainer_machine::next_sync() const {
  auto step = step_ == 0 ? 0 : step_ - 1; // this very step may be one that was not held yet
  while (auto next = plan_.schedule.next_after(step, plan_.stop_step)) {
    if (auto k = plan_.schedule.index_of(*next); k >= std::max(syncs_done_, released_))
      return k;
    step = *next;
  }
  return std::nullopt;
}

trainer_machine::actions trainer_machine::enqueue(queued x) {
  actions out;
  if (over()) {
    drop(out, x);
    return out;
  }
  jobs_.push_back(x);
  attend(out);
  advance(out);
  return out;
}

/// Something waits for the next boundary: a run in flight must come to it.
void trainer_machine::attend(actions& out) {
  if (flight_ == flight::run && !interrupted_) {
    interrupted_ = true;
    out.push_back(interrupt{});
  }
}

/// At a boundary: whatever comes next.
void trainer_machine::advance(actions& out) {
  while (flight_ == flight::none && !over()) {
    held_back_ = false;
    if (stop_) {
      refuse_jobs(out);
      stopped_ = step_ < plan_.stop_step;
      flight_ = flight::finish;
      out.push_back(finish{*stop_, stopped_});
      return;
    }
    if (!jobs_.empty()) {
      take_job(out);
      continue;
    }
    if (std::exchange(pause_owed_, false))
      out.push_back(say_paused{});
    if (paused_ || !begun_ || parked_)
      return;
    if (step_ >= plan_.stop_step) {
      stopped_ = false;
      flight_ = flight::finish;
      out.push_back(finish{true, false});
    } else if (auto k = due_sync()) {
      held_back_ = plan_.asynchronous && untaken_ >= plan_.reports_ahead;
      if (held_back_)
        return;
      measuring_ = *k;
      flight_ = flight::measure;
      out.push_back(measure{*k});
    } else {
      asked_ = run_limit() - step_;
      interrupted_ = false;
      flight_ = flight::run;
      out.push_back(run{asked_});
    }
    return;
  }
}

void trainer_machine::take_job(actions& out) {
  const auto x = jobs_.front();
  jobs_.pop_front();
  switch (x.what) {
  case queued::kind::apply:
    if (!may_apply(x.sync)) {
      drop(out, x);
      return;
    }
    undecided_.reset();
    decided_ = x.sync + 1;
    stops_ = x.stops;
    break;
  case queued::kind::move:
    if (!would_run()) {
      drop(out, x);
      return;
    }
    break;
  case queued::kind::resume_sync:
    if (parked_ == x.sync)
      parked_.reset();
    else
      ++dropped_;
    return;
  case queued::kind::release:
    released_ = std::max(released_, x.sync + 1);
    if (parked_ && *parked_ < released_)
      parked_.reset();
    return;
  default: break;
  }
  flight_ = flight::job;
  out.push_back(work{x.job});
}

void trainer_machine::refuse_jobs(actions& out) {
  for (const auto& x : jobs_)
    if (x.what != queued::kind::resume_sync && x.what != queued::kind::release)
      out.push_back(refuse{x.job, false});
  jobs_.clear();
}

void trainer_machine::drop(actions& out, const queued& x) {
  ++dropped_;
  out.push_back(refuse{x.job, true});
}

/// Asynchronous: decisions may come late, for any sync point that was reported, but in their order.
bool trainer_machine::may_apply(sync_index sync) const noexcept {
  if (plan_.asynchronous)
    return sync >= decided_ && sync < syncs_done_;
  return undecided_ == sync && parked_ == sync;
}

/// If it were not for the jobs.
bool trainer_machine::would_run() {
  return begun_ && !paused_ && !parked_ && step_ < plan_.stop_step && !due_sync();
}

/// The sync point to be held at this very step, if any; passes over released ones.
std::optional<sync_index> trainer_machine::due_sync() {
  if (called_ && *called_ < released_)
    called_.reset();
  if (called_ && step_ > measured_at_)
    return called_;
  if (step_ == 0 || plan_.schedule.next_after(step_ - 1, plan_.stop_step) != step_)
    return std::nullopt;
  const auto k = plan_.schedule.index_of(step_);
  if (k < syncs_done_ || k < released_)
    return std::nullopt;
  return k;
}

std::uint64_t trainer_machine::run_limit() const {
  if (called_)
    return step_ + 1; // it would have parked if it had made a step
  return plan_.schedule.next_after(step_, plan_.stop_step).value_or(plan_.stop_step);
}

} // namespace troupe::core
