#include <filesystem>
#include <ostream>

#include <nlohmann/json.hpp>

#include "caf/config.hpp"

#include "commands.hpp"
#include "text.hpp"
#include "troupe/gpu/dataset.hpp"
#include "troupe/gpu/device.hpp"
#include "troupe/gpu/slots.hpp"
#include "troupe/gpu/versions.hpp"

namespace troupe::cli {

namespace {

std::string caf_version() {
  return std::to_string(CAF_MAJOR_VERSION) + "." + std::to_string(CAF_MINOR_VERSION) + "." + std::to_string(CAF_PATCH_VERSION);
}

struct diagnosis {
  gpu::device_report devices = gpu::find_devices();
  std::vector<gpu::library_version> libraries = gpu::library_versions();
  std::string data_folder = gpu::fashion_mnist_folder();
  bool data_present = gpu::load_fashion_mnist(data_folder).has_value();

  std::uint64_t available = gpu::available_host_memory();

  diagnosis() { libraries.insert(libraries.begin(), {"CAF", caf_version(), "actors and messages"}); }

  /// What a slot gets that has the device to itself.
  gpu::slot_options slot_on(const gpu::device_info& x) const {
    std::vector<core::error> faults;
    core::slot_request whole;
    whole.device = x.id;
    const auto slots = gpu::make_slots(devices, {&whole, 1}, gpu::math_mode::fp32, "", faults, available);
    return slots.empty() ? gpu::slot_options{} : slots.front();
  }
};

nlohmann::json as_json(const diagnosis& d) {
  nlohmann::json out{{"kind", "doctor"}, {"troupe", TROUPE_VERSION}, {"cuda_status", d.devices.cuda_status}};
  for (auto& x : d.devices.devices) {
    nlohmann::json device{{"kind", std::string{to_string(x.kind)}}, {"id", x.id}, {"name", x.name}, {"memory_bytes", x.memory_bytes}};
    if (x.kind == gpu::device_kind::cpu) {
      device["cores"] = x.cores;
      device["usable_cores"] = x.usable_cores;
      device["memory_available"] = d.available;
      device["features"] = d.devices.cpu_features;
    } else {
      device["ordinal"] = x.ordinal;
      device["context_bytes"] = gpu::context_bytes;
      device["compute_capability"] = std::to_string(x.compute_major) + "." + std::to_string(x.compute_minor);
    }
    const auto slot = d.slot_on(x);
    device["slot"] = {{"memory_budget", slot.memory_budget}, {"pinned_budget", slot.pinned_budget}};
    out["devices"].push_back(std::move(device));
  }
  for (auto& x : d.libraries)
    out["libraries"][x.name] = {{"version", x.version}, {"note", x.note}};
  out["data"]["fashion_mnist"] = {{"folder", d.data_folder}, {"present", d.data_present}};
  return out;
}

} // namespace

int doctor(const doctor_arguments& a, output to) {
  const diagnosis d;
  if (a.json) {
    print_json(to.out, as_json(d));
    return exit_done;
  }
  to.out << "troupe " TROUPE_VERSION "\n\nDevices\n";
  text_table devices{{{"device"}, {"model"}, {"memory", true}, {"slot budget", true}, {"details"}}};
  std::uint64_t pinned = 0;
  for (auto& x : d.devices.devices) {
    std::string details;
    if (x.kind == gpu::device_kind::cpu) {
      details = count_text(x.usable_cores, "core", "cores");
      for (auto& f : d.devices.cpu_features)
        details += " " + f;
    } else {
      details = x.id + ", compute capability " + std::to_string(x.compute_major) + "." + std::to_string(x.compute_minor);
    }
    const auto slot = d.slot_on(x);
    pinned = slot.pinned_budget;
    devices.add({x.kind == gpu::device_kind::cpu ? "cpu" : "cuda:" + std::to_string(x.ordinal), x.name, bytes_text(x.memory_bytes),
                 slot.memory_budget > 0 ? bytes_text(slot.memory_budget) : "no limit", details});
  }
  to.out << devices.str(2) << "  The budget is that of one slot which has the device to itself; several share it. All slots together\n"
         << "  pin at most " << bytes_text(pinned) << " of host memory, a quarter of what is available now. Both can be set:\n  docs/memory.md.\n";
  if (d.devices.devices.size() > 1)
    to.out << "  Of a GPU, " << bytes_text(gpu::context_bytes) << " are left for the CUDA context and the libraries of each process that "
           << "uses it, and\n  cuBLAS's workspace for each slot.\n";
  if (d.devices.cuda_status != "ok")
    to.out << "  No GPU is used: " << d.devices.cuda_status << ".\n";
  to.out << "\nLibraries\n";
  text_table libraries{{{"library"}, {"version"}, {"note"}}};
  for (auto& x : d.libraries)
    libraries.add({x.name, x.version.empty() ? "none" : x.version, x.note});
  to.out << libraries.str(2) << "\nData\n  Fashion-MNIST: ";
  if (d.data_present)
    to.out << "present in " << d.data_folder << "\n";
  else
    to.out << "not in " << d.data_folder << "; install Debian's package dataset-fashion-mnist\n";
  return exit_done;
}

} // namespace troupe::cli
