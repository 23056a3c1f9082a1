#include "product_plan.hpp"

#include <algorithm>
#include <exception>
#include <set>

#include <nlohmann/json.hpp>

namespace troupe::cli {

namespace {

std::string plan_file(const std::string& directory) { return directory + "/products.json"; }

/// Lets every kind of workload meet its products once, so that the plan knows them.
void probe(const core::experiment& exp, const gpu::workload_registry& workloads, const gpu::slot_options& slot) {
  constexpr std::size_t most_kinds = 32; // more would take longer than they save
  std::set<std::string> met;
  std::unique_ptr<gpu::context> ctx;
  for (auto& t : exp.trainers) {
    if (met.size() == most_kinds)
      break;
    if (t.workload_type == "idle") // multiplies nothing, and its step may take as long as a minute
      continue;
    if (!met.insert(t.workload_type + " " + t.workload_options).second)
      continue;
    try {
      if (!ctx) {
        ctx = std::make_unique<gpu::context>(slot);
        ctx->bind();
      }
      auto options = nlohmann::json::parse(t.workload_options);
      gpu::workload_config config{t.name, t.seed, &options, t.hp};
      if (auto work = workloads.make(*ctx, t.workload_type, config)) {
        (*work)->step(*ctx);
        (*work)->evaluate(*ctx);
      }
    } catch (const std::exception&) {
      // The trainer itself will fail with this, where it is reported with its name.
    }
  }
}

} // namespace

std::shared_ptr<gpu::gemm_plan> plan_products(const core::experiment& exp, const gpu::workload_registry& workloads,
                                              std::vector<gpu::slot_options>& slots, const std::string& resumed,
                                              std::string& note) {
  using gpu::gemm_plan;
  auto on_cpu = [](const gpu::slot_options& s) { return s.device.kind == gpu::device_kind::cpu; };
  auto first = std::ranges::find_if(slots, on_cpu);
  if (first == slots.end())
    return std::make_shared<gemm_plan>(gemm_plan::mode::frozen);
  std::shared_ptr<gemm_plan> plan;
  if (!resumed.empty()) {
    plan = gemm_plan::load(plan_file(resumed), gemm_plan::mode::frozen, &note);
  } else {
    auto cache = gemm_plan::default_path();
    plan = cache.empty() ? std::make_shared<gemm_plan>() : gemm_plan::load(cache);
    auto known = plan->size();
    auto slot = *first;
    slot.plan = plan;
    slot.cores.clear(); // this thread is not the slot's
    probe(exp, workloads, slot);
    if (plan->size() > known && !cache.empty())
      (void)plan->save(cache); // only saves time: the run keeps a plan of its own
    plan->freeze();
  }
  for (auto& s : slots)
    if (on_cpu(s))
      s.plan = plan;
  return plan;
}

core::result<void> keep_plan(const gpu::gemm_plan& plan, const std::string& directory) {
  return plan.save(plan_file(directory));
}

} // namespace troupe::cli
