#include "troupe/gpu/device.hpp"

#include <filesystem>
#include <fstream>

#include <doctest/doctest.h>
#include <unistd.h>

#include "devices.hpp"

using namespace troupe::gpu;

namespace {

device_info device(device_kind kind, int ordinal, std::string id) {
  device_info d;
  d.kind = kind;
  d.ordinal = ordinal;
  d.id = std::move(id);
  d.name = "some device";
  return d;
}

/// A machine with two GPUs and a slice of a third.
device_report mock_report() {
  device_report r;
  r.devices.push_back(device(device_kind::cpu, 0, "cpu"));
  const char* ids[] = {"GPU-5a1b2c3d-0000-0000-0000-000000000001", "GPU-5a9b2c3d-0000-0000-0000-000000000002",
                       "MIG-c0ffee00-1111-2222-3333-444444444444"};
  for (int i = 0; i < 3; ++i)
    r.devices.push_back(device(device_kind::cuda, i, ids[i]));
  r.cuda_status = "ok";
  return r;
}

std::string error_of(const device_report& r, std::string_view selector) {
  auto d = find_device(r, selector);
  return d ? "found " + d->id : d.error().text;
}

} // namespace

TEST_CASE("FAULTS 29: devices are found by ordinal and UUID and prefix and MIG UUID") {
  const auto r = mock_report();
  CHECK(find_device(r, "cpu")->id == "cpu");
  CHECK(find_device(r, "cuda")->ordinal == 0);
  CHECK(find_device(r, "cuda:2")->ordinal == 2);
  CHECK(find_device(r, "GPU-5a9b2c3d-0000-0000-0000-000000000002")->ordinal == 1);
  CHECK(find_device(r, "GPU-5a1")->ordinal == 0);
  CHECK(find_device(r, "gpu-5A1B")->ordinal == 0);
  CHECK(find_device(r, "MIG-c0ffee00-1111-2222-3333-444444444444")->ordinal == 2);
  CHECK(find_device(r, "MIG-c0")->ordinal == 2);
}

TEST_CASE("FAULTS 29: a selector that names nothing or too much is refused with what there is") {
  const auto r = mock_report();
  for (const char* bad : {"", "0", "1", "gpu", "cuda:", "cuda:-1", "cuda:1x", "cuda:99999999999999999999",
                          "GPU-", "GPU-xyz", "tpu"}) {
    CAPTURE(bad);
    auto d = find_device(r, bad);
    REQUIRE_FALSE(d);
    CHECK(d.error().code == troupe::core::errc::invalid_argument);
    CHECK(d.error().text.find("cuda:1 = GPU-5a9b2c3d") != std::string::npos);
  }
  CHECK(find_device(r, "cuda:7").error().code == troupe::core::errc::not_found);
  CHECK(error_of(r, "GPU-5a").find("several devices") != std::string::npos);
  CHECK(error_of(r, "MIG-GPU-5a1b2c3d/1/0").find("no device has a UUID") != std::string::npos);
}

TEST_CASE("where there is no GPU the error says why") {
  device_report r;
  r.devices.push_back(device(device_kind::cpu, 0, "cpu"));
  r.cuda_status = "no driver";
  CHECK(error_of(r, "cuda").find("no driver") != std::string::npos);
}

TEST_CASE("this machine has a CPU with at least one core and some memory") {
  const auto r = find_devices();
  REQUIRE(!r.devices.empty());
  const auto& cpu = r.devices.front();
  CHECK(cpu.kind == device_kind::cpu);
  CHECK(!cpu.name.empty());
  CHECK(cpu.usable_cores >= 1);
  CHECK(cpu.usable_cores <= cpu.cores.size());
  CHECK(cpu.memory_bytes > (64u << 20));
  CHECK(!r.cuda_status.empty());
  CHECK((r.cuda_status == "ok") == (r.devices.size() > 1));
}

TEST_CASE("limits of control groups are read in both versions") {
  namespace fs = std::filesystem;
  const auto root = fs::temp_directory_path() / ("troupe-cgroup-" + std::to_string(::getpid()));
  const auto write = [&](const std::string& path, const std::string& text) {
    fs::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text << "\n";
  };
  CHECK(internal::read_cgroup_limits(root.string()).cpus == 0); // nothing there: no limit
  write("proc/self/cgroup", "0::/box/inner");
  write("sys/fs/cgroup/box/inner/cpu.max", "max 100000");
  write("sys/fs/cgroup/box/cpu.max", "150000 100000");
  write("sys/fs/cgroup/box/memory.max", "1048576");
  write("sys/fs/cgroup/box/inner/memory.max", "max");
  auto l = internal::read_cgroup_limits(root.string());
  CHECK(l.cpus == 1.5);
  CHECK(l.memory_bytes == 1048576);
  CHECK(l.memory_left == 1048576);
  write("sys/fs/cgroup/box/memory.current", "1000000");
  write("sys/fs/cgroup/box/memory.stat", "anon 100000\ninactive_file 900000\nactive_file 7");
  l = internal::read_cgroup_limits(root.string());
  CHECK(l.memory_left == 948576);
  CHECK(internal::available_memory(l, root.string()) == 0); // the machine does not say
  write("proc/meminfo", "MemTotal:       900 kB\nMemAvailable:       800 kB\nBuffers: 1 kB");
  CHECK(internal::available_memory(l, root.string()) == 800 * 1024);
  write("sys/fs/cgroup/box/memory.current", "2000000"); // more than the limit, as it was lowered
  l = internal::read_cgroup_limits(root.string());
  CHECK(internal::available_memory(l, root.string()) == 1);
  fs::remove_all(root);
  write("proc/self/cgroup", "4:cpu,cpuacct:/job\n3:cpuset:/\n2:memory:/job");
  write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "400000");
  write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2097152");
  l = internal::read_cgroup_limits(root.string());
  CHECK(l.cpus == 4);
  CHECK(l.memory_bytes == 2097152);
  write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "97152");
  CHECK(internal::read_cgroup_limits(root.string()).memory_left == 2000000);
  fs::remove_all(root);
}
