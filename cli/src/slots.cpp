#include "slots.hpp"

#include <algorithm>
#include <map>
#include <set>

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
             const gpu::device_report& report, unsigned workers) {
  std::vector<core::error> faults;
  for (auto& selector : devices)
    if (auto d = gpu::find_device(report, selector); !d)
      faults.push_back({d.error().code, "--device: " + d.error().text});
  if (!faults.empty())
    return faults;
  auto math = exp.math == "tf32" ? gpu::math_mode::tf32 : gpu::math_mode::fp32;
  auto slots = gpu::make_slots(report, requested_slots(exp, count, devices, report), math, "/slots", faults,
                               gpu::available_host_memory(), workers);
  if (!faults.empty())
    return faults;
  return slots;
}

std::vector<std::string> notes_on_shared_gpus(const std::vector<std::vector<gpu::slot_options>>& dealt) {
  std::map<int, std::set<std::size_t>> workers; // by the GPU's number
  for (std::size_t w = 0; w < dealt.size(); ++w)
    for (const auto& s : dealt[w])
      if (s.device.kind == gpu::device_kind::cuda)
        workers[s.device.ordinal].insert(w);
  std::vector<std::string> out;
  for (const auto& [ordinal, who] : workers)
    if (who.size() > 1)
      out.push_back(std::to_string(who.size()) + " worker processes share cuda:" + std::to_string(ordinal) +
                    ": they take turns on it, equal trainers of different workers do not run as one, and each has a CUDA context of its "
                    "own. To avoid it give each GPU to one worker, or leave out --workers");
  return out;
}

} // namespace troupe::cli
