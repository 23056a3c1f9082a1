#pragma once

#include "kernels/launch.hpp"
#include "kernels/random.hpp"

namespace troupe::gpu::internal::TROUPE_KERNELS {

/// Draws batches: which example each row takes, and its conversion.
template <class In, class Out>
struct gather_op {
  const In* examples;
  const i32* source_labels;
  i64 count, features, offset;
  float scale, shift;
  const member_counters* counters;
  mat<Out> x;
  vec<i32> labels;

  struct batch {
    gather_op op;
    i64 first;
    permutation order;

    TROUPE_HD i64 source(i64 r) const {
      if (op.offset >= 0)
        return least(op.offset + r, op.count - 1);
      return i64(order(u64(first + r)));
    }
    TROUPE_HD void prefetch(i64 source) const {
#if !defined(__CUDACC__)
      const In* p = op.examples + source * op.features;
      for (i64 i = 0; i < op.features; i += i64(64 / sizeof(In)))
        __builtin_prefetch(p + i);
#else
      (void)source;
#endif
    }
  };

  TROUPE_HD batch member(i64 k) const {
    batch b{*this, 0, {}};
    if (offset < 0) {
      const u64 per_epoch = u64(count / x.rows), n = counters[k].batch;
      b.first = i64(n % per_epoch) * x.rows;
      b.order = permutation::make(counters[k].seed, n / per_epoch, u64(count));
    }
    return b;
  }

  template <class Team>
  TROUPE_HD void row(Team t, i64 k, i64 r, i64 source) const {
    const In* in = examples + source * features;
    Out* out = row_of(x, k, r);
    const float by = scale, plus = shift;
    t.each(features, [=](i64 c) { store(out, c, mul_add(float(in[c]), by, plus)); });
    if (labels.data != nullptr && t.leader())
      labels.data[k * labels.stride + r] = source_labels[source];
  }
};

template <class Out>
void gather(const launch_target& on, const gather_args<Out>& a) {
  const data_source& d = a.data;
  if (d.images != nullptr)
    indexed_rows(on, a.members, a.x.rows,
                 gather_op<std::uint8_t, Out>{d.images, d.labels, d.examples, d.features, a.offset, d.scale, d.shift,
                                              a.counters, a.x, a.labels});
  else
    indexed_rows(on, a.members, a.x.rows,
                 gather_op<float, Out>{d.floats, d.labels, d.examples, d.features, a.offset, d.scale, d.shift,
                                       a.counters, a.x, a.labels});
}

} // namespace troupe::gpu::internal::TROUPE_KERNELS
