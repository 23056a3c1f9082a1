#include "kernel_table.hpp"

namespace troupe::gpu::internal {

struct kernel_table {};

const kernel_table& kernels_for(device_kind) {
  static const kernel_table none;
  return none;
}

} // namespace troupe::gpu::internal
