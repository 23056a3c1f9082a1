#define TROUPE_KERNELS host
#include "kernels/schedule.hpp"

#include "troupe/gpu/lr_schedule.hpp"

namespace troupe::gpu {

float lr_at(const member_params& params, std::uint64_t step) noexcept {
  return internal::host::scheduled_lr(params, step);
}

} // namespace troupe::gpu
