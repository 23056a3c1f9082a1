// A user's program: built against the installed headers and libraries alone, it trains two models of its own kind.
#include <cstdio>

#include <nlohmann/json.hpp>

#include "troupe/actors/run.hpp"
#include "troupe/core/experiment.hpp"
#include "troupe/gpu/basic_workload.hpp"
#include "troupe/gpu/device.hpp"

using namespace troupe;

/// Walks downhill on x squared.
class newton final : public gpu::basic_workload {
public:
  newton(gpu::context&, const gpu::workload_config& cfg) : basic_workload("newton", cfg) {
    weights("x", x_);
    tunable("lr", lr_, 0, 1);
  }
  double step(gpu::context&) override {
    x_[0] -= static_cast<float>(lr_) * 2 * x_[0];
    return x_[0] * x_[0];
  }
  gpu::evaluation evaluate(gpu::context&) override {
    gpu::evaluation e;
    e.accuracy = 1 - x_[0] * x_[0];
    return e;
  }

private:
  std::vector<float> x_{1.0F};
  double lr_ = 0.1;
};

int main() {
  actors::run_options o;
  auto workloads = std::make_shared<gpu::workload_registry>();
  workloads->add("newton", gpu::basic_workload::factory<newton>());
  o.workloads = workloads;
  o.policies = std::make_shared<core::policy_registry>(core::builtin_policies());
  core::experiment_checkers with;
  with.policies = o.policies.get();
  with.known_workload = [&](std::string_view t) { return workloads->contains(t); };
  with.workload_names = [&] { return workloads->names(); };
  auto parsed = core::parse_experiment(R"({"name": "consumer", "sync": {"every_steps": 10},
    "trainers": [{"name": "a", "count": 2, "workload": {"type": "newton"}, "stop_step": 30}]})", with);
  if (auto* faults = std::get_if<std::vector<core::error>>(&parsed)) {
    for (auto& f : *faults)
      std::fprintf(stderr, "%s\n", f.text.c_str());
    return 1;
  }
  o.exp = std::get<core::experiment>(std::move(parsed));
  gpu::slot_options slot;
  slot.device = gpu::find_devices().devices.front();
  o.slots.push_back(slot);
  auto run = actors::run_session::start(std::move(o));
  if (!run) {
    std::fprintf(stderr, "%s\n", run.error().text.c_str());
    return 1;
  }
  auto summary = (*run)->wait();
  std::printf("%zu trainers, %llu sync points: %s\n", summary.trainers.size(),
              static_cast<unsigned long long>(summary.rounds), std::string(to_string(summary.outcome)).c_str());
  return summary.outcome == actors::run_outcome_kind::done && summary.rounds == 2 ? 0 : 1;
}
