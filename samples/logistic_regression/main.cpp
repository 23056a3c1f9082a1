// The regularisation path of a logistic regression: the same problem with six strengths of the penalty, all trained at once.

#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>

#include "logistic.hpp"
#include "troupe/actors/prepare.hpp"

using namespace troupe;

namespace {

/// Step sizes shrink at the sync points, where all six stand at the same step.
constexpr auto experiment = R"({
  "name": "logistic_regression",
  "defaults": {"workload": {"type": "logistic", "batch": 100}, "hyperparameters": {"lr": 0.01}, "stop_step": 900},
  "trainers": [
    {"name": "none", "hyperparameters": {"l2": 0}},
    {"name": "1e-4", "hyperparameters": {"l2": 1e-4}},
    {"name": "1e-3", "hyperparameters": {"l2": 1e-3}},
    {"name": "1e-2", "hyperparameters": {"l2": 1e-2}},
    {"name": "1e-1", "hyperparameters": {"l2": 1e-1}},
    {"name": "1", "hyperparameters": {"l2": 1}}
  ],
  "sync": {"every_steps": 300},
  "policy": {"type": "schedule", "at": [{"sync": 0, "set": {"lr": 0.003}}, {"sync": 1, "set": {"lr": 0.001}}]}
})";

constexpr auto usage = "usage: logistic_regression [--device cpu|cuda|…] [--slots N] [--generated]\n"
                       "  --device     where to train (cpu)\n"
                       "  --slots      how many slots share the device (2)\n"
                       "  --generated  made-up data instead of Fashion-MNIST's shirts and T-shirts\n";

/// The examples of two classes, labelled 0 and 1.
gpu::labelled_examples only(const gpu::labelled_examples& all, std::int64_t features, std::int32_t first, std::int32_t second) {
  gpu::labelled_examples out;
  for (std::size_t i = 0; i < all.labels.size(); ++i)
    if (all.labels[i] == first || all.labels[i] == second) {
      const auto from = all.images.begin() + static_cast<std::ptrdiff_t>(i) * features;
      out.images.insert(out.images.end(), from, from + features);
      out.labels.push_back(all.labels[i] == first ? 0 : 1);
    }
  return out;
}

core::result<gpu::dataset> shirts_and_t_shirts() {
  auto all = gpu::load_fashion_mnist(gpu::fashion_mnist_folder());
  if (!all)
    return all.error();
  constexpr std::int32_t t_shirt = 0, shirt = 6; // the two that are told apart worst
  auto out = std::move(*all);
  out.train = only(out.train, out.features, shirt, t_shirt);
  out.test = only(out.test, out.features, shirt, t_shirt);
  out.classes = 2;
  return out;
}

gpu::dataset generated() {
  gpu::data_spec spec;
  spec.type = "synthetic";
  spec.classes = 2;
  spec.features = 100;
  spec.clusters = 3;
  spec.noise = 2.5;
  return gpu::make_synthetic(spec);
}

int fail(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  return 1;
}

int wrong_use(const std::string& text) {
  std::fprintf(stderr, "%s\n%s", text.c_str(), usage);
  return 2;
}

} // namespace

int main(int argc, char** argv) {
  bool real = true;
  core::slot_request slots{.device = "cpu", .count = 2};
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--help")
      return std::fputs(usage, stdout), 0;
    if (arg == "--generated") {
      real = false;
    } else if ((arg == "--device" || arg == "--slots") && i + 1 == argc) {
      return wrong_use(arg + " needs a value");
    } else if (arg == "--device") {
      slots.device = argv[++i];
    } else if (arg == "--slots") {
      const auto n = std::atoi(argv[++i]);
      if (n < 1 || n > 64)
        return wrong_use("--slots must be a number from 1 to 64, not " + std::string(argv[i]));
      slots.count = static_cast<std::uint32_t>(n);
    } else {
      return wrong_use(arg + " is no option");
    }
  }

  // 1. The data, once for all trainers.
  sample::logistic::shared_data data;
  if (real) {
    auto loaded = shirts_and_t_shirts();
    if (loaded)
      data.host = std::make_shared<const gpu::dataset>(std::move(*loaded));
    else
      std::printf("%s\nUsing generated data instead.\n", loaded.error().text.c_str());
  }
  if (!data.host)
    data.host = std::make_shared<const gpu::dataset>(generated());

  // 2. The workload gets a name for the experiment, and its data.
  actors::program mine;
  mine.workloads.add("logistic", gpu::basic_workload::factory<sample::logistic>(data),
                     gpu::basic_workload::checker<sample::logistic>(data));
  mine.slots = {slots};

  // 3. Check, start, wait.
  auto options = actors::prepare_run(experiment, mine);
  if (!options)
    return fail(options.error().text);
  auto run = actors::run_session::start(std::move(*options));
  if (!run)
    return fail(run.error().text);
  const auto summary = (*run)->wait();

  // 4. The path: the stronger the penalty, the smaller the weights. The best accuracy lies somewhere between.
  std::printf("%lld examples, %lld features, %zu trainers on %u slots: %.2f s\n", static_cast<long long>(data.host->train.size()),
              static_cast<long long>(data.host->features), summary.trainers.size(), slots.count, summary.seconds);
  std::printf("%8s %10s %10s %10s\n", "l2", "|w|", "loss", "held out");
  bool shrinks = true;
  double norm = INFINITY;
  for (const auto& t : summary.trainers) {
    if (!t.newest) {
      std::printf("%8s %s\n", t.name.c_str(), t.failure.text.c_str());
      continue;
    }
    std::printf("%8s %10.3f %10.4f %9.2f%%\n", t.name.c_str(), t.newest->number("w_norm"), t.newest->loss,
                100 * t.newest->accuracy);
    shrinks = shrinks && t.newest->number("w_norm") < norm;
    norm = t.newest->number("w_norm");
  }
  return summary.outcome == actors::run_outcome_kind::done && shrinks ? 0 : 1;
}
