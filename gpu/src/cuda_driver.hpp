#pragma once

#include <string>

#include <cuda.h>
#include <cudaTypedefs.h>

#include "cuda_support.hpp"
#include "primary_scope.hpp"

namespace troupe::gpu::internal {

/// A driver function, asked of cudart: libcuda is never linked. Throws `device_error` where the driver has none.
template <class F>
void get_driver_function(F& f, const char* name, unsigned version, const std::string& label) {
  void* p = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check_cuda(cudaGetDriverEntryPointByVersion(name, &p, version, cudaEnableDefault, &found), label, name);
  if (found != cudaDriverEntryPointSuccess || p == nullptr)
    throw device_error(label + ": the driver has no " + name + "; update it", false);
  f = reinterpret_cast<F>(p);
}

/// Which contexts a thread has. Loaded on a thread that has one already; any thread.
class cuda_contexts {
public:
  explicit cuda_contexts(const std::string& label);

  /// Whether this thread's calls go to that device without more.
  bool current(int ordinal) const noexcept;
  /// They do so from now on. False: the device has no context, and none can be had.
  bool enter(int ordinal) const noexcept;
  /// They go where they went before the last `enter`.
  void leave(int ordinal) const noexcept;

private:
  PFN_cuDeviceGet_v2000 device_ = nullptr;
  PFN_cuCtxGetDevice_v2000 current_ = nullptr;
  PFN_cuDevicePrimaryCtxRetain_v7000 retain_ = nullptr;
  PFN_cuDevicePrimaryCtxRelease_v11000 release_ = nullptr;
  PFN_cuCtxPushCurrent_v4000 push_ = nullptr;
  PFN_cuCtxPopCurrent_v4000 pop_ = nullptr;
};

using device_scope = primary_scope<cuda_contexts>;

} // namespace troupe::gpu::internal
