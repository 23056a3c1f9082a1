#include "cuda_support.hpp"
#include "devices.hpp"

namespace troupe::gpu::internal {

namespace {

std::string dotted(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

} // namespace

void add_cuda_versions(std::vector<library_version>& into) {
  into.push_back({"CUDA runtime", dotted(CUDART_VERSION), "built in"});
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0)
    into.push_back({"CUDA driver", dotted(driver), "the newest CUDA that it supports"});
  else
    into.push_back({"CUDA driver", "", "no NVIDIA driver is installed"});
}

} // namespace troupe::gpu::internal
