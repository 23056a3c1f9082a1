#pragma once

#include <string>

#include <cuda_runtime_api.h>

#include "troupe/gpu/context.hpp"

namespace troupe::gpu::internal {

/// After such an error every further CUDA call of the process fails.
inline bool is_sticky(cudaError_t rc) noexcept {
  switch (static_cast<int>(rc)) { // by number: the newest names are not in every toolkit
  case 214:                       // uncorrectable ECC error
  case 220:                       // uncorrectable NVLink error
  case 226:                       // contained error
  case 700:                       // illegal address
  case 702:                       // launch timeout
  case 709:                       // context is destroyed
  case 710:                       // assert
  case 714:                       // hardware stack error
  case 715:                       // illegal instruction
  case 716:                       // misaligned address
  case 717:                       // invalid address space
  case 718:                       // invalid program counter
  case 719:                       // launch failure
  case 721:                       // tensor memory leak
  case 810:                       // MPS client terminated
  case 911:                       // external device
    return true;
  default:
    return false;
  }
}

/// Throws `device_error` with who, what and why.
[[noreturn]] inline void throw_cuda(cudaError_t rc, const std::string& who, const char* call) {
  (void)cudaGetLastError(); // or the next call reports an error that is not sticky again
  throw device_error(who + ": " + call + " failed: " + cudaGetErrorString(rc) + " (" + cudaGetErrorName(rc) +
                         ")" +
                         (is_sticky(rc) ? "; this process cannot use the GPU any more, restart it" : ""),
                     is_sticky(rc));
}

inline void check_cuda(cudaError_t rc, const std::string& who, const char* call) {
  if (rc != cudaSuccess)
    throw_cuda(rc, who, call);
}

/// The UUID as nvidia-smi prints it.
std::string uuid_text(const cudaDeviceProp& p);

} // namespace troupe::gpu::internal
