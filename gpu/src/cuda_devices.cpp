#include <cstdio>

#include <cuda_runtime_api.h>

#include "devices.hpp"

namespace troupe::gpu::internal {

void find_cuda_devices(device_report& report) {
  int count = 0;
  if (const auto rc = cudaGetDeviceCount(&count); rc != cudaSuccess) {
    report.cuda_status = std::string(cudaGetErrorString(rc)) + " (" + cudaGetErrorName(rc) + ")";
    (void)cudaGetLastError(); // or the next call reports it again
    return;
  }
  if (count == 0) {
    report.cuda_status = "the driver reports no device";
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
    d.name = p.name;
    d.memory_bytes = p.totalGlobalMem;
    d.compute_major = p.major;
    d.compute_minor = p.minor;
    const auto* u = reinterpret_cast<const unsigned char*>(p.uuid.bytes);
    char text[48];
    std::snprintf(text, sizeof text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
                  u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
    d.id = text;
    report.devices.push_back(std::move(d));
  }
}

} // namespace troupe::gpu::internal
