// Trains four `factors` at once, with step sizes drawn at random, and lets the good ones teach the bad ones.

#include <cstdio>
#include <string>

#include "factors.hpp"
#include "troupe/actors/prepare.hpp"

namespace {

constexpr auto experiment = R"({
  "name": "custom_workload",
  "seed": 3,
  "defaults": {"workload": {"type": "factors", "rank": 4}, "stop_step": 400},
  "trainers": [{"name": "factors", "count": 4}],
  "search_space": {"lr": {"type": "log_uniform", "low": 0.001, "high": 0.3},
                   "decay": {"type": "uniform", "low": 0, "high": 0.1}},
  "sync": {"at_steps": [200]},
  "policy": {"type": "pbt", "metric": "rmse", "mode": "min"}
})";

/// Prints what is decided when they meet. Called on a thread of the run's own.
class reporter final : public actors::run_listener {
public:
  void on_sync_point(const actors::sync_point_event& e) override {
    std::printf("sync point %u\n", e.index);
    for (const auto& m : e.reports) {
      const auto d = e.decisions.find(m.trainer);
      std::printf("  %s at step %llu: lr %s, rmse %.4f; %s\n", m.name.c_str(), static_cast<unsigned long long>(m.step),
                  core::to_string(*m.hp.find("lr")).c_str(), m.number("rmse"),
                  d == e.decisions.end() || d->second.reason.empty() ? "goes on" : d->second.reason.c_str());
    }
  }
};

int fail(const core::error& e) {
  std::fprintf(stderr, "%s\n", e.text.c_str());
  return 1;
}

} // namespace

int main() {
  // 6. Give the workload a name for experiments. Beside it there are Troupe's own: mlp, cnn, transformer, idle.
  actors::program mine;
  mine.workloads.add("factors", gpu::basic_workload::factory<factors>(), gpu::basic_workload::checker<factors>());
  mine.slots = {{.device = "cpu", .count = 2}};

  // 7. Check the experiment and run it: four trainers share two slots.
  auto options = actors::prepare_run(experiment, mine);
  if (!options)
    return fail(options.error());
  options->listener = std::make_shared<reporter>();
  auto run = actors::run_session::start(std::move(*options));
  if (!run)
    return fail(run.error());

  // 8. Wait, and look at what came of it.
  const auto summary = (*run)->wait();
  std::puts("at the end");
  double best = 1e9;
  for (const auto& t : summary.trainers) {
    const auto rmse = t.newest ? t.newest->number("rmse") : NAN;
    std::printf("  %s %s at step %llu: rmse %.4f\n", t.name.c_str(), std::string(to_string(t.state)).c_str(),
                static_cast<unsigned long long>(t.step), rmse);
    best = std::fmin(best, rmse);
  }
  return summary.outcome == actors::run_outcome_kind::done && best < 0.2 ? 0 : 1;
}
