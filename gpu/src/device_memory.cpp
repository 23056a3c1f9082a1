#include "troupe/gpu/device_memory.hpp"

#include <unistd.h>

#include "devices.hpp"

namespace troupe::gpu {

std::uint64_t free_device_memory(const device_info& device) {
  if (device.kind == device_kind::cuda)
    return internal::free_cuda_memory(device);
  const auto pages = ::sysconf(_SC_AVPHYS_PAGES), size = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(size) : 0;
}

} // namespace troupe::gpu
