#include "troupe/gpu/slot_worker.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <future>
#include <limits>
#include <list>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend.hpp"
#include "troupe/core/run_order.hpp"
#include "troupe/core/subnormals.hpp"

namespace troupe::gpu {

namespace {

double seconds(slot_worker::clock::duration x) { return std::chrono::duration<double>(x).count(); }

core::error cancelled() { return {core::errc::cancelled, "the slot was closed before this work was done"}; }

} // namespace

core::error current_error(bool* device_lost) noexcept {
  try {
    try {
      throw;
    } catch (const out_of_memory& e) {
      return {core::errc::out_of_memory, e.what()};
    } catch (const device_error& e) {
      if (device_lost != nullptr && e.sticky())
        *device_lost = true;
      return {core::errc::device, e.what()};
    } catch (const std::bad_alloc&) {
      return {core::errc::out_of_memory, "host memory ran out"};
    } catch (const std::exception& e) {
      return {core::errc::failed, e.what()[0] != '\0' ? e.what() : "an exception without a text"};
    } catch (...) {
      return {core::errc::failed, "an exception that is not derived from std::exception"};
    }
  } catch (...) { // no memory for the text
    return {core::errc::out_of_memory, {}};
  }
}

struct slot_worker::impl {
  struct queued_run {
    std::shared_ptr<hosted> who;
    std::uint64_t wanted = 0;
    run_done done;
    clock::time_point since; // waiting since then
    run_outcome outcome;
    bool has_turn = false; // in `current`
    run_hint hint;
    // What others may know of it while it has its turn.
    std::uint64_t left = 0;
    double step_seconds = 0, settled_seconds = 0;
  };
  struct queued_task {
    task work;
    task_done done;
  };
  using run_list = std::list<queued_run>;

  impl(slot_options o, settings s) : options(std::move(o)), config(s) {}

  slot_options options;
  const settings config;
  std::thread thread;
  std::thread::id thread_id;

  mutable std::mutex mutex;
  std::condition_variable wake;
  std::deque<queued_task> tasks;
  run_list runs; // waiting: higher priorities first, then who has waited longest
  run_list current;                                            // empty, or those that have the device, as one
  fusion* together = nullptr;                                  // what `current` has in common, if anything
  run_list ended;                                              // their completions are due
  std::unordered_map<const hosted*, run_list::iterator> index; // of runs and current
  bool stopping = false, sleeping = false, woken = false;
  counters count;
  clock::time_point idle_since;
  std::function<void()> when_idle, when_shared;                // null: nobody wants to know
  std::unique_ptr<context> ctx; // made and destroyed by the thread

  std::vector<queued_run*> doers; // of `current`, in the slice at hand; the thread's alone, as are the next two
  std::vector<fused_run> fused;   // their parts
  std::vector<std::pair<core::waiting_run, run_list::iterator>> joining;

  std::atomic<bool> attention{false}; // the step loop should come back: a task, an interrupt or the end

  void main(std::promise<void> opened) noexcept {
    core::flush_subnormals(); // also of whatever else computes here
    try {
      ctx = std::make_unique<context>(options);
      std::lock_guard lock(mutex);
      idle_since = clock::now();
    } catch (...) {
      opened.set_exception(std::current_exception());
      return;
    }
    opened.set_value();
    std::unique_lock lock(mutex);
    auto slice_end = clock::time_point::min();
    while (!stopping) {
      if (!ended.empty()) {
        finish_ended(lock);
      } else if (!tasks.empty()) {
        const auto took = run_task(lock);
        if (!current.empty())
          slice_end += took; // not at the expense of the run it interrupted
      } else if (!current.empty() || !runs.empty()) {
        run_slice(lock, slice_end);
      } else if (when_idle) {
        tell(lock, when_idle);
      } else {
        idle_since = clock::now();
        sleeping = true;
        wake.wait(lock, [this] { return stopping || !tasks.empty() || !runs.empty() || !ended.empty(); });
        woken = false;
        sleeping = false;
        count.idle_seconds += seconds(clock::now() - idle_since);
      }
    }
    cancel_all(lock);
    lock.unlock();
    ctx.reset();
  }

  static void tell(std::unique_lock<std::mutex>& lock, std::function<void()>& whom) noexcept {
    const auto then = std::exchange(whom, nullptr);
    lock.unlock();
    then();
    lock.lock();
  }

  bool is_busy() const { return !tasks.empty() || !runs.empty() || !current.empty() || !ended.empty(); }
  bool is_shared() const { return runs.size() + current.size() > 1; }

  /// Where it stands, for others to read.
  static void note(queued_run& r) {
    r.left = r.wanted - r.outcome.steps;
    r.step_seconds = r.who->step_seconds;
    r.settled_seconds = r.who->compute_seconds - r.who->settled_at;
  }

  void finish_ended(std::unique_lock<std::mutex>& lock) noexcept {
    run_list mine;
    mine.splice(mine.end(), ended);
    lock.unlock();
    const auto now = clock::now();
    for (auto& r : mine) {
      r.who->wait_seconds += seconds(now - r.since);
      r.done(std::move(r.outcome));
    }
    mine.clear(); // may destroy a workload
    lock.lock();
  }

  clock::duration run_task(std::unique_lock<std::mutex>& lock) noexcept {
    auto item = std::move(tasks.front());
    tasks.pop_front();
    lock.unlock();
    const auto began = clock::now();
    ctx->impl().collect();
    core::result<void> outcome;
    try {
      item.work(*ctx);
    } catch (...) {
      outcome = current_error();
    }
    item.work = nullptr; // what the task captured dies before its completion is known
    const auto took = clock::now() - began;
    lock.lock();
    ++count.tasks;
    count.busy_seconds += seconds(took);
    if (item.done) {
      lock.unlock();
      item.done(std::move(outcome));
      item.done = nullptr;
      lock.lock();
    }
    return took;
  }

  static fusion* fusion_of(const queued_run& r) noexcept {
    return r.who->work != nullptr ? r.who->work->fused_with() : nullptr;
  }

  static core::waiting_run rank(const queued_run& r, std::uint64_t turn) {
    const auto left = r.wanted - std::min(r.outcome.steps, r.wanted);
    const auto done = r.who->progress.load(std::memory_order_relaxed);
    const auto here = r.who->compute_seconds - r.who->settled_at; // as are the steps done
    const auto step = done > 0 ? here / static_cast<double>(done) : std::numeric_limits<double>::infinity();
    return {r.hint.priority, r.hint.before_barrier, left > 0 ? static_cast<double>(left) * step : 0.0, turn};
  }

  /// Of those of the highest priority the first by core::goes_before, as far as a look at each slice may go.
  run_list::iterator next_run() {
    constexpr std::uint64_t looks = 64;
    auto best = runs.begin();
    auto best_rank = rank(*best, 0);
    std::uint64_t turn = 1;
    for (auto r = std::next(best); r != runs.end() && turn < looks && r->hint.priority == best_rank.priority; ++r, ++turn)
      if (const auto x = rank(*r, turn); core::goes_before(x, best_rank)) {
        best = r;
        best_rank = x;
      }
    return best;
  }

  /// Behind all that go first.
  run_list::iterator place_of(const run_hint& hint) {
    auto at = runs.end();
    while (at != runs.begin() && std::prev(at)->hint.priority < hint.priority)
      --at;
    return at;
  }

  /// Turns are shared among equals: on a CPU those that run as one take turns within theirs, and on a GPU each costs the others
  /// something.
  bool goes_with_front(const queued_run& r) const noexcept {
    return together != nullptr && fusion_of(r) == together && r.hint.priority == current.front().hint.priority;
  }

  /// Someone who goes before those that have the device waits for it.
  bool is_outranked() const noexcept {
    return !current.empty() && !runs.empty() && runs.front().hint.priority > current.front().hint.priority;
  }

  /// A waiting run gets a turn: its share of the slice begins.
  void admit(run_list::iterator r, clock::time_point now, clock::time_point& slice_end) {
    r->who->wait_seconds += seconds(now - r->since);
    r->has_turn = true;
    current.splice(current.end(), runs, r);
    slice_end += config.slice;
  }

  /// The next run, and all others that can run with it as one. Those that came after the slice began join it: each would have
  /// had its turn soon.
  void admit_next(clock::time_point now, clock::time_point& slice_end) {
    if (current.empty()) {
      slice_end = now;
      admit(next_run(), now, slice_end);
    }
    together = fusion_of(current.front());
    for (auto r = std::next(current.begin()); r != current.end();) { // a task may have changed someone's workload
      const auto next = std::next(r);
      if (!goes_with_front(*r))
        send_back(r, now);
      r = next;
    }
    if (together == nullptr)
      return;
    const auto most = together->most();
    if (current.size() >= most)
      return;
    joining.clear();
    for (auto r = runs.begin(); r != runs.end(); ++r)
      if (goes_with_front(*r))
        joining.emplace_back(rank(*r, joining.size()), r);
    const auto room = std::min(joining.size(), most - current.size());
    std::partial_sort(joining.begin(), joining.begin() + static_cast<std::ptrdiff_t>(room), joining.end(),
                      [](const auto& a, const auto& b) { return core::goes_before(a.first, b.first); });
    for (std::size_t i = 0; i < room; ++i)
      admit(joining[i].second, now, slice_end);
  }

  void send_back(run_list::iterator r, clock::time_point now) {
    r->since = now;
    r->has_turn = false;
    runs.splice(place_of(r->hint), current, r);
  }

  static bool is_over(const queued_run& r) {
    return r.outcome.steps >= r.wanted || r.who->interrupt.load(std::memory_order_relaxed)
           || !r.outcome.failure.text.empty();
  }

  /// The exception being handled is this run's end.
  static void fail(queued_run& r) noexcept {
    r.outcome.failure = current_error(&r.outcome.device_lost);
    if (r.outcome.failure.text.empty())
      r.outcome.failure.text = "host memory ran out"; // fits into the string itself
  }

  static void check_steps(std::uint64_t done, std::uint64_t wanted, bool alone) {
    if (done > wanted || (alone && done == 0))
      throw std::logic_error("the workload's run() reports " + std::to_string(done) + " steps, but 1 to "
                             + std::to_string(wanted) + " were asked for");
  }

  /// The exception being handled ends the run after the steps that count; those that can't be true do not.
  static void fail_after(queued_run& r, fused_run& x) noexcept {
    if (x.report.steps > x.max_steps)
      x.report = {};
    fail(r);
  }

  void run_alone(queued_run& r, fused_run& x) noexcept {
    try {
      if (r.who->work == nullptr)
        throw std::logic_error("the trainer has no workload: build or load it first");
      r.who->work->run(*ctx, x.max_steps, x.report);
      check_steps(x.report.steps, x.max_steps, true);
    } catch (...) {
      fail_after(r, x);
    }
  }

  void run_together() noexcept {
    try {
      together->run(*ctx, fused);
      const bool any = std::any_of(fused.begin(), fused.end(), [](const auto& x) { return x.report.steps > 0 || x.failure; });
      if (!any)
        throw std::logic_error("the workloads' fusion::run() reports neither steps nor a failure");
    } catch (...) {
      const auto failure = std::current_exception();
      for (auto& x : fused)
        if (!x.failure)
          x.failure = failure;
    }
    for (std::size_t i = 0; i < fused.size(); ++i)
      try {
        if (fused[i].failure)
          std::rethrow_exception(std::exchange(fused[i].failure, nullptr));
        check_steps(fused[i].report.steps, fused[i].max_steps, false);
      } catch (...) {
        fail_after(*doers[i], fused[i]);
      }
  }

  /// Others leave `current` alone until it is given up.
  void run_slice(std::unique_lock<std::mutex>& lock, clock::time_point& slice_end) noexcept {
    const auto began = clock::now();
    attention.store(false, std::memory_order_relaxed);
    doers.clear();
    fused.clear();
    admit_next(began, slice_end);
    for (auto& r : current)
      if (!is_over(r)) {
        doers.push_back(&r);
        fused.push_back({r.who->work.get(), r.wanted - r.outcome.steps, {}, nullptr});
      }
    lock.unlock();
    std::uint64_t steps = 0;
    if (!doers.empty()) {
      ctx->impl().collect();
      ctx->set_yield(&attention, slice_end);
      if (together != nullptr)
        run_together();
      else
        run_alone(*doers.front(), fused.front());
      slice_end = ctx->deadline();
      ctx->set_yield(nullptr, clock::time_point::max());
      for (const auto& x : fused)
        steps += x.report.steps;
    }
    const auto ended_at = clock::now();
    const auto took = seconds(ended_at - began);
    for (std::size_t i = 0; i < doers.size(); ++i) {
      auto& r = *doers[i];
      const auto& report = fused[i].report;
      const auto share = took * (steps > 0 ? static_cast<double>(report.steps) / static_cast<double>(steps)
                                           : 1 / static_cast<double>(doers.size()));
      r.who->compute_seconds += share;
      r.who->wait_seconds += took - share; // the device was the others'
      if (report.steps > 0) {
        const auto each = share / static_cast<double>(report.steps);
        r.who->step_seconds = r.who->step_seconds > 0 ? (r.who->step_seconds + each) / 2 : each;
      }
      r.who->loss_sum += report.loss_sum;
      r.who->loss_count += report.steps;
      r.who->progress.fetch_add(report.steps, std::memory_order_relaxed);
      r.outcome.steps += report.steps;
    }
    lock.lock();
    ++count.slices;
    count.steps += steps;
    count.busy_seconds += took;
    for (auto* r : doers)
      note(*r);
    if (doers.size() > 1) {
      ++count.fused_slices;
      count.fused_members += doers.size();
      count.fused_steps += steps;
    }
    retire(ended_at);
    if (!current.empty() && (ended_at >= slice_end || is_outranked())) {
      if (runs.empty())
        slice_end = ended_at + config.slice * static_cast<int>(current.size());
      else
        while (!current.empty())
          send_back(current.begin(), ended_at);
    }
    if (current.empty())
      together = nullptr;
    if (!ended.empty())
      finish_ended(lock);
  }

  /// From here on an interrupt finds no run of those that are over, so it cannot hit their trainers' next ones.
  void retire(clock::time_point now) {
    for (auto r = current.begin(); r != current.end();) {
      const auto next = std::next(r);
      if (is_over(*r)) {
        r->outcome.interrupted = r->outcome.steps < r->wanted && r->outcome.failure.text.empty();
        index.erase(r->who.get());
        r->since = now;
        ended.splice(ended.end(), current, r);
      }
      r = next;
    }
  }

  void cancel_all(std::unique_lock<std::mutex>& lock) noexcept {
    runs.splice(runs.begin(), current);
    together = nullptr;
    for (auto& r : runs)
      if (r.outcome.failure.text.empty())
        r.outcome.failure = cancelled();
    ended.splice(ended.end(), runs);
    index.clear();
    finish_ended(lock);
    auto mine = std::move(tasks);
    tasks.clear();
    lock.unlock();
    for (auto& t : mine) {
      t.work = nullptr;
      if (t.done)
        t.done(cancelled());
    }
    mine.clear();
    lock.lock();
  }

  /// Gives up the lock and wakes the thread if it sleeps: after the unlock, so that it does not wait for it.
  void wake_up(std::unique_lock<std::mutex>& lock) {
    const bool asleep = sleeping && !std::exchange(woken, true);
    lock.unlock();
    if (asleep)
      wake.notify_one();
  }
};

slot_worker::slot_worker(slot_options options, settings s)
    : impl_(std::make_shared<impl>(std::move(options), s)) {
  std::promise<void> opened;
  auto ready = opened.get_future();
  impl_->thread = std::thread([self = impl_, p = std::move(opened)]() mutable { self->main(std::move(p)); });
  impl_->thread_id = impl_->thread.get_id();
  try {
    ready.get();
  } catch (...) {
    impl_->thread.join();
    throw;
  }
}

slot_worker::~slot_worker() {
  {
    std::unique_lock lock(impl_->mutex);
    impl_->stopping = true;
    impl_->attention.store(true, std::memory_order_relaxed);
    impl_->wake_up(lock);
  }
  if (impl_->thread_id == std::this_thread::get_id())
    impl_->thread.detach(); // destroyed by a completion: the thread ends by itself when that returns
  else
    impl_->thread.join();
}

void slot_worker::run(std::shared_ptr<hosted> who, std::uint64_t steps, run_done done, run_hint hint) {
  if (who == nullptr || done == nullptr)
    throw std::invalid_argument("slot_worker::run needs a hosted workload and a completion");
  const auto now = clock::now();
  impl::run_list item;
  item.push_back({std::move(who), steps, std::move(done), now, {}, false, hint, steps, 0, 0});
  auto& r = item.front();
  std::unique_lock lock(impl_->mutex);
  if (impl_->stopping) {
    lock.unlock();
    r.outcome.failure = cancelled();
    r.done(std::move(r.outcome));
    return;
  }
  const auto [at, fresh] = impl_->index.try_emplace(r.who.get(), item.begin());
  if (fresh) {
    r.who->interrupt.store(false, std::memory_order_relaxed);
    impl::note(r);
    impl_->runs.splice(impl_->place_of(hint), item);
    if (impl_->together != nullptr)
      impl_->attention.store(true, std::memory_order_relaxed); // it may belong to those that run
  } else {
    r.outcome.failure = {core::errc::refused, "this trainer already has a run on its slot"};
    impl_->ended.splice(impl_->ended.end(), item);
    impl_->attention.store(true, std::memory_order_relaxed);
  }
  const auto then = impl_->when_shared && impl_->is_shared() ? std::exchange(impl_->when_shared, nullptr) : nullptr;
  impl_->wake_up(lock);
  if (then)
    then();
}

void slot_worker::interrupt(const std::shared_ptr<hosted>& who) {
  std::unique_lock lock(impl_->mutex);
  const auto at = impl_->index.find(who.get());
  if (at == impl_->index.end())
    return;
  who->interrupt.store(true, std::memory_order_relaxed);
  const auto r = at->second;
  if (!r->has_turn) {
    r->outcome.interrupted = true;
    impl_->ended.splice(impl_->ended.end(), impl_->runs, r);
    impl_->index.erase(at);
  }
  impl_->attention.store(true, std::memory_order_relaxed);
  impl_->wake_up(lock);
}

void slot_worker::post(task work, task_done done) {
  std::unique_lock lock(impl_->mutex);
  if (impl_->stopping) {
    lock.unlock();
    if (done)
      done(cancelled());
    return;
  }
  impl_->tasks.push_back({std::move(work), std::move(done)});
  impl_->attention.store(true, std::memory_order_relaxed);
  impl_->wake_up(lock);
}

slot_worker::counters slot_worker::snapshot() const {
  std::lock_guard lock(impl_->mutex);
  auto out = impl_->count;
  if (impl_->sleeping)
    out.idle_seconds += seconds(clock::now() - impl_->idle_since);
  out.running = impl_->current.size();
  out.waiting = impl_->runs.size();
  if (impl_->ctx != nullptr) {
    out.memory_used = impl_->ctx->memory_used();
    out.memory_peak = impl_->ctx->memory_peak();
    out.memory_budget = impl_->ctx->memory_budget();
    out.pinned_budget = impl_->options.pinned_budget;
    out.device = impl_->ctx->snapshot();
  }
  return out;
}

slot_worker::load slot_worker::current_load() const {
  constexpr std::size_t most = 64; // enough to see what a move is worth
  load out;
  std::lock_guard lock(impl_->mutex);
  out.idle = impl_->sleeping && !impl_->is_busy();
  for (const auto* list : {&impl_->current, &impl_->runs})
    for (const auto& r : *list) {
      if (out.runs.size() == most)
        return out;
      out.runs.push_back({r.who->number, r.left, r.step_seconds, r.who->move_seconds, r.settled_seconds});
    }
  return out;
}

void slot_worker::when(turn what, std::function<void()> then) {
  std::unique_lock lock(impl_->mutex);
  const bool now = what == turn::idle ? impl_->sleeping && !impl_->is_busy() : impl_->is_shared();
  if (!now || !then) {
    // What is replaced dies without the lock: it may hold an actor.
    std::swap(what == turn::idle ? impl_->when_idle : impl_->when_shared, then);
    lock.unlock();
    return;
  }
  lock.unlock();
  then();
}

const slot_options& slot_worker::options() const noexcept { return impl_->options; }

} // namespace troupe::gpu
