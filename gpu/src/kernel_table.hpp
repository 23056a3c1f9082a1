#pragma once

#include "troupe/gpu/device.hpp"

namespace troupe::gpu::internal {

struct kernel_table;
const kernel_table& kernels_for(device_kind kind);

} // namespace troupe::gpu::internal
