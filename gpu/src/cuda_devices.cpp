#include <cstdio>
#include <string_view>

#include "cuda_driver.hpp"
#include "cuda_support.hpp"
#include "devices.hpp"

namespace troupe::gpu::internal {

std::string uuid_text(const cudaDeviceProp& p) {
  const auto* u = reinterpret_cast<const unsigned char*>(p.uuid.bytes);
  char text[48];
  std::snprintf(text, sizeof text, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
                u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14],
                u[15]);
  const bool slice =
      std::string_view(p.name).find(" MIG ") != std::string_view::npos; // "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
  return (slice ? "MIG-" : "GPU-") + std::string(text);
}

std::uint64_t free_cuda_memory(const device_info& device) {
  // One that is there already, or one for this moment: nothing stays behind, here or on the first GPU.
  const cuda_contexts contexts(device.id);
  const device_scope scope(contexts, device.ordinal);
  if (!contexts.current(device.ordinal))
    throw device_error(device.id + ": the GPU cannot be opened", false);
  std::size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), device.id, "cudaMemGetInfo");
  return free;
}

void find_cuda_devices(device_report& report) {
  int count = 0;
  if (const auto rc = cudaGetDeviceCount(&count); rc != cudaSuccess) {
    (void)cudaGetLastError(); // or the next call reports it again
    int driver = 0;
    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0)
      report.cuda_status = "no NVIDIA driver is installed (libcuda.so.1 was not found)";
    else if (rc == cudaErrorInsufficientDriver)
      report.cuda_status = "the NVIDIA driver supports CUDA " + std::to_string(driver / 1000) + "." +
                           std::to_string(driver % 1000 / 10) + ", Troupe was built with " +
                           std::to_string(CUDART_VERSION / 1000) + "." +
                           std::to_string(CUDART_VERSION % 1000 / 10) + ": update the driver, or on a data centre's GPU install NVIDIA's "
                           "package cuda-compat of that version";
    else
      report.cuda_status = std::string(cudaGetErrorString(rc)) + " (" + cudaGetErrorName(rc) + ")";
    return;
  }
  if (count == 0) {
    report.cuda_status = "the NVIDIA driver reports no GPU (is CUDA_VISIBLE_DEVICES empty?)";
    return;
  }
  report.cuda_status = "ok";
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp p{};
    if (const auto rc = cudaGetDeviceProperties(&p, i); rc != cudaSuccess) {
      report.cuda_status = "device " + std::to_string(i) + ": " + cudaGetErrorString(rc);
      (void)cudaGetLastError();
      continue;
    }
    device_info d;
    d.kind = device_kind::cuda;
    d.ordinal = i;
    d.id = uuid_text(p);
    d.name = p.name;
    d.memory_bytes = p.totalGlobalMem;
    d.compute_major = p.major;
    d.compute_minor = p.minor;
    report.devices.push_back(std::move(d));
  }
}

} // namespace troupe::gpu::internal
