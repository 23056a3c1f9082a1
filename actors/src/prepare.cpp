#include "troupe/actors/prepare.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <variant>

#include "troupe/gpu/slots.hpp"

namespace troupe::actors {

namespace {

core::error all_of(const std::vector<core::error>& faults, const std::string& prefix) {
  core::error out{faults.front().code, {}};
  for (const auto& f : faults)
    out.text += (out.text.empty() ? "" : "\n") + prefix + f.text;
  return out;
}

core::result<run_options> prepare(std::string_view text, const program& with, const std::string& prefix) {
  run_options out;
  auto workloads = std::make_shared<const gpu::workload_registry>(with.workloads);
  auto policies = std::make_shared<const core::policy_registry>(with.policies);
  auto parsed = core::parse_experiment(text, checkers_of(*workloads, *policies));
  if (const auto* faults = std::get_if<std::vector<core::error>>(&parsed))
    return all_of(*faults, prefix);
  out.exp = std::get<core::experiment>(std::move(parsed));
  out.workloads = std::move(workloads);
  out.policies = std::move(policies);

  std::vector<core::error> faults;
  const bool own = !out.exp.slots.empty();
  out.slots = gpu::make_slots(gpu::find_devices(), own ? out.exp.slots : with.slots,
                              out.exp.math == "tf32" ? gpu::math_mode::tf32 : gpu::math_mode::fp32,
                              "/slots", faults);
  if (!own) // what the program asked for has no place in the experiment
    for (auto& f : faults)
      f.text.erase(0, f.text.find(": ") + 2);
  if (!faults.empty())
    return all_of(faults, own ? prefix : "");
  return out;
}

} // namespace

core::experiment_checkers checkers_of(const gpu::workload_registry& workloads, const core::policy_registry& policies) {
  core::experiment_checkers out;
  out.policies = &policies;
  out.known_workload = [&workloads](std::string_view type) { return workloads.contains(type); };
  out.workload_names = [&workloads] { return workloads.names(); };
  out.check_workload = [&workloads](std::string_view type, const nlohmann::json& options, const core::hyperparameters& hp,
                                    std::string_view where, std::vector<core::error>& faults) {
    workloads.check(type, options, hp, where, faults);
  };
  return out;
}

core::result<run_options> prepare_run(std::string_view experiment, const program& with) {
  return prepare(experiment, with, {});
}

core::result<run_options> prepare_run_file(const std::string& path, const program& with) {
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in.good() && !in.eof())
    return core::error{core::errc::io, path + ": cannot be read: " + std::strerror(errno)};
  return prepare(text, with, path + ": ");
}

} // namespace troupe::actors
