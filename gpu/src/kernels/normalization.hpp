#pragma once

#include "kernels/elementwise.hpp"

/// Layer norm (Ba, Kiros and Hinton 2016) and batch norm (Ioffe and Szegedy 2015). Variances are sums of squared
/// distances from the mean, in a second pass, so that a large mean costs no accuracy.
namespace troupe::gpu::internal::TROUPE_KERNELS {

struct layer_norm_op {
  norm_args a;

  template <class Team>
  TROUPE_HD void operator()(Team t, i64 k, i64 r) const {
    const i64 cols = a.x.cols;
    const float* x = row_of(a.x, k, r);
    const float* gain = a.gain.data + k * a.gain.stride;
    const float* bias = a.bias.data + k * a.bias.stride;
    float* y = row_of(a.y, k, r);
    float* stats = row_of(a.stats, k, r);

    const auto read = [=](i64 c) { return x[c]; };
    const float mean = t.sum(cols, read, [](float v) { return v; }) / float(cols);
    const float variance = t.sum(cols, read, [=](float v) { return (v - mean) * (v - mean); }) / float(cols);
    const float inverse = 1.0f / root(variance + a.eps);
    t.each(cols, [=](i64 c) { y[c] = mul_add((x[c] - mean) * inverse, gain[c], bias[c]); });
    if (t.leader()) {
      stats[0] = mean;
      stats[1] = inverse;
    }
  }
};

inline void layer_norm(const launch_target& on, const norm_args& a) {
  rowwise(on, a.members, a.x.rows, layer_norm_op{a});
}

struct layer_norm_parameters_op {
  static constexpr int sums = 2;
  norm_backward_args a;

  struct element {
    const float* dy;
    const float* x;
    float mean, inverse;
    TROUPE_HD column_terms<2> operator()(i64 c) const { return {{dy[c] * ((x[c] - mean) * inverse), dy[c]}}; }
  };
  TROUPE_HD element at(i64 k, i64 r) const {
    const float* stats = row_of(a.stats, k, r);
    return {row_of(a.dy, k, r), row_of(a.x, k, r), stats[0], stats[1]};
  }
  TROUPE_HD void finish(i64 k, i64 c, const float (&total)[2]) const {
    a.dgain.data[k * a.dgain.stride + c] = total[0];
    a.dbias.data[k * a.dbias.stride + c] = total[1];
  }
};

/// With g = dy gain and h = (x - mean) / deviation: dx = (g - mean(g) - h mean(g h)) / deviation.
struct layer_norm_input_op {
  norm_backward_args a;

  template <class Team>
  TROUPE_HD void operator()(Team t, i64 k, i64 r) const {
    const i64 cols = a.x.cols;
    const float* dy = row_of(a.dy, k, r);
    const float* x = row_of(a.x, k, r);
    const float* gain = a.gain.data + k * a.gain.stride;
    const float* stats = row_of(a.stats, k, r);
    float* dx = row_of(a.dx, k, r);
    const float mean = stats[0], inverse = stats[1];

    const auto same = [](float v) { return v; };
    const float g = t.sum(cols, [=](i64 c) { return dy[c] * gain[c]; }, same) / float(cols);
    const float gh =
        t.sum(cols, [=](i64 c) { return dy[c] * gain[c] * ((x[c] - mean) * inverse); }, same) / float(cols);
    t.each(cols, [=](i64 c) {
      const float h = (x[c] - mean) * inverse;
      dx[c] = (mul_add(dy[c], gain[c], -g) - h * gh) * inverse;
    });
  }
};

inline void layer_norm_backward(const launch_target& on, const norm_backward_args& a) {
  columnwise(on, a.members, a.x.rows, a.x.cols, nullptr, layer_norm_parameters_op{a}); // first: dx may be dy
  rowwise(on, a.members, a.x.rows, layer_norm_input_op{a});
}

struct batch_mean_op {
  static constexpr int sums = 1;
  norm_args a;

  struct element {
    const float* x;
    TROUPE_HD column_terms<1> operator()(i64 c) const { return {{x[c]}}; }
  };
  TROUPE_HD element at(i64 k, i64 r) const { return {row_of(a.x, k, r)}; }
  TROUPE_HD void finish(i64 k, i64 c, const float (&total)[1]) const {
    row_of(a.stats, k, 0)[c] = total[0] / float(a.x.rows);
  }
};

struct batch_variance_op {
  static constexpr int sums = 1;
  norm_args a;

  struct element {
    const float* x;
    const float* mean;
    TROUPE_HD column_terms<1> operator()(i64 c) const {
      const float d = x[c] - mean[c];
      return {{d * d}};
    }
  };
  TROUPE_HD element at(i64 k, i64 r) const { return {row_of(a.x, k, r), row_of(a.stats, k, 0)}; }
  TROUPE_HD void finish(i64 k, i64 c, const float (&total)[1]) const {
    const float n = float(a.x.rows);
    row_of(a.stats, k, 1)[c] = 1.0f / root(total[0] / n + a.eps);
    float* mean = row_of(a.running, k, 0) + c;
    float* variance = row_of(a.running, k, 1) + c;
    *mean = mul_add(a.rate, row_of(a.stats, k, 0)[c] - *mean, *mean);
    *variance = mul_add(a.rate, total[0] / (a.x.rows > 1 ? n - 1 : 1) - *variance, *variance);
  }
};

/// `inference`: the second row of stats holds variances.
template <bool Inference>
struct batch_apply_op {
  norm_args a;
  mat<float> stats;

  struct element {
    const float *x, *mean, *second, *gain, *bias;
    float* y;
    float eps;
    TROUPE_HD void operator()(i64 c) const {
      const float inverse = Inference ? 1.0f / root(second[c] + eps) : second[c];
      y[c] = mul_add((x[c] - mean[c]) * inverse, gain[c], bias[c]);
    }
  };
  TROUPE_HD element at(i64 k, i64 r) const {
    return {row_of(a.x, k, r),
            row_of(stats, k, 0),
            row_of(stats, k, 1),
            a.gain.data + k * a.gain.stride,
            a.bias.data + k * a.bias.stride,
            row_of(a.y, k, r),
            a.eps};
  }
};

inline void batch_norm(const launch_target& on, const norm_args& a) {
  columnwise(on, a.members, a.x.rows, a.x.cols, a.active, batch_mean_op{a});
  columnwise(on, a.members, a.x.rows, a.x.cols, a.active, batch_variance_op{a});
  map(on, a.members, a.x.rows, a.x.cols, a.active, batch_apply_op<false>{a, a.stats});
}

inline void batch_norm_inference(const launch_target& on, const norm_args& a) {
  map(on, a.members, a.x.rows, a.x.cols, nullptr, batch_apply_op<true>{a, a.running});
}

struct batch_parameters_op {
  static constexpr int sums = 2;
  norm_backward_args a;

  struct element {
    const float *dy, *x, *mean, *inverse;
    TROUPE_HD column_terms<2> operator()(i64 c) const {
      return {{dy[c] * ((x[c] - mean[c]) * inverse[c]), dy[c]}};
    }
  };
  TROUPE_HD element at(i64 k, i64 r) const {
    return {row_of(a.dy, k, r), row_of(a.x, k, r), row_of(a.stats, k, 0), row_of(a.stats, k, 1)};
  }
  TROUPE_HD void finish(i64 k, i64 c, const float (&total)[2]) const {
    a.dgain.data[k * a.dgain.stride + c] = total[0];
    a.dbias.data[k * a.dbias.stride + c] = total[1];
  }
};

/// With h = (x - mean) / deviation over n rows: dx = gain / deviation (dy - sum(dy) / n - h sum(dy h) / n).
struct batch_input_op {
  norm_backward_args a;

  struct element {
    const float *dy, *x, *mean, *inverse, *gain, *dgain, *dbias;
    float* dx;
    float share; // 1 / n
    TROUPE_HD void operator()(i64 c) const {
      const float h = (x[c] - mean[c]) * inverse[c];
      dx[c] = gain[c] * inverse[c] * mul_add(-share, mul_add(h, dgain[c], dbias[c]), dy[c]);
    }
  };
  TROUPE_HD element at(i64 k, i64 r) const {
    return {row_of(a.dy, k, r),
            row_of(a.x, k, r),
            row_of(a.stats, k, 0),
            row_of(a.stats, k, 1),
            a.gain.data + k * a.gain.stride,
            a.dgain.data + k * a.dgain.stride,
            a.dbias.data + k * a.dbias.stride,
            row_of(a.dx, k, r),
            1.0f / float(a.x.rows)};
  }
};

inline void batch_norm_backward(const launch_target& on, const norm_backward_args& a) {
  columnwise(on, a.members, a.x.rows, a.x.cols, nullptr, batch_parameters_op{a});
  map(on, a.members, a.x.rows, a.x.cols, nullptr, batch_input_op{a});
}

} // namespace troupe::gpu::internal::TROUPE_KERNELS
