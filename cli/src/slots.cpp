#include "slots.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "text.hpp"
#include "troupe/core/placement.hpp"
#include "troupe/gpu/slots.hpp"
#include "troupe/net/cluster.hpp"

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
  std::map<std::string, std::string> given; // names of devices by id
  for (auto& selector : devices) {
    const auto d = gpu::find_device(report, selector);
    if (!d)
      faults.push_back({d.error().code, "--device: " + d.error().text});
    else if (const auto [first, fresh] = given.emplace(d->id, selector); !fresh)
      faults.push_back({core::errc::invalid_argument,
                        "--device: '" + selector + "' is the same device as '" + first->second + "': --slots says how many slots it has"});
  }
  if (!faults.empty())
    return faults;
  auto math = exp.math == "tf32" ? gpu::math_mode::tf32 : gpu::math_mode::fp32;
  auto slots = gpu::make_slots(report, requested_slots(exp, count, devices, report), math, "/slots", faults,
                               gpu::available_host_memory(), workers);
  if (!faults.empty())
    return faults;
  return slots;
}

std::vector<core::error> check_pins(const core::experiment& exp, const std::vector<gpu::slot_options>& slots, unsigned workers,
                                    const gpu::device_report& report) {
  std::vector<core::slot_place> places;
  std::uint32_t node = workers > 0 ? 1 : 0;
  for (const auto& process : net::deal_slots(slots, std::max(1u, workers))) {
    for (const auto& s : process)
      places.push_back({node, s.index, s.device.id});
    ++node;
  }
  std::string names;
  for (std::size_t i = 0; i < places.size() && i < 8; ++i)
    names += (i == 0 ? "" : ", ") + std::to_string(places[i].node) + "/" + std::to_string(places[i].slot) + " (" + places[i].device + ")";
  if (places.size() > 8)
    names += ", …";
  core::placement board{places};
  std::vector<core::error> faults;
  const std::string* last = nullptr; // entry with a fault: trainers of one entry have one slot
  for (const auto& t : exp.trainers) {
    if (t.slot.empty() || (last && *last == t.where))
      continue;
    auto pin = t.slot;
    if (pin.starts_with("cuda:"))
      if (auto device = gpu::find_device(report, pin))
        pin = device->id;
    if (board.place(0, t.name, pin))
      continue;
    faults.push_back({core::errc::invalid_argument, t.where + "/slot: '" + t.slot + "' is no slot of this run, which has " +
                                                        count_text(slots.size(), "slot", "slots") + ": " + names});
    last = &t.where;
  }
  return faults;
}

std::vector<core::error> check_own_pins(const core::experiment& exp) {
  std::uint64_t count = 0;
  for (const auto& s : exp.slots)
    count += s.count;
  std::vector<core::error> faults;
  for (const auto& t : exp.trainers) {
    const std::string_view number = std::string_view{t.slot}.substr(t.slot.starts_with("0/") ? 2 : 0);
    std::uint64_t n = 0;
    const auto [end, fault] = std::from_chars(number.data(), number.data() + number.size(), n);
    const auto where = t.where + "/slot";
    if (count == 0 || fault != std::errc{} || end != number.data() + number.size() || n < count)
      continue;
    if (faults.empty() || !faults.back().text.starts_with(where + ":"))
      faults.push_back({core::errc::invalid_argument, where + ": '" + t.slot + "' is no slot: the file's /slots are " + std::to_string(count) +
                                                          ", and the first has the number 0"});
  }
  return faults;
}

core::result<void> check_pin_of(const std::string& entry, const std::vector<gpu::slot_options>& slots, unsigned workers,
                                const gpu::device_report& report) {
  const auto j = nlohmann::json::parse(entry, nullptr, false, true);
  const auto slot = j.is_object() ? j.find("slot") : j.end();
  if (!j.is_object() || slot == j.end() || !(slot->is_string() || slot->is_number_unsigned()))
    return {};
  core::experiment one;
  one.trainers.emplace_back().slot = slot->is_string() ? slot->get<std::string>() : slot->dump();
  const auto faults = check_pins(one, slots, workers, report);
  return faults.empty() ? core::result<void>{} : faults.front();
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
