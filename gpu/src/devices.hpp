#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/gpu/device.hpp"
#include "troupe/gpu/versions.hpp"

namespace troupe::gpu::internal {

/// Of each GPU slot, in a context's memory; what cuBLAS's manual advises.
constexpr std::uint64_t cublas_workspace_bytes(int compute_major) { return std::uint64_t{compute_major >= 9 ? 32u : 8u} << 20; }

/// Appends the GPUs and says in `cuda_status` how it went.
void find_cuda_devices(device_report& report);

/// Throws `device_error`.
std::uint64_t free_cuda_memory(const device_info& device);

/// What the cgroups of this process allow. `root` is the file system's root; a test gives another.
struct cgroup_limits {
  double cpus = 0;                ///< cores' worth of time; 0: no limit
  std::uint64_t memory_bytes = 0; ///< 0: no limit
  std::uint64_t memory_left = UINT64_MAX; ///< below the limits, files that can be dropped counted as left
};
cgroup_limits read_cgroup_limits(const std::string& root = "/");

/// What of the machine's memory can be had without paging (MemAvailable), and the cgroups allow; 0: not known.
std::uint64_t available_memory(const cgroup_limits& limits, const std::string& root = "/");

void add_cuda_versions(std::vector<library_version>& into);

std::vector<std::string> cpu_features();

/// The model's name, for people and for file names.
std::string cpu_name();

} // namespace troupe::gpu::internal
