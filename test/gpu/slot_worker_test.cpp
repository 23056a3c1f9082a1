#include "troupe/gpu/slot_worker.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <future>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "slot_worker_fixture.hpp"

using namespace troupe;
using namespace troupe::gpu;
using namespace troupe::test;

TEST_CASE("a run does exactly the steps asked for") {
  slot_worker w(cpu_slot());
  auto a = host();
  auto o = start(w, a, 1000).get();
  CHECK(o.steps == 1000);
  CHECK_FALSE(o.interrupted);
  CHECK(o.failure.text.empty());
  CHECK(a->progress == 1000);
  CHECK(a->loss_sum == 1000.0);
  CHECK(a->loss_count == 1000);
  CHECK(start(w, a, 1).get().steps == 1);
  CHECK(start(w, a, 0).get().steps == 0);
  CHECK(a->progress == 1001);
  CHECK(w.snapshot().steps == 1001);
}

TEST_CASE("steps and completions and tasks run on one thread that is not the caller") {
  slot_worker w(cpu_slot());
  std::thread::id in_step, in_done, in_task;
  auto a = host([&](context& ctx, std::uint64_t) {
    ctx.check_thread();
    in_step = std::this_thread::get_id();
    return 0.0;
  });
  std::promise<void> done;
  w.run(a, 1, [&](run_outcome) {
    in_done = std::this_thread::get_id();
    done.set_value();
  });
  done.get_future().wait();
  CHECK(start(w, [&](context& ctx) { ctx.check_thread(), in_task = std::this_thread::get_id(); }).get());
  CHECK(in_step == in_done);
  CHECK(in_step == in_task);
  CHECK(in_step != std::this_thread::get_id());
}

TEST_CASE("many runs share one slot in turns and all finish") {
  slot_worker w(cpu_slot(), {.slice = std::chrono::microseconds(0)}); // a turn is one step
  constexpr int n = 100;
  std::vector<int> order; // touched by the slot's thread alone
  gate g;
  auto first = start(w, host([&](context&, std::uint64_t) { return g.pass(), 0.0; }), 1);
  g.reached.wait();
  std::vector<std::future<run_outcome>> runs;
  std::vector<std::shared_ptr<hosted>> who;
  for (int i = 0; i < n; ++i) {
    who.push_back(host([&order, i](context&, std::uint64_t) { return order.push_back(i), 0.0; }));
    runs.push_back(start(w, who.back(), 5));
  }
  CHECK(w.snapshot().waiting == n);
  g.open_promise.set_value();
  for (auto& r : runs)
    CHECK(r.get().steps == 5);
  REQUIRE(order.size() == 5 * n);
  for (int i = 0; i < 5 * n; ++i)
    CHECK(order[i] == i % n);
  CHECK(w.snapshot().waiting == 0);
  for (auto& x : who)
    CHECK(x->wait_seconds > 0);
}

TEST_CASE("runs of a higher priority go first and before a barrier the one with the most left") {
  slot_worker w(cpu_slot(), {.slice = std::chrono::microseconds(0)}); // a turn is one step
  std::vector<std::size_t> order; // touched by the slot's thread alone
  gate g;
  auto first = start(w, host([&](context&, std::uint64_t) { return g.pass(), 0.0; }), 1, {100, false});
  g.reached.wait();
  struct plan {
    std::uint64_t steps;
    double seconds_a_step;
    run_hint hint;
  };
  const std::vector<plan> plans{{4, 1, {0, false}}, {5, 1, {1, true}}, {8, 1, {1, true}},  {3, 2, {1, true}},
                                {3, 9, {2, false}}, {4, 1, {0, false}}, {2, 50, {0, true}}};
  std::vector<std::future<run_outcome>> runs;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    auto who = host([&order, i](context&, std::uint64_t) { return order.push_back(i), 0.0; });
    who->progress = 1000; // as measured so far
    who->compute_seconds = 1000 * plans[i].seconds_a_step;
    runs.push_back(start(w, who, plans[i].steps, plans[i].hint));
  }
  g.open_promise.set_value();
  for (auto& r : runs)
    r.get();
  std::vector<double> left;
  for (const auto& p : plans)
    left.push_back(static_cast<double>(p.steps) * p.seconds_a_step);
  for (const auto i : order) {
    for (std::size_t k = 0; k < plans.size(); ++k) {
      if (k == i || left[k] <= 0.01)
        continue;
      CHECK(plans[k].hint.priority <= plans[i].hint.priority);
      if (plans[k].hint.priority != plans[i].hint.priority)
        continue;
      CHECK((plans[i].hint.before_barrier || !plans[k].hint.before_barrier));
      if (plans[i].hint.before_barrier && plans[k].hint.before_barrier)
        CHECK(left[k] <= left[i] + 0.1);
    }
    left[i] -= plans[i].seconds_a_step;
  }
  // Those without a barrier ahead take turns.
  const std::vector<std::size_t> last(order.end() - 8, order.end());
  CHECK(last == std::vector<std::size_t>{0, 5, 0, 5, 0, 5, 0, 5});
}

TEST_CASE("a lone run keeps the slot however many slices it lasts") {
  slot_worker w(cpu_slot(), {.slice = std::chrono::microseconds(0)});
  auto a = host();
  CHECK(start(w, a, 500).get().steps == 500);
  CHECK(w.snapshot().slices == 500); // each slice over at once, and the next one its own
  CHECK(a->wait_seconds < a->compute_seconds + 1);
}

TEST_CASE("a task goes ahead of the runs and in order with other tasks") {
  slot_worker w(cpu_slot());
  gate g;
  std::vector<int> order;
  auto a = host([&](context&, std::uint64_t step) {
    if (step == 1)
      g.pass();
    order.push_back(0);
    return 0.0;
  });
  auto run = start(w, a, 2); // one slice by time, but the task comes between its steps
  g.reached.wait();
  auto t1 = start(w, [&](context&) { order.push_back(1); });
  auto t2 = start(w, [&](context&) { order.push_back(2); });
  g.open_promise.set_value();
  CHECK(run.get().steps == 2);
  CHECK(t1.get());
  CHECK(t2.get());
  CHECK(order == std::vector<int>{0, 1, 2, 0});
}

TEST_CASE("an interrupt ends the run after its current step") {
  slot_worker w(cpu_slot());
  gate g;
  auto a = host([&](context&, std::uint64_t step) {
    if (step == 3)
      g.pass();
    return 0.0;
  });
  auto run = start(w, a, forever);
  g.reached.wait();
  w.interrupt(a);
  g.open_promise.set_value();
  const auto o = run.get();
  CHECK(o.steps == 3);
  CHECK(o.interrupted);
  CHECK(o.failure.text.empty());
  CHECK(start(w, a, 10).get().steps == 10); // and the next run is not affected
}

TEST_CASE("an interrupt ends a waiting run at once and without a step") {
  slot_worker w(cpu_slot());
  gate g1;
  auto a = host([&](context&, std::uint64_t step) {
    if (step == 1)
      g1.pass();
    return 0.0;
  });
  auto b = host(), c = host();
  auto run_a = start(w, a, forever);
  g1.reached.wait();
  auto run_b = start(w, b, forever);
  auto run_c = start(w, c, 7);
  w.interrupt(b);
  w.interrupt(b); // has no run any more
  g1.open_promise.set_value();
  const auto o = run_b.get();
  CHECK(o.steps == 0);
  CHECK(o.interrupted);
  CHECK(run_c.get().steps == 7);
  w.interrupt(a);
  CHECK(run_a.get().interrupted);
}

TEST_CASE("an interrupt without a run has no effect") {
  slot_worker w(cpu_slot());
  auto a = host();
  w.interrupt(a);
  const auto o = start(w, a, 100).get();
  CHECK(o.steps == 100);
  CHECK_FALSE(o.interrupted);
}

TEST_CASE("FAULTS 1: a thousand interrupts of an endless run lose no step") {
  slot_worker w(cpu_slot());
  std::uint64_t done = 0; // by the workload's own count
  auto a = host([&](context&, std::uint64_t step) { return done = step, 0.0; });
  std::uint64_t sum = 0;
  for (int i = 0; i < 1000; ++i) {
    auto run = start(w, a, 1'000'000'000);
    w.interrupt(a);
    const auto o = run.get();
    CHECK(o.interrupted);
    sum += o.steps;
    CHECK(sum == done);
  }
  CHECK(a->progress == sum);
}

TEST_CASE("a flag that is set directly ends the run at the end of its slice") {
  slot_worker w(cpu_slot());
  gate g;
  auto a = host([&](context&, std::uint64_t step) {
    if (step == 1)
      g.pass();
    return 0.0;
  });
  auto run = start(w, a, forever);
  g.reached.wait();
  a->interrupt = true;
  g.open_promise.set_value();
  CHECK(run.get().interrupted);
}

TEST_CASE("a second run of the same trainer is refused and the first goes on") {
  slot_worker w(cpu_slot());
  gate g;
  auto a = host([&](context&, std::uint64_t step) {
    if (step == 1)
      g.pass();
    return 0.0;
  });
  auto one = start(w, a, 50);
  g.reached.wait();
  auto two = start(w, a, 50);
  g.open_promise.set_value();
  CHECK(two.get().failure.code == core::errc::refused);
  CHECK(one.get().steps == 50);
}

TEST_CASE("whatever a step throws fails its run alone with the text kept") {
  slot_worker w(cpu_slot(1000));
  const auto fail = [&](scripted::step_function f) { return start(w, host(std::move(f)), 5).get(); };
  auto o = fail([](context&, std::uint64_t) -> double { throw std::runtime_error("no such file"); });
  CHECK(o.failure == core::error{core::errc::failed, "no such file"});
  CHECK_FALSE(o.device_lost);
  o = fail([](context&, std::uint64_t) -> double { throw device_error("launch failed", false); });
  CHECK(o.failure == core::error{core::errc::device, "launch failed"});
  CHECK_FALSE(o.device_lost);
  o = fail([](context&, std::uint64_t) -> double { throw device_error("illegal address", true); });
  CHECK(o.failure == core::error{core::errc::device, "illegal address"});
  CHECK(o.device_lost);
  o = fail([](context& ctx, std::uint64_t) -> double { return ctx.allocate(2000).size(); });
  CHECK(o.failure.code == core::errc::out_of_memory);
  CHECK(o.failure.text.find("2000 bytes were requested") != std::string::npos);
  o = fail([](context&, std::uint64_t) -> double { throw std::bad_alloc(); });
  CHECK(o.failure.code == core::errc::out_of_memory);
  o = fail([](context&, std::uint64_t) -> double { throw 42; });
  CHECK(o.failure.code == core::errc::failed);
  CHECK(o.failure.text.find("not derived from std::exception") != std::string::npos);
  o = fail([](context&, std::uint64_t) -> double { throw std::runtime_error(""); });
  CHECK(!o.failure.text.empty());
  for (double bad : {NAN, INFINITY, -INFINITY}) {
    o = fail([bad](context&, std::uint64_t step) { return step == 3 ? bad : 1.0; });
    CHECK(o.failure.code == core::errc::failed);
    CHECK(o.failure.text.find("the loss is") == 0);
    CHECK(o.steps == 2); // those before it count
  }
  CHECK(start(w, host(), 5).get().steps == 5);
}

TEST_CASE("a run without a workload and a run that reports a wrong number of steps fail") {
  class lazy : public scripted {
    void run(context&, std::uint64_t, run_report&) override {}
  };
  slot_worker w(cpu_slot());
  auto a = std::make_shared<hosted>();
  CHECK(start(w, a, 5).get().failure.text.find("no workload") != std::string::npos);
  a->work = std::make_unique<lazy>();
  CHECK(start(w, a, 5).get().failure.text.find("reports 0 steps") != std::string::npos);
  CHECK_THROWS_AS(w.run(nullptr, 1, [](run_outcome) {}), std::invalid_argument);
}

TEST_CASE("a task that throws completes with its text and the next one runs") {
  slot_worker w(cpu_slot());
  auto r =
      start(w, [](context&) { throw std::invalid_argument("tensor weights.0 has another shape"); }).get();
  REQUIRE_FALSE(r);
  CHECK(r.error() == core::error{core::errc::failed, "tensor weights.0 has another shape"});
  w.post([](context&) { throw 1; }, nullptr); // nobody asks
  CHECK(start(w, [](context&) {}).get());
  CHECK(w.snapshot().tasks == 3);
}

TEST_CASE("a slot that cannot be opened throws what its context threw") {
  auto o = cpu_slot();
  o.cores = {1023};
  CHECK_THROWS_AS(slot_worker{o}, device_error);
}

TEST_CASE("closing ends after the step at hand and cancels the rest") {
  gate g;
  auto a = host([&](context&, std::uint64_t step) {
    if (step == 1)
      g.pass();
    return 0.0;
  });
  std::future<run_outcome> run_a, run_b;
  std::future<core::result<void>> task;
  {
    slot_worker w(cpu_slot(), one_long_slice); // the other gets no turn before
    run_a = start(w, a, forever);
    g.reached.wait();
    run_b = start(w, host(), 10);
    task = start(w, [](context&) {});
    g.open_promise.set_value();
  }
  const auto oa = run_a.get(), ob = run_b.get();
  CHECK(oa.failure.code == core::errc::cancelled);
  CHECK(oa.steps >= 1);
  CHECK(ob.failure.code == core::errc::cancelled);
  CHECK(ob.steps == 0);
  auto t = task.get(); // it may have come before the end
  CHECK((t || t.error().code == core::errc::cancelled));
}

TEST_CASE("a completion may close its own slot and start new work that is cancelled") {
  auto w = std::make_shared<slot_worker>(cpu_slot());
  std::promise<core::errc> code;
  auto* raw = w.get();
  std::promise<void> go;
  raw->run(host([f = go.get_future().share()](context&, std::uint64_t) { return f.wait(), 0.0; }), 1,
           [&code, w = std::move(w)](run_outcome) mutable {
             w->run(host(), 10, [&code](run_outcome o) { code.set_value(o.failure.code); });
             w.reset();
           });
  go.set_value();
  CHECK(code.get_future().get() == core::errc::cancelled);
}

TEST_CASE("a hundred slots open and close") {
  for (int i = 0; i < 100; ++i) {
    slot_worker w(cpu_slot());
    auto a = start(w, host(), forever);
    if (i % 2 == 0)
      continue; // closed at once
    CHECK(start(w, host(), 3).get().steps == 3);
  }
}

TEST_CASE("memory that a task holds is counted and comes back from another thread") {
  slot_worker w(cpu_slot(1 << 20));
  buffer b;
  CHECK(start(w, [&](context& ctx) { b = ctx.allocate(1000); }).get());
  CHECK(w.snapshot().memory_used == 1000);
  CHECK(w.snapshot().memory_budget == 1 << 20);
  b = {};
  CHECK(w.snapshot().memory_used == 0);
  CHECK(w.snapshot().memory_peak == 1000);
}

TEST_CASE("a slot tells once when it has become idle and once when runs share it") {
  slot_worker w(cpu_slot());
  std::atomic<int> idle{0}, shared{0};
  w.when(slot_worker::turn::shared, [&] { ++shared; });
  gate g;
  auto a = host([&](context&, std::uint64_t step) {
    if (step == 1)
      g.pass();
    return 1.0;
  });
  auto b = host();
  auto a_over = start(w, a, 2);
  g.reached.wait();
  CHECK(shared == 0);
  CHECK_FALSE(w.current_load().idle);
  std::promise<void> now_idle;
  w.when(slot_worker::turn::idle, [&] {
    ++idle;
    now_idle.set_value();
  });
  CHECK(idle == 0);
  auto b_over = start(w, b, 2);
  CHECK(shared == 1);
  auto c_over = start(w, host(), 1);
  CHECK(shared == 1); // once
  w.when(slot_worker::turn::shared, [&] { ++shared; });
  CHECK(shared == 2); // at once: it is so already
  g.open_promise.set_value();
  now_idle.get_future().wait();
  CHECK(a_over.get().steps == 2);
  CHECK(b_over.get().steps == 2);
  CHECK(c_over.get().steps == 1);
  CHECK(start(w, b, 1).get().steps == 1);
  CHECK(idle == 1);
  w.when(slot_worker::turn::idle, [&] { idle += 100; });
  w.when(slot_worker::turn::idle, nullptr);
  w.when(slot_worker::turn::shared, [&] { shared += 100; });
  w.when(slot_worker::turn::shared, nullptr);
  CHECK(start(w, b, 1).get().steps == 1);
  CHECK(idle % 100 == 1); // the first of the two may have found it idle
  CHECK(shared == 2);
}

TEST_CASE("a slot tells what its runs have left and how long their steps take") {
  slot_worker w(cpu_slot());
  gate g;
  auto a = host([&](context&, std::uint64_t step) {
    if (step == 3)
      g.pass();
    return 1.0;
  });
  a->number = 7;
  a->move_seconds = 0.5;
  CHECK(start(w, a, 2).get().steps == 2); // measured from here on
  auto over = start(w, a, 10);
  g.reached.wait();
  auto b = host();
  b->number = 8;
  auto b_over = start(w, b, 20);
  const auto load = w.current_load();
  CHECK_FALSE(load.idle);
  REQUIRE(load.runs.size() == 2);
  CHECK(load.runs[0].number == 7);
  CHECK(load.runs[0].steps_left == 10); // as of its last turn
  CHECK(load.runs[0].step_seconds > 0);
  CHECK(load.runs[0].move_seconds == 0.5);
  CHECK(load.runs[0].settled_seconds > 0);
  CHECK(load.runs[1].number == 8);
  CHECK(load.runs[1].steps_left == 20);
  CHECK(load.runs[1].step_seconds == 0);
  g.open_promise.set_value();
  CHECK(over.get().steps == 10);
  CHECK(b_over.get().steps == 20);
  CHECK(w.current_load().runs.empty());
}

TEST_CASE("threads that run and interrupt and post at once get every completion") {
  slot_worker w(cpu_slot(), {.slice = std::chrono::microseconds(20)});
  check_under_fire(w, [] { return host(); });
}
