#include "slots.hpp"

#include <algorithm>

#include "troupe/gpu/slots.hpp"

namespace troupe::cli {

namespace {

bool by_experiment(const core::experiment& exp, std::optional<unsigned> count, const std::vector<std::string>& devices) {
  return !count && devices.empty() && !exp.slots.empty();
}

} // namespace

std::vector<core::slot_request> requested_slots(const core::experiment& exp, std::optional<unsigned> count,
                                                const std::vector<std::string>& devices, const gpu::device_report& report) {
  if (by_experiment(exp, count, devices))
    return exp.slots;
  auto on = devices;
  std::size_t natural = 0;
  for (auto& d : report.devices)
    if (devices.empty() && d.kind == gpu::device_kind::cuda)
      on.push_back(d.id);
  if (on.empty())
    on.push_back("cpu");
  for (auto& selector : on) {
    auto d = gpu::find_device(report, selector); // an unknown one is reported when the slots are made
    natural += d && d->kind == gpu::device_kind::cpu ? std::max(1u, d->usable_cores) : 1;
  }
  auto n = count ? *count : std::max<std::size_t>(1, std::min(natural, exp.trainers.size()));
  std::vector<core::slot_request> out;
  for (std::size_t i = 0; i < n; ++i)
    out.push_back({on[i % on.size()], 1, 0, 0});
  return out;
}

std::variant<std::vector<gpu::slot_options>, std::vector<core::error>>
choose_slots(const core::experiment& exp, std::optional<unsigned> count, const std::vector<std::string>& devices,
             const gpu::device_report& report) {
  std::vector<core::error> faults;
  for (auto& selector : devices)
    if (auto d = gpu::find_device(report, selector); !d)
      faults.push_back({d.error().code, "--device: " + d.error().text});
  if (!faults.empty())
    return faults;
  auto math = exp.math == "tf32" ? gpu::math_mode::tf32 : gpu::math_mode::fp32;
  auto slots = gpu::make_slots(report, requested_slots(exp, count, devices, report), math, "/slots", faults,
                               gpu::available_host_memory());
  if (!faults.empty())
    return faults;
  return slots;
}

} // namespace troupe::cli
