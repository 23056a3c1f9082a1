#pragma once

#include "cluster_messages.hpp"
#include "troupe/gpu/context.hpp"

namespace troupe::net {

/// What a worker must know to open such a slot.
inline slot_order order_of(const gpu::slot_options& x) {
  return {x.device.id,
          {x.cores.begin(), x.cores.end()},
          x.memory_budget,
          x.pinned_budget,
          static_cast<std::uint8_t>(x.math),
          static_cast<std::uint8_t>(x.capture)};
}

/// All of it but the device, which is looked up, the slot's number and the plan.
inline gpu::slot_options options_of(const slot_order& x) {
  gpu::slot_options out;
  out.cores.assign(x.cores.begin(), x.cores.end());
  out.memory_budget = x.memory_budget;
  out.pinned_budget = x.pinned_budget;
  out.math = static_cast<gpu::math_mode>(x.math);
  out.capture = static_cast<gpu::capture_mode>(x.capture);
  return out;
}

} // namespace troupe::net
