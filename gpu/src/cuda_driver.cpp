#include "cuda_driver.hpp"

namespace troupe::gpu::internal {

cuda_contexts::cuda_contexts(const std::string& label) {
  get_driver_function(device_, "cuDeviceGet", 2000, label);
  get_driver_function(current_, "cuCtxGetDevice", 2000, label);
  get_driver_function(retain_, "cuDevicePrimaryCtxRetain", 7000, label);
  get_driver_function(release_, "cuDevicePrimaryCtxRelease", 11000, label);
  get_driver_function(push_, "cuCtxPushCurrent", 4000, label);
  get_driver_function(pop_, "cuCtxPopCurrent", 4000, label);
}

bool cuda_contexts::current(int ordinal) const noexcept {
  CUdevice wanted = 0, now = 0; // a thread without a context has no device, though cudaGetDevice would say 0
  return device_(&wanted, ordinal) == CUDA_SUCCESS && current_(&now) == CUDA_SUCCESS && now == wanted;
}

bool cuda_contexts::enter(int ordinal) const noexcept {
  CUdevice device = 0;
  CUcontext context = nullptr;
  if (device_(&device, ordinal) != CUDA_SUCCESS || retain_(&context, device) != CUDA_SUCCESS)
    return false;
  if (push_(context) == CUDA_SUCCESS)
    return true;
  (void)release_(device);
  return false;
}

void cuda_contexts::leave(int ordinal) const noexcept {
  CUdevice device = 0;
  CUcontext context = nullptr;
  (void)pop_(&context);
  if (device_(&device, ordinal) == CUDA_SUCCESS)
    (void)release_(device); // a slot's own stays: the runtime holds it too
}

} // namespace troupe::gpu::internal
