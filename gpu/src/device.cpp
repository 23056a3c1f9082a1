#include "troupe/gpu/device.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>

#include <sched.h>
#include <unistd.h>

#include "devices.hpp"

namespace troupe::gpu {

namespace {

std::vector<int> allowed_cores() {
  std::vector<int> cores;
  for (std::size_t count = 1024; count <= (1u << 20);
       count *= 2) { // the kernel may know more cores than a cpu_set_t holds
    cpu_set_t* set = CPU_ALLOC(count);
    if (set == nullptr)
      break;
    const auto bytes = CPU_ALLOC_SIZE(count);
    CPU_ZERO_S(bytes, set);
    const bool ok = ::sched_getaffinity(0, bytes, set) == 0;
    if (ok)
      for (std::size_t i = 0; i < count; ++i)
        if (CPU_ISSET_S(i, bytes, set))
          cores.push_back(static_cast<int>(i));
    CPU_FREE(set);
    if (ok)
      break;
  }
  if (cores.empty())
    cores.push_back(0);
  return cores;
}

std::uint64_t installed_memory() {
  const auto pages = ::sysconf(_SC_PHYS_PAGES), size = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? std::uint64_t(pages) * std::uint64_t(size) : 0;
}

device_info describe_cpu() {
  device_info cpu;
  cpu.kind = device_kind::cpu;
  cpu.id = "cpu";
  cpu.name = internal::cpu_name();
  cpu.cores = allowed_cores();
  cpu.memory_bytes = installed_memory();
  const auto limits = internal::read_cgroup_limits();
  cpu.usable_cores = static_cast<unsigned>(cpu.cores.size());
  if (limits.cpus > 0)
    cpu.usable_cores = std::clamp(static_cast<unsigned>(std::ceil(limits.cpus)), 1u, cpu.usable_cores);
  if (limits.memory_bytes != 0)
    cpu.memory_bytes = std::min(cpu.memory_bytes, limits.memory_bytes);
  return cpu;
}

bool begins_with(std::string_view text, std::string_view prefix) {
  return text.size() >= prefix.size() &&
         std::equal(prefix.begin(), prefix.end(), text.begin(), [](char a, char b) {
           return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
         });
}

std::string list_of(const device_report& report) {
  std::string out;
  for (const auto& d : report.devices) {
    out += out.empty() ? "" : ", ";
    out += d.kind == device_kind::cpu
               ? "cpu"
               : "cuda:" + std::to_string(d.ordinal) + " = " + d.id + " (" + d.name + ")";
  }
  if (report.cuda_status != "ok")
    out += "; no GPU is used: " + report.cuda_status;
  return out;
}

} // namespace

std::string_view to_string(device_kind x) noexcept { return x == device_kind::cpu ? "cpu" : "cuda"; }

device_report find_devices() {
  device_report report;
  report.devices.push_back(describe_cpu());
  report.cpu_features = internal::cpu_features();
  internal::find_cuda_devices(report);
  return report;
}

core::result<device_info> find_device(const device_report& report, std::string_view selector) {
  const auto fail = [&](core::errc code, const std::string& why) -> core::error {
    return {code, "device \"" + std::string(selector) + "\": " + why + "; there are: " + list_of(report)};
  };
  const std::string forms = "expected \"cpu\", \"cuda\", \"cuda:<number>\", \"GPU-<uuid>\" or \"MIG-<uuid>\"";
  const auto first = [&](auto&& fits, const std::string& why) -> core::result<device_info> {
    for (const auto& d : report.devices)
      if (fits(d))
        return d;
    return fail(core::errc::not_found, why);
  };
  if (selector == "cpu")
    return first([](const device_info& d) { return d.kind == device_kind::cpu; }, "no CPU was reported");
  if (selector == "cuda")
    return first([](const device_info& d) { return d.kind == device_kind::cuda; }, "no GPU was found");
  if (selector.substr(0, 5) == "cuda:") {
    const auto digits = selector.substr(5);
    int n = -1;
    const auto [end, ec] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
    if (ec != std::errc{} || end != digits.data() + digits.size() || n < 0)
      return fail(core::errc::invalid_argument,
                  "\"" + std::string(digits) + "\" is no device number; " + forms);
    return first([n](const device_info& d) { return d.kind == device_kind::cuda && d.ordinal == n; },
                 "no GPU has this number");
  }
  if (begins_with(selector, "GPU-") || begins_with(selector, "MIG-")) {
    const auto rest = selector.substr(4);
    // MIG-GPU-<uuid>/<gi>/<ci> is the form of drivers before R470.
    const bool whole = !rest.empty() && std::all_of(rest.begin(), rest.end(), [&](char c) {
      return std::isxdigit(static_cast<unsigned char>(c)) || c == '-' ||
             (begins_with(selector, "MIG-") && std::string_view("GPU/").find(c) != std::string_view::npos);
    });
    if (!whole)
      return fail(core::errc::invalid_argument,
                  "a UUID has hexadecimal digits and dashes after its first four letters");
    std::vector<const device_info*> found;
    for (const auto& d : report.devices)
      if (d.kind == device_kind::cuda && begins_with(d.id, selector)) {
        if (d.id.size() == selector.size())
          return d;
        found.push_back(&d);
      }
    if (found.size() == 1)
      return *found.front();
    return found.empty() ? fail(core::errc::not_found, "no device has a UUID that begins like this")
                         : fail(core::errc::invalid_argument,
                                "several devices' UUIDs begin like this, give more of it");
  }
  return fail(core::errc::invalid_argument, forms);
}

namespace internal {

namespace {

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string text;
  std::getline(in, text);
  return text;
}

void lower(double& limit, double x) {
  if (x > 0 && (limit == 0 || x < limit))
    limit = x;
}

void lower(std::uint64_t& limit, const std::string& text) {
  std::uint64_t x = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), x).ec == std::errc{} && x != 0 &&
      x < (std::uint64_t{1} << 60) &&
      (limit == 0 || x < limit)) // v1 writes a number near 2^63 for "no limit"
    limit = x;
}

/// The number behind `key` in a file of lines "key number" or "key: number kB"; 0: there is none.
std::uint64_t number_of(const std::string& path, std::string_view key) {
  std::ifstream in(path);
  std::string word;
  std::uint64_t x = 0;
  for (std::string text; std::getline(in, text);)
    if (std::istringstream line(text); line >> word >> x && word == key)
      return x;
  return 0;
}

/// What a group has left below its own limit.
void read_memory(const std::string& folder, const char* limit_file, const char* used_file, std::string_view files,
                 cgroup_limits& out) {
  std::uint64_t limit = 0, used = 0;
  lower(limit, first_line(folder + "/" + limit_file));
  if (limit == 0)
    return;
  lower(out.memory_bytes, std::to_string(limit));
  lower(used, first_line(folder + "/" + used_file));
  used -= std::min(used, number_of(folder + "/memory.stat", files));
  out.memory_left = std::min(out.memory_left, limit - std::min(limit, used));
}

void read_folder(const std::string& folder, cgroup_limits& out) {
  if (std::istringstream in(first_line(folder + "/cpu.max")); in) { // v2: "max 100000" or "150000 100000"
    double quota = 0, period = 0;
    if (in >> quota >> period && period > 0)
      lower(out.cpus, quota / period);
  }
  if (std::istringstream quota(first_line(folder + "/cpu.cfs_quota_us")); quota) { // v1; -1: no limit
    std::istringstream period(first_line(folder + "/cpu.cfs_period_us"));
    double q = 0, p = 0;
    if (quota >> q && period >> p && q > 0 && p > 0)
      lower(out.cpus, q / p);
  }
  read_memory(folder, "memory.max", "memory.current", "inactive_file", out);
  read_memory(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", out);
}

} // namespace

cgroup_limits read_cgroup_limits(const std::string& root) {
  cgroup_limits out;
  const auto base = root + "/sys/fs/cgroup";
  read_folder(base, out); // in a container its own group is mounted here
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string text; std::getline(in, text);) { // "0::/a/b" (v2) or "4:cpu,cpuacct:/a/b" (v1)
    const auto c1 = text.find(':'), c2 = text.find(':', c1 + 1);
    if (c1 == std::string::npos || c2 == std::string::npos)
      continue;
    const auto controllers = text.substr(c1 + 1, c2 - c1 - 1);
    auto path = text.substr(c2 + 1);
    std::string mount = base;
    if (!controllers.empty()) {
      if (controllers.find("cpu") == 0 && controllers.find("cpuset") == std::string::npos)
        mount += "/cpu";
      else if (controllers == "memory")
        mount += "/memory";
      else
        continue;
      read_folder(mount, out);
    }
    while (path.size() > 1) { // a limit of any group above holds too
      read_folder(mount + path, out);
      path.resize(path.rfind('/'));
    }
  }
  return out;
}

std::uint64_t available_memory(const cgroup_limits& limits, const std::string& root) {
  const auto machine = number_of(root + "/proc/meminfo", "MemAvailable:") * 1024;
  return machine == 0 ? 0 : std::max<std::uint64_t>(1, std::min(machine, limits.memory_left));
}

std::string cpu_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string text; std::getline(in, text);)
    if (text.rfind("model name", 0) == 0)
      if (const auto at = text.find(": "); at != std::string::npos)
        return text.substr(at + 2);
  return "CPU";
}

std::vector<std::string> cpu_features() {
  std::vector<std::string> out;
#if defined(__x86_64__) && defined(__GNUC__)
  __builtin_cpu_init();
  const auto add = [&out](bool has, const char* name) {
    if (has)
      out.emplace_back(name);
  };
  // Asks cpuid and whether the system saves the registers.
  add(__builtin_cpu_supports("sse4.2"), "sse4_2");
  add(__builtin_cpu_supports("avx"), "avx");
  add(__builtin_cpu_supports("avx2"), "avx2");
  add(__builtin_cpu_supports("fma"), "fma");
  add(__builtin_cpu_supports("avx512f"), "avx512f");
  add(__builtin_cpu_supports("avx512bw"), "avx512bw");
  add(__builtin_cpu_supports("avx512dq"), "avx512dq");
  add(__builtin_cpu_supports("avx512vl"), "avx512vl");
  add(__builtin_cpu_supports("avx512vnni"), "avx512_vnni");
  add(__builtin_cpu_supports("avx512bf16"), "avx512_bf16");
#endif
  return out;
}

} // namespace internal

} // namespace troupe::gpu
