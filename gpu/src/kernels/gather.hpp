#pragma once

#include "kernels/launch.hpp"
#include "kernels/random.hpp"

namespace troupe::gpu::internal::TROUPE_KERNELS {

/// Which example each row of a member's batch takes.
struct batch_order {
  i64 first, offset, count;
  permutation order;

  TROUPE_HD static batch_order make(const member_counters* counters, i64 k, i64 offset, const data_source& data, i64 rows) {
    const i64 count = data.examples;
    batch_order b{0, offset, count, {}};
    if (offset >= 0) {
      b.offset += k * data.member_stride;
    } else {
      const u64 per_epoch = u64(count / rows), n = counters[k].batch;
      b.first = i64(n % per_epoch) * rows;
      b.order = permutation::make(counters[k].seed, n / per_epoch, u64(count));
    }
    return b;
  }
  TROUPE_HD i64 source(i64 r) const {
    return offset >= 0 ? least(offset + r, count - 1) : i64(order(u64(first + r)));
  }
};

/// Draws batches: the chosen examples and their conversion.
template <class In, class Out>
struct gather_op {
  const In* examples;
  const i32* source_labels;
  data_source data;
  i64 features, offset;
  float scale, shift;
  const member_counters* counters;
  mat<Out> x;
  vec<i32> labels;

  struct batch {
    batch_order order;
    const In* examples;
    i64 features;

    TROUPE_HD i64 source(i64 r) const { return order.source(r); }
    TROUPE_HD void prefetch(i64 source) const {
#if !defined(__CUDACC__)
      const In* p = examples + source * features;
      for (i64 i = 0; i < features; i += i64(64 / sizeof(In)))
        __builtin_prefetch(p + i);
#else
      (void)source;
#endif
    }
  };

  TROUPE_HD batch member(i64 k) const {
    return {batch_order::make(counters, k, offset, data, x.rows), examples, features};
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
                 gather_op<std::uint8_t, Out>{d.images, d.labels, d, d.features, a.offset, d.scale, d.shift,
                                              a.counters, a.x, a.labels});
  else
    indexed_rows(on, a.members, a.x.rows,
                 gather_op<float, Out>{d.floats, d.labels, d, d.features, a.offset, d.scale, d.shift,
                                       a.counters, a.x, a.labels});
}

struct gather_tokens_op {
  gather_tokens_args a;

  struct batch {
    batch_order order;
    TROUPE_HD i64 source(i64 r) const { return order.source(r); }
    TROUPE_HD void prefetch(i64) const {}
  };
  TROUPE_HD batch member(i64 k) const {
    return {batch_order::make(a.counters, k, a.offset, a.data, a.tokens.rows)};
  }

  template <class Team>
  TROUPE_HD void row(Team t, i64 k, i64 r, i64 source) const {
    const std::uint16_t* in = a.data.tokens + source * a.data.features;
    i32* out = row_of(a.tokens, k, r);
    t.each(a.data.features, [=](i64 c) { out[c] = in[c]; });
    if (!t.leader())
      return;
    i64 length = a.data.features;
    while (length > 1 && in[length - 1] == 0)
      --length;
    a.lengths.data[k * a.lengths.stride + r] = i32(length);
    if (a.labels.data != nullptr)
      a.labels.data[k * a.labels.stride + r] = a.data.labels[source];
  }
};

inline void gather_tokens(const launch_target& on, const gather_tokens_args& a) {
  indexed_rows(on, a.members, a.tokens.rows, gather_tokens_op{a});
}

} // namespace troupe::gpu::internal::TROUPE_KERNELS
