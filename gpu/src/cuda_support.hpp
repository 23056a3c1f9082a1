#pragma once

#include <string>

#include <cuda_runtime_api.h>

#include "device_errors.hpp"
#include "troupe/gpu/context.hpp"

namespace troupe::gpu::internal {

/// Throws `device_error` with who, what and why; for calls before there is a stream.
[[noreturn]] void throw_cuda(cudaError_t rc, const std::string& who, const char* call);

/// Whether no call of this process can use the device any more, after the error `rc` of one. Where `rc` alone does not tell, `stream`
/// is waited for (unless it is being captured); `waited` then has its answer.
bool is_device_lost(cudaError_t rc, cudaStream_t stream, cudaError_t& waited) noexcept;

/// Throws `device_error`, sticky if the device is lost. With `rc` good: of a library on that stream that says `why` itself.
[[noreturn]] void throw_cuda(cudaError_t rc, const std::string& who, const char* call, cudaStream_t stream, const std::string& why = {});

inline void check_cuda(cudaError_t rc, const std::string& who, const char* call) {
  if (rc != cudaSuccess)
    throw_cuda(rc, who, call);
}

inline void check_cuda(cudaError_t rc, const std::string& who, const char* call, cudaStream_t stream) {
  if (rc != cudaSuccess)
    throw_cuda(rc, who, call, stream);
}

/// The UUID as nvidia-smi prints it.
std::string uuid_text(const cudaDeviceProp& p);

} // namespace troupe::gpu::internal
