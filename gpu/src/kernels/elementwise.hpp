#pragma once

#include "kernels/launch.hpp"

/// bias and activation, and the small helpers.
namespace troupe::gpu::internal::TROUPE_KERNELS {

/// gelu(x) = x sigmoid(2u) with u = sqrt(2 / pi) (x + 0.044715 x^3): the tanh form (Hendrycks and Gimpel 2016), since
/// (1 + tanh u) / 2 = sigmoid(2u).
TROUPE_HD float gelu_exponent(float x) {
  return 1.5957691216057308f * x * mul_add(0.044715f * x, x, 1.0f); // 2 sqrt(2 / pi)
}

template <activation A>
TROUPE_HD float activate(float x) {
  if constexpr (A == activation::relu)
    return x > 0 ? x : (x == x ? 0.0f : x);
  else if constexpr (A == activation::gelu)
    return x * sigmoid(gelu_exponent(x));
  else
    return x;
}

/// act' at what forward left: relu's output, gelu's input.
template <activation A>
TROUPE_HD float slope(float saved) {
  if constexpr (A == activation::relu)
    return saved > 0 ? 1.0f : (saved == saved ? 0.0f : saved);
  else if constexpr (A == activation::gelu) {
    const float s = sigmoid(gelu_exponent(saved));
    const float du = 1.5957691216057308f * mul_add(0.134145f * saved, saved, 1.0f);
    return mul_add(saved * s * (1.0f - s), du, s);
  } else
    return 1.0f;
}

template <activation A, bool Bias, class Out>
struct bias_act_op {
  mat<const float> x;
  vec<const float> bias;
  mat<Out> y;

  struct element {
    const float* x;
    const float* b;
    Out* y;
    TROUPE_HD void operator()(i64 c) const {
      float t = x[c];
      if constexpr (Bias)
        t += b[c];
      store(y, c, activate<A>(t));
    }
  };
  TROUPE_HD element at(i64 k, i64 r) const {
    return {row_of(x, k, r), Bias ? bias.data + k * bias.stride : nullptr, row_of(y, k, r)};
  }
};

/// Calls f with the activation, or a truth value, as a type, so that no loop decides it again.
template <activation A>
struct activation_tag {
  static constexpr activation value = A;
};
template <bool B>
struct bool_tag {
  static constexpr bool value = B;
};
template <class F>
void with_activation(activation a, const F& f) {
  if (a == activation::relu)
    f(activation_tag<activation::relu>{});
  else if (a == activation::gelu)
    f(activation_tag<activation::gelu>{});
  else
    f(activation_tag<activation::none>{});
}
template <class F>
void with_flag(bool b, const F& f) {
  if (b)
    f(bool_tag<true>{});
  else
    f(bool_tag<false>{});
}

template <class Out>
void bias_act(const launch_target& on, const bias_act_args<Out>& a) {
  with_activation(a.act, [&](auto act) {
    with_flag(a.bias.data != nullptr, [&](auto bias) {
      map(on, a.members, a.x.rows, a.x.cols, nullptr,
          bias_act_op<decltype(act)::value, decltype(bias)::value, Out>{a.x, a.bias, a.y});
    });
  });
}

template <int N>
struct column_terms {
  float value[N];
};

template <activation A, bool Sums, class S, class Out>
struct act_backward_op {
  static constexpr int sums = 1;
  mat<const float> dy;
  mat<const S> saved;
  mat<Out> dx;
  vec<float> dbias;

  struct element {
    const float* dy;
    const S* saved;
    Out* dx;
    TROUPE_HD column_terms<1> operator()(i64 c) const {
      float t = dy[c];
      if constexpr (A != activation::none)
        t *= slope<A>(load(saved, c));
      store(dx, c, t);
      return {{t}};
    }
  };
  TROUPE_HD element at(i64 k, i64 r) const {
    return {row_of(dy, k, r), A == activation::none ? nullptr : row_of(saved, k, r), row_of(dx, k, r)};
  }
  TROUPE_HD void finish(i64 k, i64 c, const float (&total)[1]) const { dbias.data[k * dbias.stride + c] = total[0]; }
};

template <class S, class Out>
void act_backward(const launch_target& on, const act_backward_args<S, Out>& a) {
  with_activation(a.act, [&](auto act) {
    with_flag(a.dbias.data != nullptr, [&](auto sums) {
      const act_backward_op<decltype(act)::value, decltype(sums)::value, S, Out> op{a.dy, a.saved, a.dx, a.dbias};
      if constexpr (decltype(sums)::value)
        columnwise(on, a.members, a.dy.rows, a.dy.cols, nullptr, op);
      else
        map(on, a.members, a.dy.rows, a.dy.cols, nullptr, op);
    });
  });
}

struct fill_op {
  vec<float> x;
  float value;
  struct element {
    float* x;
    float value;
    TROUPE_HD void operator()(i64 c) const { x[c] = value; }
  };
  TROUPE_HD element at(i64 k, i64) const { return {x.data + k * x.stride, value}; }
};

inline void fill(const launch_target& on, const fill_args& a) {
  map(on, a.members, 1, a.x.size, nullptr, fill_op{a.x, a.value});
}

struct axpy_op {
  float alpha;
  vec<const float> x;
  vec<float> y;
  struct element {
    float alpha;
    const float* x;
    float* y;
    TROUPE_HD void operator()(i64 c) const { y[c] = mul_add(alpha, x[c], y[c]); }
  };
  TROUPE_HD element at(i64 k, i64) const { return {alpha, x.data + k * x.stride, y.data + k * y.stride}; }
};

inline void axpy(const launch_target& on, const axpy_args& a) {
  map(on, a.members, 1, a.x.size, nullptr, axpy_op{a.alpha, a.x, a.y});
}

template <class In, class Out>
struct convert_op {
  vec<const In> x;
  vec<Out> y;
  struct element {
    const In* x;
    Out* y;
    TROUPE_HD void operator()(i64 c) const { store(y, c, load(x, c)); }
  };
  TROUPE_HD element at(i64 k, i64) const { return {x.data + k * x.stride, y.data + k * y.stride}; }
};

template <class In, class Out>
void convert(const launch_target& on, const convert_args<In, Out>& a) {
  map(on, a.members, 1, a.x.size, nullptr, convert_op<In, Out>{a.x, a.y});
}

} // namespace troupe::gpu::internal::TROUPE_KERNELS
