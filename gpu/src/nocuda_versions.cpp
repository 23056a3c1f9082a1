#include "devices.hpp"

namespace troupe::gpu::internal {

void add_cuda_versions(std::vector<library_version>& into) {
  into.push_back({"CUDA runtime", "", "this Troupe was built without CUDA"});
}

} // namespace troupe::gpu::internal
