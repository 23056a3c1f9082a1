#pragma once

#include "kernels/launch.hpp"
#include "kernels/random.hpp"

namespace troupe::gpu::internal::TROUPE_KERNELS {

struct dropout_op {
  dropout_args a;

  struct element {
    const float* x;
    float* y;
    u32 threshold;
    float scale;
    TROUPE_HD void operator()(i64 c, u32 bits) const { y[c] = bits >= threshold ? x[c] * scale : 0.0f; }
  };
  TROUPE_HD bool random(i64 k) const { return a.params[k].dropout > 0; }
  TROUPE_HD words4 draw(i64 k, u64 group, u32 lane) const {
    return dropout_block(a.counters[k].seed, a.counters[k].step, a.site, group, lane);
  }
  TROUPE_HD element at(i64 k, i64 r) const {
    const float rate = a.params[k].dropout;
    u32 threshold = 0;
    float scale = 1;
    if (rate >= 1) { // nothing is kept, but for one in 2^32, which the scale removes
      threshold = 0xffffffffu;
      scale = 0;
    } else if (rate > 0) {
      threshold = u32(double(rate) * 4294967296.0);
      scale = 1.0f / (1.0f - rate);
    }
    return {row_of(a.x, k, r), row_of(a.y, k, r), threshold, scale};
  }
};

inline void dropout(const launch_target& on, const dropout_args& a) {
  random_map(on, a.members, a.x.rows, a.x.cols, dropout_op{a});
}

} // namespace troupe::gpu::internal::TROUPE_KERNELS
