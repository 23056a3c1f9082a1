#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/result.hpp"

namespace troupe::gpu {

enum class device_kind : std::uint8_t { cpu, cuda };

std::string_view to_string(device_kind x) noexcept;

/// Something that computes: all cores of this machine, or one GPU.
struct device_info {
  device_kind kind = device_kind::cpu;
  int ordinal = 0;                ///< CUDA's number; 0 for the CPU
  std::string id;                 ///< "cpu", or the GPU's UUID as nvidia-smi prints it ("GPU-…", "MIG-…")
  std::string name;               ///< the model, for people
  std::uint64_t memory_bytes = 0; ///< in all
  std::vector<int> cores;         ///< CPU only: the cores this process may run on (affinity)
  unsigned usable_cores = 0;      ///< CPU only: how many of them at once (the cgroup's quota), at least 1
  int compute_major = 0, compute_minor = 0; ///< CUDA only
};

/// All devices of this machine, found now. Creates no CUDA context and never throws.
struct device_report {
  std::vector<device_info> devices;      ///< the CPU first, then the GPUs in CUDA's order
  std::string cuda_status;               ///< "ok", or why no GPU is used (no driver, built without CUDA, …)
  std::vector<std::string> cpu_features; ///< "avx2", "avx512f", "avx512_bf16", …
};
device_report find_devices();

/// Looks a device up by "cpu", "cuda" (the first), "cuda:1", "GPU-<uuid or unique prefix>", "MIG-…".
/// An unknown, ambiguous or malformed selector is an error that lists what there is.
core::result<device_info> find_device(const device_report& report, std::string_view selector);

} // namespace troupe::gpu
