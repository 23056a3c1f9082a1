#include "cuda_support.hpp"

namespace troupe::gpu::internal {

namespace {

/// What the device says when it is asked again.
cudaError_t wait_for(cudaStream_t stream) noexcept {
  cudaStreamCaptureStatus capture{};
  auto rc = cudaStreamIsCapturing(stream, &capture);
  if (rc == cudaSuccess && capture == cudaStreamCaptureStatusNone)
    rc = cudaStreamSynchronize(stream);
  (void)cudaGetLastError();
  return rc;
}

std::string words(cudaError_t rc) { return std::string(cudaGetErrorString(rc)) + " (" + cudaGetErrorName(rc) + ")"; }

[[noreturn]] void fail(const std::string& text, bool lost) {
  throw device_error(text + (lost ? "; this process cannot use the GPU any more, restart it" : ""), lost);
}

} // namespace

bool is_device_lost(cudaError_t rc, cudaStream_t stream, cudaError_t& waited) noexcept {
  waited = asks_again(rc) || rc == cudaSuccess ? wait_for(stream) : cudaSuccess;
  return is_lost(rc, waited);
}

void throw_cuda(cudaError_t rc, const std::string& who, const char* call) {
  (void)cudaGetLastError(); // or the next call reports an error that is not sticky again
  fail(who + ": " + call + " failed: " + words(rc), is_sticky(rc));
}

void throw_cuda(cudaError_t rc, const std::string& who, const char* call, cudaStream_t stream, const std::string& why) {
  (void)cudaGetLastError();
  cudaError_t waited = cudaSuccess;
  const bool lost = is_device_lost(rc, stream, waited);
  auto text = who + ": " + call + " failed: " + (rc == cudaSuccess ? why : words(rc));
  if (lost && !is_sticky(rc))
    text += ", and the device does not answer: " + words(waited);
  fail(text, lost);
}

} // namespace troupe::gpu::internal
