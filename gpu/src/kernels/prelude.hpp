#pragma once

#include <cstdint>

#include "kernel_table.hpp"

/// What every kernel header is written in.
///
/// These headers are compiled several times: by g++ for several instruction sets (kernels/cpu.cpp), each time into the
/// namespace that TROUPE_KERNELS names, and by nvcc (kernels.cu). Everything here lives in that namespace and calls
/// no inline function of other headers, because the linker would keep one copy of such a function for all of them,
/// possibly built for an instruction set that the machine lacks.
///
/// The forms a kernel can take are in launch_cpu.hpp and launch_cuda.hpp, which define the same names.
///
/// Arithmetic: contraction is off in all builds and `mul_add` fuses where the machine can, so each build gives the same
/// result for the same element, wherever the element falls in a vector loop. The CPU builds with FMA and the CUDA build
/// agree bit for bit in everything elementwise; sums differ in their order.
///
/// Subnormal numbers: kernels flush them, on the CPU because their thread does (core/subnormals.hpp), on the GPU because of
/// `-ftz=true`. So do the CPU's products; cuBLAS's do not, so whoever keeps what a product wrote as state flushes it
/// (TROUPE_PRODUCTS_KEEP_SUBNORMALS).

#if defined(__CUDACC__)
#define TROUPE_HD __host__ __device__ __forceinline__
#define TROUPE_PRODUCTS_KEEP_SUBNORMALS
#define TROUPE_VECTORIZE
#else
#define TROUPE_HD inline __attribute__((always_inline))
// The iterations of the next loop are independent, even where input and output are the same array.
#define TROUPE_VECTORIZE _Pragma("GCC ivdep")
#endif

namespace troupe::gpu::internal::TROUPE_KERNELS {

using i64 = std::int64_t;
using u64 = std::uint64_t;
using u32 = std::uint32_t;
using i32 = std::int32_t;

TROUPE_HD float mul_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return fmaf(a, b, c);
#elif defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

TROUPE_HD float root(float x) {
#if defined(__CUDA_ARCH__)
  return sqrtf(x);
#else
  return __builtin_sqrtf(x);
#endif
}

TROUPE_HD u32 bits_of(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  u32 u;
  __builtin_memcpy(&u, &x, sizeof u);
  return u;
#endif
}

TROUPE_HD float float_of(u32 u) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(u);
#else
  float x;
  __builtin_memcpy(&x, &u, sizeof x);
  return x;
#endif
}

TROUPE_HD float infinity() { return float_of(0x7f800000u); }
TROUPE_HD bool is_finite(float x) { return (bits_of(x) & 0x7f800000u) != 0x7f800000u; }
TROUPE_HD bool is_subnormal(float x) { return (bits_of(x) & 0x7f800000u) == 0 && (bits_of(x) & 0x007fffffu) != 0; }
TROUPE_HD i64 least(i64 a, i64 b) { return a < b ? a : b; }

/// a / b for numbers that are not negative, faster where both fit 32 bits: GPUs divide longer ones in software.
TROUPE_HD i64 quotient(i64 a, i64 b) {
  return ((a | b) >> 32) == 0 ? i64(u32(a) / u32(b)) : a / b;
}

// -- element types: loads give float, stores round ---------------------------------------------------------------

TROUPE_HD float load(const float* p, i64 i) { return p[i]; }
TROUPE_HD float load(const bf16* p, i64 i) { return float_of(u32(p[i]) << 16); }

TROUPE_HD bf16 round_to_bf16(float x) {
  const u32 u = bits_of(x);
  const u32 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16; // to nearest, ties to even
  const u32 quiet_nan = (u >> 16) | 0x40u;
  return bf16((u & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
}

TROUPE_HD void store(float* p, i64 i, float x) { p[i] = x; }
TROUPE_HD void store(bf16* p, i64 i, float x) { p[i] = round_to_bf16(x); }

template <class T>
TROUPE_HD T* row_of(const mat<T>& m, i64 member, i64 row) {
  return m.data + member * m.stride + row * m.ld;
}

// -- functions ------------------------------------------------------------------------------------------------------

/// e^x after Cephes' expf (Moshier, netlib.org/cephes): Cody-Waite reduction by ln 2 in two parts, then a polynomial of
/// degree 6. Relative error below 2^-22 for results that are normal numbers; 0 below -87.3, infinity above 88.7.
/// Without branches, so that loops over it become vector code.
TROUPE_HD float exp_of(float x) {
  const float lo = -87.336544f, hi = 88.722839f;
  const float y = x < lo ? lo : (x > hi ? hi : x); // NaN stays
  const float magic = 12582912.0f;                 // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = mul_add(y, 1.44269504088896341f, magic);
  const float n = shifted - magic;
  float r = mul_add(n, -0.693359375f, y);
  r = mul_add(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = mul_add(p, r, 1.3981999507e-3f);
  p = mul_add(p, r, 8.3334519073e-3f);
  p = mul_add(p, r, 4.1665795894e-2f);
  p = mul_add(p, r, 1.6666665459e-1f);
  p = mul_add(p, r, 5.0000001201e-1f);
  p = mul_add(p, r * r, r) + 1.0f;
  // 2^n in two factors, because n = 128 alone is not a float.
  const i32 exponent = i32(bits_of(shifted) - bits_of(magic));
  const i32 half = exponent >> 1;
  const float scaled = p * float_of(u32(half + 127) << 23) * float_of(u32(exponent - half + 127) << 23);
  return x < lo ? 0.0f : (x > hi ? infinity() : scaled);
}

/// Natural logarithm of a positive, normal number, after Cephes' logf. Relative error below 2^-22, absolute error below
/// 2^-24 near 1. Infinity and NaN come back as they are.
TROUPE_HD float log_of(float x) {
  const u32 u = bits_of(x);
  i32 exponent = i32(u >> 23) - 126;
  float m = float_of((u & 0x007fffffu) | 0x3f000000u); // in [0.5, 1)
  const bool small = m < 0.707106781186547524f;
  exponent -= small ? 1 : 0;
  m = (small ? m + m : m) - 1.0f;
  const float z = m * m;
  float p = 7.0376836292e-2f;
  p = mul_add(p, m, -1.1514610310e-1f);
  p = mul_add(p, m, 1.1676998740e-1f);
  p = mul_add(p, m, -1.2420140846e-1f);
  p = mul_add(p, m, 1.4249322787e-1f);
  p = mul_add(p, m, -1.6668057665e-1f);
  p = mul_add(p, m, 2.0000714765e-1f);
  p = mul_add(p, m, -2.4999993993e-1f);
  p = mul_add(p, m, 3.3333331174e-1f);
  float y = m * z * p;
  const float e = float(exponent);
  y = mul_add(e, -2.12194440e-4f, y);
  y = mul_add(z, -0.5f, y);
  y = mul_add(e, 0.693359375f, m + y);
  return is_finite(x) ? y : x;
}

TROUPE_HD float sigmoid(float x) { return 1.0f / (1.0f + exp_of(-x)); }

} // namespace troupe::gpu::internal::TROUPE_KERNELS
