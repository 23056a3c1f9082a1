#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "troupe/core/checkpoint.hpp"
#include "troupe/gpu/context.hpp"

namespace troupe::gpu::internal {

/// A member's record in device memory, complete: what a checkpoint's tensors hold, ready for another slot to take.
struct device_record final : core::checkpoint::attachment {
  struct part {
    std::string name;
    std::int64_t at, size; ///< floats
    bool operator==(const part&) const = default;
  };
  std::vector<part> parts; ///< records whose parts are equal mean the same
  buffer data;
};

} // namespace troupe::gpu::internal
