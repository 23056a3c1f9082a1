#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "troupe/actors/run.hpp"
#include "troupe/core/experiment.hpp"
#include "troupe/core/policy.hpp"
#include "troupe/core/result.hpp"
#include "troupe/gpu/workload.hpp"

/// From an experiment's text to a run, with a program's own workloads and policies: what `troupe run` does before it starts.
///
///     program mine;
///     mine.workloads.add("factors", gpu::basic_workload::factory<factors>());
///     auto options = prepare_run(text, mine);
///     if (!options) …                                  // options.error().text: every fault, one a line
///     options->directory = "runs/first";               // and whatever else run_options has
///     auto run = run_session::start(std::move(*options));
namespace troupe::actors {

/// What a program adds to the words that its experiments may use, and where they run.
struct program {
  gpu::workload_registry workloads = gpu::builtin_workloads();
  core::policy_registry policies = core::builtin_policies();
  std::vector<core::slot_request> slots{{}}; ///< for experiments without "slots"; by default one on the CPU
};

/// What `core::parse_experiment` needs to know of a program. Refers to it.
core::experiment_checkers checkers_of(const gpu::workload_registry& workloads, const core::policy_registry& policies);

/// Checks the experiment whole and makes its slots' options. The error has every fault, one a line, each with its place in
/// the text.
core::result<run_options> prepare_run(std::string_view experiment, const program& with = {});
/// The same for a file; each fault begins with the file's name.
core::result<run_options> prepare_run_file(const std::string& path, const program& with = {});

} // namespace troupe::actors
