#pragma once

#include <cstdint>

#include "troupe/gpu/ops.hpp"

namespace troupe::gpu {

/// What `member_params::schedule` holds. lr is the base rate, s the number of updates done before this one.
///
/// | schedule      | rate                                                   | a            | b             | c            |
/// | ------------- | ------------------------------------------------------ | ------------ | ------------- | ------------ |
/// | constant      | lr                                                     |              |               |              |
/// | step          | lr * b^floor(s / a)                                    | steps, >= 1  | factor        |              |
/// | cosine        | lr * (b + (1 - b) (1 + cos(pi min(s / a, 1))) / 2)     | steps in all | last fraction |              |
/// | warmup_cosine | lr * (s + 1) / a for s < a, then cosine from a to b    | warm-up steps| steps in all  | last fraction|
///
/// Cosine: Loshchilov and Hutter, "SGDR", ICLR 2017, without restarts.
struct lr_schedule {
  static constexpr float constant = 0, step = 1, cosine = 2, warmup_cosine = 3;
};

/// The rate of the update after `step` updates: what begin_step writes to lr_now, bit for bit.
float lr_at(const member_params& params, std::uint64_t step) noexcept;

} // namespace troupe::gpu
