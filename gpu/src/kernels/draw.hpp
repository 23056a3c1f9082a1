#pragma once

#include "kernels/launch.hpp"
#include "kernels/random.hpp"

namespace troupe::gpu::internal::TROUPE_KERNELS {

/// A block of core::random_stream has two of its numbers.
struct uniform_pair {
  double first, second;
};

struct draw_uniform_op {
  draw_uniform_args a;

  struct element {
    draw_uniform_args a;

    /// 53 bits of a 64-bit word, in [0, 1); in halves, because 32 bits become a double in one instruction.
    TROUPE_HD static double unit(u32 low, u32 high) {
      return (double(high) * 2097152.0 + double(low >> 11)) * 0x1p-53;
    }
    TROUPE_HD float placed(double u) const {
      const double x = a.lo + a.width * u;
      return float(x >= a.hi ? a.below_hi : x);
    }
    TROUPE_HD uniform_pair draw(i64 block) const {
      const words4 b = philox(u32(block), u32(u64(block) >> 32), u32(a.index), u32(a.index >> 32), a.key);
      return {unit(b.w[0], b.w[1]), unit(b.w[2], b.w[3])};
    }
    TROUPE_HD void operator()(i64 block) const {
      const auto u = draw(block);
      a.x[2 * block] = placed(u.first);
      a.x[2 * block + 1] = placed(u.second);
    }
  };
  TROUPE_HD element at(i64, i64) const { return {a}; }
};

/// The last number of an odd count.
struct draw_last_op {
  draw_uniform_args a;

  TROUPE_HD void operator()(i64) const {
    const draw_uniform_op::element e{a};
    a.x[a.n - 1] = e.placed(e.draw(a.n / 2).first);
  }
};

inline void draw_uniform(const launch_target& on, const draw_uniform_args& a) {
  map(on, 1, 1, a.n / 2, nullptr, draw_uniform_op{a});
  if (a.n % 2 != 0)
    per_member(on, 1, nullptr, draw_last_op{a});
}

} // namespace troupe::gpu::internal::TROUPE_KERNELS
