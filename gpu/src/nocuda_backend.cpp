#include "backend.hpp"

namespace troupe::gpu::internal {

std::shared_ptr<backend> make_cuda_backend(const slot_options& options) {
  throw device_error("slot " + std::to_string(options.index) + " asks for the GPU " + options.device.id +
                         ", but this Troupe was built without CUDA; configure with TROUPE_CUDA=ON, or use "
                         "the device \"cpu\"",
                     false);
}

} // namespace troupe::gpu::internal
