#pragma once

#include "kernels/elementwise.hpp"

namespace troupe::gpu::internal::TROUPE_KERNELS {

template <bool Bias, bool Gradient, class Out>
struct cross_entropy_op {
  mat<const float> logits;
  vec<const float> bias;
  vec<const i32> labels;
  const member_params* params;
  mat<Out> dlogits;
  member_counters* counters;

  struct tally {
    double loss;
    u32 correct;
  };
  TROUPE_HD static tally nothing() { return {0, 0}; }
  TROUPE_HD static tally add(tally a, tally b) { return {a.loss + b.loss, a.correct + b.correct}; }

  template <class Team>
  TROUPE_HD tally row(Team t, i64 k, i64 r) const {
    const i64 cols = logits.cols;
    const float* x = row_of(logits, k, r);
    const float* b = Bias ? bias.data + k * bias.stride : nullptr;
    const i64 label = labels.data[k * labels.stride + r];
    const float smoothing = params[k].label_smoothing, even = smoothing / float(cols);

    if constexpr (requires { Team::width; })
      if (cols <= Team::width)
        return short_row<Team::width>(k, r, x, b, label, smoothing, even);

    const auto z = [=](i64 c) {
      if constexpr (Bias)
        return x[c] + b[c];
      else
        return x[c];
    };
    const float top = t.max(cols, z);
    const float sum = t.sum(cols, z, [=](float v) { return exp_of(v - top); });
    // A label outside the columns is a fault in the data: its loss is not finite, which fails the member.
    const bool known = label >= 0 && label < cols;
    const float at_label = known ? z(label) - top : -infinity();
    tally result;
    float loss = mul_add(smoothing - 1.0f, at_label, log_of(sum));
    if (smoothing > 0)
      loss = mul_add(-even, t.sum(cols, z, [=](float v) { return v - top; }), loss);
    result.loss = double(loss);
    // The first of equal maxima is the answer, so that a model that knows nothing is not always right.
    result.correct = 0;
    if (at_label == 0) {
      const float first = t.max(cols, [=](i64 c) { return z(c) == top ? -float(c) : -infinity(); });
      result.correct = first == -float(label) ? 1u : 0u;
    }
    if constexpr (Gradient) {
      Out* d = row_of(dlogits, k, r);
      const float scale = 1.0f / float(logits.rows), inverse = 1.0f / sum;
      t.map(
          cols, z, [=](float v) { return mul_add(exp_of(v - top), inverse, -even) * scale; },
          [=](i64 c, float v) { store(d, c, c == label ? v - (1.0f - smoothing) * scale : v); });
    }
    return result;
  }

  /// The same for a row that fits a team's lanes: read once, each exponential computed once.
  template <int Width>
  TROUPE_HD tally short_row(i64 k, i64 r, const float* x, const float* b, i64 label, float smoothing, float even) const {
    const int cols = int(logits.cols);
    float z[Width], v[Width];
    for (int l = 0; l < Width; ++l) {
      if constexpr (Bias)
        z[l] = l < cols ? x[l] + b[l] : -infinity();
      else
        z[l] = l < cols ? x[l] : -infinity();
    }
    for (int l = 0; l < Width; ++l)
      v[l] = z[l] > -infinity() ? z[l] : -infinity(); // NaN is no maximum
    const float top = fold_max(v);
    float e[Width];
    for (int l = 0; l < Width; ++l) {
      const float power = exp_of(z[l] - top);
      v[l] = e[l] = l < cols ? power : 0.0f;
    }
    const float sum = fold_sum(v);
    const bool known = label >= 0 && label < cols;
    const float at_label = known ? z[label] - top : -infinity();
    float loss = mul_add(smoothing - 1.0f, at_label, log_of(sum));
    if (smoothing > 0) {
      for (int l = 0; l < Width; ++l)
        v[l] = l < cols ? z[l] - top : 0.0f;
      loss = mul_add(-even, fold_sum(v), loss);
    }
    tally result{double(loss), at_label == 0 ? 1u : 0u};
    for (int l = 0; l < Width; ++l)
      result.correct &= l < label && z[l] == top ? 0u : 1u;
    if constexpr (Gradient) {
      Out* d = row_of(dlogits, k, r);
      const float scale = 1.0f / float(logits.rows), inverse = 1.0f / sum;
      for (int l = 0; l < Width; ++l)
        v[l] = mul_add(e[l], inverse, -even) * scale;
      for (int l = 0; l < cols; ++l)
        store(d, l, l == label ? v[l] - (1.0f - smoothing) * scale : v[l]);
    }
    return result;
  }

  TROUPE_HD void finish(i64 k, tally total) const {
    member_counters& m = counters[k];
    const float mean = float(total.loss / double(logits.rows));
    m.loss_sum += mean;
    m.loss_count += 1;
    m.correct += total.correct;
    if (!is_finite(mean))
      m.not_finite = 1;
  }
};

/// Sums over the rows of a matrix that is there already.
template <class In>
struct column_sums_op {
  static constexpr int sums = 1;
  mat<const In> x;
  vec<float> y;

  struct element {
    const In* x;
    TROUPE_HD column_terms<1> operator()(i64 c) const { return {{load(x, c)}}; }
  };
  TROUPE_HD element at(i64 k, i64 r) const { return {row_of(x, k, r)}; }
  TROUPE_HD void finish(i64 k, i64 c, const float (&total)[1]) const { y.data[k * y.stride + c] = total[0]; }
};

template <class Out>
void softmax_cross_entropy(const launch_target& on, const cross_entropy_args<Out>& a) {
  with_flag(a.bias.data != nullptr, [&](auto bias) {
    with_flag(a.dlogits.data != nullptr, [&](auto gradient) {
      member_rows(on, a.members, a.logits.rows, a.active,
                  cross_entropy_op<decltype(bias)::value, decltype(gradient)::value, Out>{
                      a.logits, a.bias, a.labels, a.params, a.dlogits, a.counters});
    });
  });
  if (a.dbias.data != nullptr)
    columnwise(on, a.members, a.dlogits.rows, a.dlogits.cols, a.active,
               column_sums_op<Out>{{a.dlogits.data, a.dlogits.rows, a.dlogits.cols, a.dlogits.ld, a.dlogits.stride},
                                   a.dbias});
}

} // namespace troupe::gpu::internal::TROUPE_KERNELS
