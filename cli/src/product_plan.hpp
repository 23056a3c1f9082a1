#pragma once

#include <memory>
#include <string>
#include <vector>

#include "troupe/core/experiment.hpp"
#include "troupe/core/result.hpp"
#include "troupe/gpu/context.hpp"
#include "troupe/gpu/gemm_plan.hpp"
#include "troupe/gpu/workload.hpp"

namespace troupe::cli {

/// Decides which library computes which matrix product on the CPU before anything trains, and gives the plan to `slots`.
///
/// Libraries differ in the order of their sums, so one choice must hold for all slots and processes of a run, and when it is
/// resumed. Each kind of workload in the experiment is built once and takes a step and an evaluation with a plan that probes;
/// what earlier runs on this machine found is taken over. `resumed`: the run directory whose plan must be used; empty: a new
/// run. `note` is set where there is something to say. The plan is frozen when this returns; without CPU slots it is empty.
std::shared_ptr<gpu::gemm_plan> plan_products(const core::experiment& exp, const gpu::workload_registry& workloads,
                                              std::vector<gpu::slot_options>& slots, const std::string& resumed,
                                              std::string& note);

/// Keeps the plan in the run directory for a resumption. An empty plan is kept too.
core::result<void> keep_plan(const gpu::gemm_plan& plan, const std::string& directory);

} // namespace troupe::cli
