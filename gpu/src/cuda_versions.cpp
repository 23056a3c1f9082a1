#include <cublas_v2.h>
#include <nvrtc.h>

#include "cuda_libraries.hpp"
#include "cuda_support.hpp"
#include "devices.hpp"
#include "shared_library.hpp"

namespace troupe::gpu::internal {

namespace {

std::string dotted(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

library_version cublas_version() {
  std::string why;
  const auto lib = shared_library::open(cuda_library_paths("libcublas"), why);
  decltype(&cublasGetProperty) get = nullptr;
  int major = 0, minor = 0, patch = 0;
  if (!lib || !lib->get(get, "cublasGetProperty", why))
    return {"cuBLAS", "", "every GPU slot needs it: " + why + cuda_library_advice};
  if (get(MAJOR_VERSION, &major) != CUBLAS_STATUS_SUCCESS || get(MINOR_VERSION, &minor) != CUBLAS_STATUS_SUCCESS ||
      get(PATCH_LEVEL, &patch) != CUBLAS_STATUS_SUCCESS)
    return {"cuBLAS", "", lib->path() + " does not say its version"};
  return {"cuBLAS", std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch), lib->path()};
}

library_version nvrtc_version() {
  std::string why;
  const auto lib = shared_library::open(cuda_library_paths("libnvrtc"), why);
  decltype(&nvrtcVersion) get = nullptr;
  int major = 0, minor = 0;
  if (!lib || !lib->get(get, "nvrtcVersion", why))
    return {"NVRTC", "", "GPU actors with CUDA source need it: " + why + cuda_library_advice};
  if (get(&major, &minor) != NVRTC_SUCCESS)
    return {"NVRTC", "", lib->path() + " does not say its version"};
  return {"NVRTC", std::to_string(major) + "." + std::to_string(minor), lib->path()};
}

} // namespace

void add_cuda_versions(std::vector<library_version>& into) {
  into.push_back({"CUDA runtime", dotted(CUDART_VERSION), "built in"});
  into.push_back({"CUDA kernels", TROUPE_CUDA_ARCHITECTURES, "for these GPUs; for others the driver compiles them at first use"});
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0)
    into.push_back({"CUDA driver", dotted(driver), "the newest CUDA that it supports"});
  else
    into.push_back({"CUDA driver", "", "no NVIDIA driver is installed"});
  into.push_back(cublas_version());
  into.push_back(nvrtc_version());
}

} // namespace troupe::gpu::internal
