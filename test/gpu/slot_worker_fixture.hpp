#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "slots_under_test.hpp"
#include "troupe/gpu/slot_worker.hpp"

namespace troupe::test {

using namespace troupe::gpu;

/// A workload whose step is whatever the test says.
class scripted : public workload {
public:
  using step_function = std::function<double(context&, std::uint64_t step)>;
  explicit scripted(step_function f = nullptr) : step_(std::move(f)) {}

  double step(context& ctx) override {
    ++steps_;
    return step_ ? step_(ctx, steps_) : 1.0;
  }
  evaluation evaluate(context&) override { return {}; }
  void save(context&, core::checkpoint&) override {}
  void load(context&, const core::checkpoint&, load_mode) override {}
  core::result<void> check(const core::hyperparameters&) const override { return {}; }
  void set(context&, const core::hyperparameters&) override {}
  std::string signature() const override { return "scripted"; }

private:
  step_function step_;
  std::uint64_t steps_ = 0;
};

inline std::shared_ptr<hosted> host(scripted::step_function f = nullptr) {
  auto out = std::make_shared<hosted>();
  out->work = std::make_unique<scripted>(std::move(f));
  return out;
}

/// A run's outcome, to wait for.
inline std::future<run_outcome> start(slot_worker& w, std::shared_ptr<hosted> who, std::uint64_t steps, run_hint hint = {}) {
  auto p = std::make_shared<std::promise<run_outcome>>();
  auto f = p->get_future();
  w.run(std::move(who), steps, [p](run_outcome o) { p->set_value(std::move(o)); }, hint);
  return f;
}

inline std::future<core::result<void>> start(slot_worker& w, slot_worker::task t) {
  auto p = std::make_shared<std::promise<core::result<void>>>();
  auto f = p->get_future();
  w.post(std::move(t), [p](core::result<void> r) { p->set_value(std::move(r)); });
  return f;
}

/// Holds a step until the test lets it go on.
struct gate {
  std::promise<void> reached_promise, open_promise;
  std::future<void> reached = reached_promise.get_future();
  std::shared_future<void> opened = open_promise.get_future().share();
  void pass() {
    reached_promise.set_value();
    opened.wait();
  }
};

/// Turns that no pause of the machine ends.
inline const slot_worker::settings one_long_slice{.slice = std::chrono::seconds(60)};

inline constexpr auto forever = std::numeric_limits<std::uint64_t>::max();

/// Threads that run and interrupt and post at once: every completion comes, and no step is lost.
inline void check_under_fire(slot_worker& w, const std::function<std::shared_ptr<hosted>()>& make) {
  constexpr int threads = 4, rounds = 200;
  std::atomic<int> completions{0};
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t)
    pool.emplace_back([&, t] {
      auto mine = make();
      std::uint64_t sum = 0;
      for (int i = 0; i < rounds; ++i) {
        auto run = start(w, mine, i % 3 == t % 3 ? forever : 50);
        auto task = start(w, [](context&) {});
        (void)w.snapshot();
        w.interrupt(mine);
        const auto o = run.get();
        sum += o.steps;
        if (o.failure.text.empty() && (o.interrupted || o.steps == 50) && task.get())
          completions += 2;
      }
      if (mine->progress != sum)
        completions = -1'000'000;
    });
  for (auto& p : pool)
    p.join();
  CHECK(completions == 2 * threads * rounds);
}

} // namespace troupe::test
