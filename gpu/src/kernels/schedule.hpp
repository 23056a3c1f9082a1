#pragma once

#include "kernels/prelude.hpp"

/// The learning rate of a step and the other numbers that begin_step computes, in doubles and without calls into a math
/// library, so that host, CPU kernels and GPU agree bit for bit.
namespace troupe::gpu::internal::TROUPE_KERNELS {

/// cos(pi t) for t in [0, 1]: the Taylor series of the sine of pi (1/2 - t), error below 1e-13.
TROUPE_HD double cos_pi(double t) {
  const double y = 3.14159265358979323846 * (0.5 - t), z = y * y;
  double p = 1.0;
  for (int i = 9; i >= 1; --i)
    p = 1.0 - p * z / double(2 * i * (2 * i + 1));
  return y * p;
}

/// x^n by squaring.
TROUPE_HD double power(double x, u64 n) {
  double result = 1.0;
  for (; n != 0; n >>= 1) {
    if (n & 1)
      result *= x;
    x *= x;
  }
  return result;
}

TROUPE_HD double cosine_fall(double done, double total, double last) {
  const double t = total > 0 ? (done < total ? done / total : 1.0) : 1.0;
  return last + (1.0 - last) * 0.5 * (1.0 + cos_pi(t));
}

TROUPE_HD float scheduled_lr(const member_params& p, u64 step) {
  const double s = double(step), a = p.schedule_a, b = p.schedule_b, c = p.schedule_c;
  double factor = 1.0;
  if (p.schedule == 1.0f)
    factor = a >= 1 ? power(b, u64(s / a)) : 1.0;
  else if (p.schedule == 2.0f)
    factor = cosine_fall(s, a, b);
  else if (p.schedule == 3.0f)
    factor = s < a ? (s + 1.0) / a : cosine_fall(s - a, b - a, c);
  return float(double(p.lr) * factor);
}

/// 1 - beta^step.
TROUPE_HD float bias_correction(float beta, u64 step) { return float(1.0 - power(double(beta), step)); }

} // namespace troupe::gpu::internal::TROUPE_KERNELS
