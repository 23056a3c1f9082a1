// Eight trainers of a model of one's own on one slot: their steps run as one, each keeps its own settings, and they meet twice.

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "troupe/actors/prepare.hpp"
#include "wide_deep.hpp"

using namespace troupe;

namespace {

constexpr auto experiment = R"({
  "name": "own_model",
  "seed": 2,
  "defaults": {
    "workload": {"type": "wide_deep", "hidden": 32, "batch": 32,
                 "data": {"type": "synthetic", "classes": 8, "features": 24, "clusters": 3, "noise": 1.2}},
    "stop_step": 600
  },
  "trainers": [{"name": "net", "count": 8}],
  "search_space": {"lr": {"type": "log_uniform", "low": 0.001, "high": 0.3},
                   "dropout": {"type": "uniform", "low": 0.0, "high": 0.4, "quantum": 0.1}},
  "sync": {"every_steps": 200},
  "policy": {"type": "pbt"}
})";

/// Keeps what is told of the slots. Called on a thread of the run's own, which is over when `wait` returns.
class slot_watch final : public actors::run_listener {
public:
  void on_progress(const actors::run_status& s) override { slots = s.slots; }
  std::vector<actors::slot_info> slots;
};

int fail(const std::string& text, int status) {
  std::fprintf(stderr, "%s\n", text.c_str());
  return status;
}

} // namespace

int main(int argc, char** argv) {
  std::string device = "cpu";
  constexpr auto usage = "usage: own_model [--device cpu|cuda|cuda:1|…]";
  if (argc == 2 && argv[1] == std::string("--help"))
    return std::puts(usage), 0;
  if (argc == 3 && argv[1] == std::string("--device"))
    device = argv[2];
  else if (argc != 1)
    return fail(usage, 2);

  actors::program mine;
  sample::add_wide_deep(mine.workloads);
  mine.slots = {{.device = device}};
  auto options = actors::prepare_run(experiment, mine);
  if (!options)
    return fail(options.error().text, 2);
  const auto watch = std::make_shared<slot_watch>();
  options->listener = watch;
  options->progress_interval = std::chrono::milliseconds(5);
  auto run = actors::run_session::start(std::move(*options));
  if (!run)
    return fail(run.error().text, 1);
  const auto summary = (*run)->wait();

  double best = 0;
  for (const auto& t : summary.trainers) {
    const auto accuracy = t.newest ? t.newest->accuracy : 0;
    std::printf("%s %-8s step %4llu  lr %-9s accuracy %.4f\n", t.name.c_str(), std::string(to_string(t.state)).c_str(),
                static_cast<unsigned long long>(t.step), core::to_string(*t.hp.find("lr")).c_str(), accuracy);
    best = std::max(best, accuracy);
  }
  for (const auto& s : watch->slots)
    if (s.answered && s.steps > 0)
      std::printf("slot %s (%s): %.0f%% of its steps run as one, %.1f trainers at once\n", s.name.c_str(), s.device.c_str(),
                  100 * static_cast<double>(s.fused_steps) / static_cast<double>(s.steps),
                  static_cast<double>(s.fused_members) / static_cast<double>(std::max<std::uint64_t>(s.fused_slices, 1)));
  return summary.outcome == actors::run_outcome_kind::done && best > 0.85 ? 0 : 1;
}
