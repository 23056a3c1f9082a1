/// Runs that a slot takes as one.
#include "troupe/gpu/slot_worker.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <future>
#include <mutex>
#include <vector>

#include <doctest/doctest.h>

#include "slot_worker_fixture.hpp"

using namespace troupe;
using namespace troupe::gpu;
using namespace troupe::test;

namespace {

/// Workloads that run as one: each step of the team is one of every member, and whatever the test says.
class team : public fusion {
public:
  using step_function = std::function<void(context&, std::span<fused_run>, std::uint64_t step)>;
  explicit team(step_function f = nullptr, std::size_t limit = 1000) : step_(std::move(f)), limit_(limit) {}

  void run(context& ctx, std::span<fused_run> runs) override {
    for (;;) {
      ++steps;
      together.push_back(runs.size());
      bool over = false;
      for (auto& r : runs) {
        ++r.report.steps;
        r.report.loss_sum += 1;
        over = over || r.report.steps == r.max_steps;
      }
      if (step_)
        step_(ctx, runs, steps);
      for (const auto& r : runs)
        over = over || r.failure != nullptr;
      if (over || ctx.should_yield())
        return;
    }
  }
  std::size_t most() const noexcept override { return limit_; }

  std::uint64_t steps = 0;
  std::vector<std::size_t> together; ///< of each step
private:
  step_function step_;
  std::size_t limit_;
};

class teamed : public scripted {
public:
  explicit teamed(std::shared_ptr<team> t) : team_(std::move(t)) {}
  fusion* fused_with() noexcept override { return team_.get(); }

private:
  std::shared_ptr<team> team_;
};

std::shared_ptr<hosted> host(std::shared_ptr<team> t) {
  auto out = std::make_shared<hosted>();
  out->work = std::make_unique<teamed>(std::move(t));
  return out;
}

/// Holds the slot until the test has queued what it wants.
struct held {
  gate g;
  std::future<core::result<void>> task;
  explicit held(slot_worker& w) {
    task = start(w, [this](context&) { g.pass(); });
    g.reached.wait();
  }
  void release() { g.open_promise.set_value(); }
};

} // namespace

TEST_CASE("runs that fit together run as one and each ends with its own steps") {
  slot_worker w(cpu_slot(), one_long_slice);
  auto t = std::make_shared<team>(), other = std::make_shared<team>();
  held h(w);
  std::vector<std::shared_ptr<hosted>> who;
  std::vector<std::future<run_outcome>> runs;
  for (std::uint64_t i = 0; i < 4; ++i) {
    who.push_back(host(t));
    runs.push_back(start(w, who.back(), 10 * (i + 1)));
  }
  auto of_another = start(w, host(other), 7);
  auto lone = start(w, host(), 5);
  h.release();
  for (std::uint64_t i = 0; i < 4; ++i) {
    const auto o = runs[i].get();
    CHECK(o.steps == 10 * (i + 1));
    CHECK_FALSE(o.interrupted);
    CHECK(o.failure.text.empty());
    CHECK(who[i]->progress == 10 * (i + 1));
    CHECK(who[i]->loss_sum == 10.0 * static_cast<double>(i + 1));
    CHECK(who[i]->loss_count == 10 * (i + 1));
  }
  CHECK(of_another.get().steps == 7);
  CHECK(lone.get().steps == 5);
  CHECK(t->steps == 40); // not 100
  CHECK(std::count(t->together.begin(), t->together.end(), 4u) == 10);
  CHECK(std::count(t->together.begin(), t->together.end(), 1u) == 10);
  const auto c = w.snapshot();
  CHECK(c.steps == 112);
  CHECK(c.fused_steps == 40 + 30 + 20);
  CHECK(c.fused_slices == 3);
  CHECK(c.fused_members == 4 + 3 + 2);
}

TEST_CASE("a run of a higher priority shares its turns with none below and takes over from them at once") {
  slot_worker w(cpu_slot(), one_long_slice);
  gate g;
  std::vector<std::pair<std::size_t, std::uint64_t>> seen; // members of each step, and steps left of the first
  auto t = std::make_shared<team>([&](context&, std::span<fused_run> runs, std::uint64_t step) {
    seen.emplace_back(runs.size(), runs.front().max_steps);
    if (step == 13)
      g.pass();
  });
  held h(w);
  auto low = start(w, host(t), 40), also_low = start(w, host(t), 40), high = start(w, host(t), 10, {5, false});
  h.release();
  g.reached.wait(); // in the third step of those below
  CHECK(high.get().steps == 10);
  auto higher = start(w, host(t), 4, {7, false}), as_high = start(w, host(t), 4, {7, false});
  g.open_promise.set_value();
  CHECK(higher.get().steps == 4);
  CHECK(as_high.get().steps == 4);
  CHECK(low.get().steps == 40);
  CHECK(also_low.get().steps == 40);
  REQUIRE(seen.size() == 10 + 40 + 4);
  for (std::size_t i = 0; i < seen.size(); ++i) {
    CAPTURE(i);
    CHECK(seen[i].first == (i < 10 ? 1 : 2));
    const bool of_higher = i >= 13 && i < 17;
    CHECK((seen[i].second == 4) == of_higher);
  }
}

TEST_CASE("the time of those that run as one is shared by their steps") {
  slot_worker w(cpu_slot(), one_long_slice);
  auto t = std::make_shared<team>([](context&, std::span<fused_run> runs, std::uint64_t) {
    if (runs.size() == 3)
      --runs[2].report.steps; // its turn has not come
  });
  held h(w);
  auto a = host(t), b = host(t), c = host(t);
  std::promise<std::array<double, 3>> seen;
  w.run(a, 40, [&](run_outcome) { seen.set_value({a->compute_seconds, b->compute_seconds, c->compute_seconds}); });
  auto run_b = start(w, b, 1000), run_c = start(w, c, 1);
  h.release();
  const auto [of_a, of_b, of_c] = seen.get_future().get();
  CHECK(of_a > 0);
  CHECK(of_a == of_b);
  CHECK(of_c == 0);
  CHECK(run_b.get().steps == 1000);
  CHECK(run_c.get().steps == 1);
}

TEST_CASE("an interrupt ends one of those that run as one and the rest goes on") {
  slot_worker w(cpu_slot());
  gate g;
  auto t = std::make_shared<team>([&](context&, std::span<fused_run>, std::uint64_t step) {
    if (step == 3)
      g.pass();
  });
  held h(w);
  auto a = host(t), b = host(t), c = host(t);
  auto run_a = start(w, a, 50), run_b = start(w, b, forever), run_c = start(w, c, 50);
  h.release();
  g.reached.wait();
  w.interrupt(b);
  g.open_promise.set_value();
  const auto o = run_b.get();
  CHECK(o.interrupted);
  CHECK(o.steps == 3);
  CHECK(o.failure.text.empty());
  CHECK(run_a.get().steps == 50);
  CHECK(run_c.get().steps == 50);
  CHECK(t->steps == 50);
  CHECK(start(w, b, 5).get().steps == 5); // and its next run is not affected
}

TEST_CASE("one of those that run as one fails alone with its text and its steps so far") {
  slot_worker w(cpu_slot(), one_long_slice);
  auto t = std::make_shared<team>([&](context&, std::span<fused_run> runs, std::uint64_t step) {
    if (step == 4)
      runs[1].failure = std::make_exception_ptr(not_finite("the loss went away"));
  });
  held h(w);
  auto run_a = start(w, host(t), 20), run_b = start(w, host(t), 20), run_c = start(w, host(t), 20);
  h.release();
  const auto o = run_b.get();
  CHECK(o.failure == core::error{core::errc::failed, "the loss went away"});
  CHECK(o.steps == 4);
  CHECK(run_a.get().steps == 20);
  CHECK(run_c.get().steps == 20);
}

TEST_CASE("what a fused run throws fails all of it and a report without steps is refused") {
  slot_worker w(cpu_slot());
  auto broken = std::make_shared<team>(
    [](context&, std::span<fused_run>, std::uint64_t) { throw device_error("launch failed", true); });
  auto lazy = std::make_shared<team>([](context&, std::span<fused_run> runs, std::uint64_t) {
    for (auto& r : runs)
      r.report = {};
  });
  auto greedy = std::make_shared<team>([](context&, std::span<fused_run> runs, std::uint64_t) {
    if (runs.size() == 2) // the other is alone afterwards, if the turn ends early
      runs[0].report.steps = 99;
  });
  held h(w);
  auto a = start(w, host(broken), 5), b = start(w, host(broken), 5);
  auto c = start(w, host(lazy), 5);
  auto d = start(w, host(greedy), 5), e = start(w, host(greedy), 5);
  auto wait = start(w, [&](context& ctx) { (void)ctx; }); // the lazy one is asked to come back, or it would go on for ever
  h.release();
  for (auto* f : {&a, &b}) {
    const auto o = f->get();
    CHECK(o.failure == core::error{core::errc::device, "launch failed"});
    CHECK(o.device_lost);
  }
  w.post([](context&) {}, nullptr);
  CHECK(c.get().failure.text.find("neither steps nor a failure") != std::string::npos);
  CHECK(d.get().failure.text.find("reports 99 steps") != std::string::npos);
  CHECK(e.get().steps == 5);
  CHECK(wait.get());
}

TEST_CASE("a lone run has its turns beside those that run as one") {
  slot_worker w(cpu_slot(), {.slice = std::chrono::microseconds(0)}); // a turn is one step
  std::string order;
  auto t = std::make_shared<team>([&](context&, std::span<fused_run> runs, std::uint64_t) { order += std::to_string(runs.size()); });
  held h(w);
  std::vector<std::future<run_outcome>> runs;
  for (int i = 0; i < 3; ++i)
    runs.push_back(start(w, host(t), 4));
  runs.push_back(start(w, host([&](context&, std::uint64_t) { return order += 'x', 0.0; }), 4));
  h.release();
  for (auto& r : runs)
    CHECK(r.get().steps == 4);
  CHECK(order == "3x3x3x3x");
}

TEST_CASE("tasks are served between the steps of those that run as one and others join there") {
  slot_worker w(cpu_slot());
  gate g;
  auto t = std::make_shared<team>([&](context&, std::span<fused_run>, std::uint64_t step) {
    if (step == 2)
      g.pass();
  });
  held h(w);
  auto run_a = start(w, host(t), 10), run_b = start(w, host(t), 10);
  h.release();
  g.reached.wait();
  std::uint64_t seen = 0;
  auto task = start(w, [&](context&) { seen = t->steps; });
  auto run_c = start(w, host(t), 4);
  g.open_promise.set_value();
  CHECK(task.get());
  CHECK(seen == 2);
  CHECK(run_c.get().steps == 4);
  CHECK(run_a.get().steps == 10);
  CHECK(run_b.get().steps == 10);
  CHECK(t->steps == 10);
  CHECK(std::count(t->together.begin(), t->together.end(), 3u) == 4);
}

TEST_CASE("runs that have the slot are counted apart from those that wait") {
  slot_worker w(cpu_slot(), one_long_slice);
  gate g;
  auto t = std::make_shared<team>([&](context&, std::span<fused_run>, std::uint64_t step) {
    if (step == 2)
      g.pass();
  });
  held h(w);
  CHECK(w.snapshot().running == 0); // a task is no run
  auto run_a = start(w, host(t), 10), run_b = start(w, host(t), 10), lone = start(w, host(), 10);
  CHECK(w.snapshot().waiting == 3);
  h.release();
  g.reached.wait();
  CHECK(w.snapshot().running == 2);
  CHECK(w.snapshot().waiting == 1);
  g.open_promise.set_value();
  CHECK(run_a.get().steps == 10);
  CHECK(run_b.get().steps == 10);
  CHECK(lone.get().steps == 10);
}

TEST_CASE("no more run as one than their kind allows") {
  slot_worker w(cpu_slot(), {.slice = std::chrono::microseconds(0)});
  auto t = std::make_shared<team>(nullptr, 2);
  held h(w);
  std::vector<std::future<run_outcome>> runs;
  for (int i = 0; i < 5; ++i)
    runs.push_back(start(w, host(t), 6));
  h.release();
  for (auto& r : runs)
    CHECK(r.get().steps == 6);
  CHECK(*std::max_element(t->together.begin(), t->together.end()) == 2);
}

TEST_CASE("a workload that a task replaces leaves those it ran with") {
  slot_worker w(cpu_slot());
  gate g;
  auto t = std::make_shared<team>([&](context&, std::span<fused_run>, std::uint64_t step) {
    if (step == 2)
      g.pass();
  });
  held h(w);
  auto a = host(t), b = host(t);
  auto run_a = start(w, a, 10), run_b = start(w, b, 10);
  h.release();
  g.reached.wait();
  auto swapped = start(w, [&](context&) { b->work = std::make_unique<scripted>(); });
  g.open_promise.set_value();
  CHECK(swapped.get());
  CHECK(run_a.get().steps == 10);
  CHECK(run_b.get().steps == 10);
  CHECK(t->steps == 10);
}

TEST_CASE("threads that run and interrupt what runs as one get every completion and lose no step") {
  slot_worker w(cpu_slot(), {.slice = std::chrono::microseconds(20)});
  const auto t = std::make_shared<team>();
  check_under_fire(w, [&] { return host(t); });
}
