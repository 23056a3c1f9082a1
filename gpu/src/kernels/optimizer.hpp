#pragma once

#include "kernels/elementwise.hpp"
#include "kernels/schedule.hpp"

namespace troupe::gpu::internal::TROUPE_KERNELS {

struct begin_step_op {
  const member_params* params;
  member_counters* counters;
  TROUPE_HD void operator()(i64 k) const {
    const member_params& p = params[k];
    member_counters& m = counters[k];
    m.lr_now = scheduled_lr(p, m.step);
    m.bias1 = bias_correction(p.beta1, m.updates + 1);
    m.bias2 = bias_correction(p.beta2, m.updates + 1);
    m.grad_scale = 1.0f;
  }
};

inline void begin_step(const launch_target& on, const step_args& a) {
  per_member(on, a.members, a.active, begin_step_op{a.params, a.counters});
}

struct end_step_op {
  member_counters* counters;
  TROUPE_HD void operator()(i64 k) const {
    counters[k].step += 1;
    counters[k].batch += 1;
    counters[k].updates += 1;
  }
};

inline void end_step(const launch_target& on, const step_args& a) {
  per_member(on, a.members, a.active, end_step_op{a.counters});
}

struct gradient_norm_op {
  vec<const float> grad;
  const member_params* params;
  member_counters* counters;
  float* scratch; // the GPU's partial sums
  i64 scratch_stride;

  struct element {
    const float* g;
    TROUPE_HD float read(i64 i) const { return g[i]; }
    TROUPE_HD float term(float v) const { return v * v; }
  };
  TROUPE_HD element at(i64 k) const { return {grad.data + k * grad.stride}; }
  TROUPE_HD float* partial(i64 k) const { return scratch + k * scratch_stride; }
  TROUPE_HD void finish(i64 k, double total) const {
    const float norm = root(float(total)), clip = params[k].clip_norm;
    counters[k].grad_norm = norm;
    if (clip > 0)
      counters[k].grad_scale = norm <= clip ? 1.0f : clip / norm;
  }
};

inline void gradient_norm(const launch_target& on, const gradient_norm_args& a) {
  block_sums(on, a.members, a.grad.size, a.active,
             gradient_norm_op{a.grad, a.params, a.counters, a.scratch.data, a.scratch.stride});
}

template <bool Low>
struct sgd_op {
  sgd_args a;
  struct element {
    float* w;
    float* v;
    const float* g;
    bf16* low;
    float lr, momentum, decay, scale;
    bool nesterov;
    TROUPE_HD void operator()(i64 i) const {
      const float weight = w[i];
      const float g1 = mul_add(scale, g[i], decay * weight);
      const float v1 = mul_add(momentum, v[i], g1);
      const float change = nesterov ? mul_add(momentum, v1, g1) : v1;
      const float w1 = mul_add(-lr, change, weight);
      v[i] = v1;
      w[i] = w1;
      if constexpr (Low)
        low[i] = round_to_bf16(w1);
    }
  };
  TROUPE_HD element at(i64 k, i64) const {
    const member_params& p = a.params[k];
    const member_counters& m = a.counters[k];
    return {a.w.data + k * a.w.stride,
            a.v.data + k * a.v.stride,
            a.grad.data + k * a.grad.stride,
            Low ? a.low.data + k * a.low.stride : nullptr,
            m.lr_now,
            p.momentum,
            p.weight_decay,
            m.grad_scale,
            p.nesterov != 0};
  }
};

inline void sgd(const launch_target& on, const sgd_args& a) {
  with_flag(a.low.data != nullptr,
            [&](auto low) { map(on, a.members, 1, a.w.size, a.active, sgd_op<decltype(low)::value>{a}); });
}

template <bool Low>
struct sgd_apply_op {
  sgd_apply_args a;
  struct element {
    float* w;
    float* v;
    bf16* low;
    float lr;
    TROUPE_HD void operator()(i64 i) const {
#if defined(TROUPE_PRODUCTS_KEEP_SUBNORMALS)
      if (is_subnormal(v[i]))
        v[i] = 0;
#endif
      const float w1 = mul_add(-lr, v[i], w[i]);
      w[i] = w1;
      if constexpr (Low)
        low[i] = round_to_bf16(w1);
    }
  };
  TROUPE_HD element at(i64 k, i64) const {
    return {a.w.data + k * a.w.stride, a.v.data + k * a.v.stride, Low ? a.low.data + k * a.low.stride : nullptr,
            a.counters[k].lr_now};
  }
};

inline void sgd_apply(const launch_target& on, const sgd_apply_args& a) {
  with_flag(a.low.data != nullptr,
            [&](auto low) { map(on, a.members, 1, a.w.size, a.active, sgd_apply_op<decltype(low)::value>{a}); });
}

template <bool Low>
struct adamw_op {
  adamw_args a;
  struct element {
    float* w;
    float* m;
    float* v;
    const float* g;
    bf16* low;
    float keep, beta1, beta2, scale, rate, root_bias2, epsilon;
    TROUPE_HD void operator()(i64 i) const {
      const float g1 = scale * g[i];
      const float m1 = mul_add(beta1, m[i], (1.0f - beta1) * g1);
      const float v1 = mul_add(beta2, v[i], (1.0f - beta2) * g1 * g1);
      const float w1 = mul_add(-rate, m1 / mul_add(root(v1), root_bias2, epsilon), keep * w[i]);
      m[i] = m1;
      v[i] = v1;
      w[i] = w1;
      if constexpr (Low)
        low[i] = round_to_bf16(w1);
    }
  };
  TROUPE_HD element at(i64 k, i64) const {
    const member_params& p = a.params[k];
    const member_counters& c = a.counters[k];
    return {a.w.data + k * a.w.stride,
            a.m.data + k * a.m.stride,
            a.v.data + k * a.v.stride,
            a.grad.data + k * a.grad.stride,
            Low ? a.low.data + k * a.low.stride : nullptr,
            mul_add(-c.lr_now, p.weight_decay, 1.0f),
            p.beta1,
            p.beta2,
            c.grad_scale,
            c.lr_now / c.bias1,
            1.0f / root(c.bias2),
            p.epsilon};
  }
};

inline void adamw(const launch_target& on, const adamw_args& a) {
  with_flag(a.low.data != nullptr,
            [&](auto low) { map(on, a.members, 1, a.w.size, a.active, adamw_op<decltype(low)::value>{a}); });
}

} // namespace troupe::gpu::internal::TROUPE_KERNELS
