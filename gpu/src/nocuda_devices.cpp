#include "devices.hpp"

namespace troupe::gpu::internal {

void find_cuda_devices(device_report& report) { report.cuda_status = "this Troupe was built without CUDA"; }

} // namespace troupe::gpu::internal
