// Trains three networks with learning rates that are too high to finish with, and an actor that notices.

#include <cstdio>

#include "troupe/actors/prepare.hpp"
#include "watcher.hpp"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

/// They report every 40 steps. Nobody waits for anybody, and no policy decides: that is the watcher's part.
constexpr auto experiment = R"({
  "name": "watcher",
  "defaults": {
    "workload": {"type": "mlp", "hidden": [32], "batch": 32,
                 "data": {"type": "synthetic", "classes": 5, "features": 20, "noise": 1.5}},
    "hyperparameters": {"momentum": 0.9},
    "stop_step": 1600
  },
  "trainers": [
    {"name": "bold", "hyperparameters": {"lr": 0.3}},
    {"name": "brisk", "hyperparameters": {"lr": 0.1}},
    {"name": "calm", "hyperparameters": {"lr": 0.03}}
  ],
  "sync": {"every_steps": 40}
})";

int fail(const core::error& e) {
  std::fprintf(stderr, "%s\n", e.text.c_str());
  return 1;
}

} // namespace

int main() {
  // 1. A system for our actor; the run uses it as well.
  actors::config<caf::id_block::watching> cfg;
  caf::actor_system system{cfg};
  auto watcher = watching::spawn_watcher(system);

  // 2. Start a run that tells the watcher what happens, and tell the watcher how to reach the run.
  auto options = actors::prepare_run(experiment);
  if (!options)
    return fail(options.error());
  options->system = &system;
  options->listener = watching::make_listener(watcher);
  auto run = actors::run_session::start(std::move(*options));
  if (!run)
    return fail(run.error());
  actors::anon_mail(watching::attach{(*run)->control()}).send(watcher);

  // 3. Wait for the end.
  const auto summary = (*run)->wait();
  for (const auto& t : summary.trainers)
    if (t.newest)
      std::printf("%s ends with loss %.4f, accuracy %.1f%%, lr %s\n", t.name.c_str(), t.newest->loss,
                  100 * t.newest->accuracy, core::to_string(*t.hp.find("lr")).c_str());

  // 4. Ask the watcher what it did.
  std::uint32_t pushes = 0;
  caf::scoped_actor self{system};
  actors::mail(self, watching::query_pushes{true})
      .request(watcher, 10s)
      .receive([&](std::uint32_t n) { pushes = n; },
               [](const caf::error& e) { std::fprintf(stderr, "%s\n", actors::error_text(e).c_str()); });
  std::printf("%u pushes took effect\n", pushes);
  return summary.outcome == actors::run_outcome_kind::done && pushes > 0 ? 0 : 1;
}
