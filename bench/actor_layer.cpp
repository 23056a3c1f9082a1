/// What the actor layer costs: rounds of sync points whose steps cost nothing, the time until a pause is heard by all, and
/// training through actors against a bare loop over the same workload. Prints a table, or with --json one object a line.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "troupe/actors/run.hpp"
#include "troupe/core/experiment.hpp"
#include "troupe/gpu/context.hpp"
#include "troupe/gpu/device.hpp"
#include "troupe/gpu/workload.hpp"

namespace {

using namespace troupe;
using clock_type = std::chrono::steady_clock;
using seconds = std::chrono::duration<double>;

double median(std::vector<double> xs) {
  std::sort(xs.begin(), xs.end());
  return xs[xs.size() / 2];
}

double quantile(std::vector<double> xs, double q) {
  std::sort(xs.begin(), xs.end());
  return xs[std::min(xs.size() - 1, static_cast<std::size_t>(q * static_cast<double>(xs.size())))];
}

/// Notes when sync points came, and lets others wait for the start.
class stopwatch_listener final : public actors::run_listener {
public:
  void on_started(const actors::run_status&) override {
    const std::lock_guard lock(mutex_);
    started_ = true;
    changed_.notify_all();
  }
  void on_sync_point(const actors::sync_point_event& e) override {
    const auto now = clock_type::now();
    const std::lock_guard lock(mutex_);
    if (e.index == 0)
      first_ = now;
    last_ = now;
    last_index_ = e.index;
  }
  void wait_started() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return started_; });
  }
  /// Between the first and the last sync point, per round.
  double seconds_per_round() {
    const std::lock_guard lock(mutex_);
    return last_index_ == 0 ? 0 : seconds(last_ - first_).count() / last_index_;
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool started_ = false;
  clock_type::time_point first_, last_;
  core::sync_index last_index_ = 0;
};

core::experiment idle_experiment(std::size_t trainers, std::uint64_t stop_step, std::uint64_t every, double step_us,
                                 const core::policy_registry& policies, const gpu::workload_registry& workloads) {
  nlohmann::json j = {{"name", "bench"},
                      {"trainers",
                       {{{"name", "t"},
                         {"count", trainers},
                         {"workload", {{"type", "idle"}, {"step_us", step_us}}},
                         {"stop_step", stop_step}}}},
                      {"checkpoints", {{"every_syncs", 0}}}};
  if (every > 0)
    j["sync"] = {{"every_steps", every}};
  core::experiment_checkers with;
  with.policies = &policies;
  with.known_workload = [&](std::string_view type) { return workloads.contains(type); };
  with.workload_names = [&] { return workloads.names(); };
  with.check_workload = [&](auto type, const auto& options, const auto& hp, auto where, auto& faults) {
    workloads.check(type, options, hp, where, faults);
  };
  auto parsed = core::parse_experiment(j.dump(), with);
  if (auto* faults = std::get_if<std::vector<core::error>>(&parsed)) {
    for (const auto& fault : *faults)
      std::cerr << fault.text << '\n';
    std::exit(1);
  }
  return std::get<core::experiment>(std::move(parsed));
}

struct bench {
  std::shared_ptr<gpu::workload_registry> workloads =
      std::make_shared<gpu::workload_registry>(gpu::builtin_workloads());
  std::shared_ptr<core::policy_registry> policies =
      std::make_shared<core::policy_registry>(core::builtin_policies());
  gpu::device_info cpu = gpu::find_devices().devices.front();
  bool json = false;

  void print(const nlohmann::json& row, const std::string& text) const {
    if (json)
      std::cout << row.dump() << std::endl;
    else
      std::cout << text << std::endl;
  }

  std::unique_ptr<actors::run_session> start(std::size_t trainers, std::uint64_t stop, std::uint64_t every, double step_us,
                                             unsigned slots, std::shared_ptr<actors::run_listener> listener) const {
    actors::run_options o;
    o.exp = idle_experiment(trainers, stop, every, step_us, *policies, *workloads);
    o.workloads = workloads;
    o.policies = policies;
    for (unsigned i = 0; i < slots; ++i) {
      gpu::slot_options s;
      s.device = cpu;
      s.index = i;
      o.slots.push_back(s);
    }
    o.listener = std::move(listener);
    auto session = actors::run_session::start(std::move(o));
    if (!session) {
      std::cerr << session.error().text << '\n';
      std::exit(1);
    }
    return std::move(*session);
  }

  /// Rounds of `trainers` whose steps cost nothing.
  void rounds(std::size_t trainers, std::uint64_t count, int repeats) const {
    std::vector<double> us;
    for (int r = 0; r < repeats; ++r) {
      auto listener = std::make_shared<stopwatch_listener>();
      auto session = start(trainers, count + 2, 1, 0, 2, listener);
      if (session->wait().outcome != actors::run_outcome_kind::done) {
        std::cerr << "the run did not finish\n";
        std::exit(1);
      }
      us.push_back(listener->seconds_per_round() * 1e6);
    }
    const double m = median(us);
    const double each = m / static_cast<double>(trainers);
    char text[200];
    std::snprintf(text, sizeof text, "round of %6zu trainers: %10.1f us, %7.2f us per trainer, %9.0f results/s", trainers, m, each,
                  1e6 / each);
    print({{"measure", "round"}, {"trainers", trainers}, {"us_per_round", m}, {"us_per_trainer", each},
           {"results_per_second", 1e6 / each}, {"repeats", us}},
          text);
  }

  /// Pauses and resumes `trainers` that all are in the middle of training.
  void pauses(std::size_t trainers, double step_us, int cycles) const {
    auto listener = std::make_shared<stopwatch_listener>();
    auto session = start(trainers, 1'000'000'000, 0, step_us, 2, listener);
    listener->wait_started();
    auto control = session->control();
    std::vector<double> ms;
    for (int i = 0; i < cycles; ++i) {
      const auto before = clock_type::now();
      auto acks = control.pause().get();
      ms.push_back(seconds(clock_type::now() - before).count() * 1e3);
      if (!acks || acks->size() != trainers) {
        std::cerr << "pause: " << (acks ? "not all answered" : acks.error().text) << '\n';
        std::exit(1);
      }
      if (!control.resume().get())
        std::exit(1);
      std::this_thread::sleep_for(std::chrono::milliseconds(20)); // let them train
    }
    char text[200];
    std::snprintf(text, sizeof text, "pause of %4zu trainers at steps of %5.0f us: median %.2f ms, p95 %.2f ms, worst %.2f ms",
                  trainers, step_us, median(ms), quantile(ms, 0.95), quantile(ms, 1));
    print({{"measure", "pause"}, {"trainers", trainers}, {"step_us", step_us}, {"median_ms", median(ms)},
           {"p95_ms", quantile(ms, 0.95)}, {"max_ms", quantile(ms, 1)}},
          text);
    if (!control.stop().get() || session->wait().outcome == actors::run_outcome_kind::failed)
      std::exit(1);
  }

  /// The same steps on two threads without any actor.
  double bare_loop(std::size_t trainers, std::uint64_t steps, double step_us) const {
    const nlohmann::json options = {{"step_us", step_us}};
    const auto begin = clock_type::now();
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 2; ++t)
      threads.emplace_back([&, t] {
        gpu::slot_options s;
        s.device = cpu;
        gpu::context ctx(s);
        ctx.bind();
        for (std::size_t k = t; k < trainers; k += 2) {
          gpu::workload_config cfg;
          cfg.name = "bare";
          cfg.options = &options;
          auto made = workloads->make(ctx, "idle", cfg);
          for (std::uint64_t i = 0; i < steps; ++i)
            (*made)->step(ctx);
        }
      });
    for (auto& t : threads)
      t.join();
    return seconds(clock_type::now() - begin).count();
  }

  void overhead(std::size_t trainers, std::uint64_t steps, double step_us, int repeats) const {
    std::vector<double> ratio;
    for (int r = 0; r < repeats; ++r) {
      const double bare = bare_loop(trainers, steps, step_us);
      const auto begin = clock_type::now();
      start(trainers, steps, 0, step_us, 2, nullptr)->wait();
      ratio.push_back(seconds(clock_type::now() - begin).count() / bare);
    }
    const double m = median(ratio);
    char text[200];
    std::snprintf(text, sizeof text, "actors against a bare loop, %zu trainers, steps of %5.0f us: %+.2f %% (spread %+.2f … %+.2f)",
                  trainers, step_us, (m - 1) * 100, (quantile(ratio, 0) - 1) * 100, (quantile(ratio, 1) - 1) * 100);
    print({{"measure", "overhead"}, {"trainers", trainers}, {"step_us", step_us}, {"ratio", m}, {"repeats", ratio}}, text);
  }
};

} // namespace

int main(int argc, char** argv) {
  bench b;
  bool quick = false;
  std::vector<std::string> only = {"rounds", "pauses", "overhead"};
  CLI::App app{"What the actor layer costs.", "bench_actor_layer"};
  app.add_option("--only", only, "Which of the measurements")->delimiter(',')->check(CLI::IsMember(only))->capture_default_str();
  app.add_flag("--quick", quick, "Fewer repeats");
  app.add_flag("--json", b.json, "One JSON object a line");
  CLI11_PARSE(app, argc, argv)
  const auto wanted = [&](const char* what) { return std::find(only.begin(), only.end(), what) != only.end(); };
  const int repeats = quick ? 1 : 5;
  if (wanted("rounds")) {
    b.rounds(3, quick ? 200 : 2000, repeats);
    b.rounds(100, quick ? 20 : 200, repeats);
    b.rounds(1000, quick ? 5 : 30, repeats);
    b.rounds(10000, quick ? 3 : 6, quick ? 1 : 3);
  }
  if (wanted("pauses")) {
    b.pauses(100, 200, quick ? 10 : 50);
    b.pauses(100, 2000, quick ? 5 : 30);
  }
  if (wanted("overhead")) {
    b.overhead(4, quick ? 200 : 1000, 1000, repeats);
    b.overhead(4, quick ? 2000 : 10000, 100, repeats);
  }
}
