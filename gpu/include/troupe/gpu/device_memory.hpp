#pragma once

#include <cstdint>

#include "troupe/gpu/device.hpp"

namespace troupe::gpu {

/// Bytes of a GPU that nobody uses now, whichever process; of the CPU, what the system can give out. For checks and reports:
/// opens a CUDA context where the process has none. Throws `device_error`.
std::uint64_t free_device_memory(const device_info& device);

} // namespace troupe::gpu
