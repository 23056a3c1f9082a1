#include "devices.hpp"
#include "troupe/gpu/context.hpp"

namespace troupe::gpu::internal {

void find_cuda_devices(device_report& report) { report.cuda_status = "this Troupe was built without CUDA"; }

std::uint64_t free_cuda_memory(const device_info& device) {
  throw device_error(device.id + ": this Troupe was built without CUDA", false);
}

} // namespace troupe::gpu::internal
