#include "troupe/gpu/slots.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "devices.hpp"

namespace troupe::gpu {

namespace {

constexpr std::uint32_t whole = 1000;

/// What the requests take of one device.
struct claim {
  device_info device;
  std::uint64_t milli = 0;   ///< by slots with a share of their own
  std::uint64_t sharing = 0; ///< slots that divide the rest
  std::uint64_t slots = 0;
  std::set<std::uint64_t> processes; ///< that have one of them
  std::size_t next_core = 0;
};

std::uint64_t budget_of(const claim& c, std::uint64_t milli) {
  if (c.device.kind == device_kind::cpu)
    return 0;
  const auto all = c.device.memory_bytes;
  const auto taken = c.processes.size() * context_bytes + c.slots * internal::cublas_workspace_bytes(c.device.compute_major);
  return (all > 2 * taken ? all - taken : all / 2) / whole * milli;
}

} // namespace

std::uint64_t available_host_memory() { return internal::available_memory(internal::read_cgroup_limits()); }

std::vector<slot_options> make_slots(const device_report& found, std::span<const core::slot_request> wanted, math_mode math,
                                     std::string_view where, std::vector<core::error>& faults, std::uint64_t available,
                                     unsigned workers) {
  const auto before = faults.size();
  const auto fault = [&](core::errc code, std::size_t i, const std::string& text) {
    faults.push_back({code, std::string(where) + "/" + std::to_string(i) + text});
  };
  std::map<std::string, claim> claims;
  std::vector<claim*> of(wanted.size());
  std::uint64_t slots = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    auto device = find_device(found, wanted[i].device);
    if (!device) {
      fault(device.error().code, i, "/device: " + device.error().text);
      continue;
    }
    auto& c = claims.try_emplace(device->id, claim{*device, 0, 0, 0, {}, 0}).first->second;
    of[i] = &c;
    c.slots += wanted[i].count;
    for (std::uint32_t k = 0; k < wanted[i].count; ++k)
      c.processes.insert(workers > 0 ? slots++ % workers : 0);
    if (wanted[i].milli_share == 0)
      c.sharing += wanted[i].count;
    else
      c.milli += std::uint64_t{wanted[i].milli_share} * wanted[i].count;
    if (c.milli > whole || (c.milli == whole && c.sharing > 0))
      fault(core::errc::refused, i,
            ": " + device->id + " is shared out: its slots with a milli_share take " + std::to_string(c.milli)
                + " of 1000" + (c.sharing > 0 ? ", and " + std::to_string(c.sharing) + " more want a part" : ""));
  }
  if (faults.size() > before)
    return {};

  slots = 0;
  for (const auto& w : wanted)
    slots += w.count;
  const auto host = std::find_if(found.devices.begin(), found.devices.end(), [](const auto& d) { return d.kind == device_kind::cpu; });
  const auto all = host != found.devices.end() ? host->memory_bytes : 0;
  const auto quarter = (available != 0 ? std::min(available, all) : all) / 4;
  // 0 would be no limit, just where nothing is left.
  const auto pinned = slots == 0 || all == 0 ? 0 : std::max<std::uint64_t>(quarter / slots, 1);
  std::vector<slot_options> out;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    auto& c = *of[i];
    const auto milli = wanted[i].milli_share != 0 ? wanted[i].milli_share : (whole - c.milli) / c.sharing;
    for (std::uint32_t k = 0; k < wanted[i].count; ++k) {
      auto& s = out.emplace_back();
      s.device = c.device;
      s.index = static_cast<unsigned>(out.size() - 1);
      s.math = math;
      s.memory_budget = wanted[i].memory_bytes != 0 ? wanted[i].memory_bytes : budget_of(c, milli);
      s.pinned_budget = wanted[i].pinned_bytes != 0 ? wanted[i].pinned_bytes : pinned;
      s.capture = wanted[i].capture ? capture_mode::automatic : capture_mode::never;
      const auto& cores = c.device.cores;
      if (c.device.kind == device_kind::cpu && wanted[i].milli_share != 0 && !cores.empty()) {
        const auto n = std::max<std::size_t>(1, cores.size() * milli / whole);
        for (std::size_t j = 0; j < n; ++j)
          s.cores.push_back(cores[(c.next_core + j) % cores.size()]);
        c.next_core += n;
      }
    }
  }
  return out;
}

} // namespace troupe::gpu
