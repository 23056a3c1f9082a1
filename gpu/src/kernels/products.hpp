#pragma once

#include "kernels/launch.hpp"

#if !defined(__CUDACC__) && defined(__FMA__) && defined(__x86_64__)
#include <immintrin.h> // all of it is inlined always, so there is nothing for the linker to mix up
#define TROUPE_X86_LANES
#endif

/// Small products, many at once: attention's. Each number is one chain of fused multiply-adds along the inner dimension, whichever
/// tile it falls into, so CPU and GPU agree bit for bit.
namespace troupe::gpu::internal::TROUPE_KERNELS {

#if !defined(__CUDACC__)
/// N numbers side by side. Written out for x86, since g++ leaves sums that live in registers across a loop scalar.
template <int N>
struct lanes {
  float v[N];
  TROUPE_HD static lanes zero() { return {}; }
  TROUPE_HD static lanes load(const float* p) {
    lanes x;
    for (int l = 0; l < N; ++l)
      x.v[l] = p[l];
    return x;
  }
  TROUPE_HD void add(float a, const lanes& b) {
    for (int l = 0; l < N; ++l)
      v[l] = mul_add(a, b.v[l], v[l]);
  }
  TROUPE_HD void store(float* p, float scale) const {
    for (int l = 0; l < N; ++l)
      p[l] = scale * v[l];
  }
};
#if defined(TROUPE_X86_LANES)
template <>
struct lanes<4> {
  __m128 v;
  TROUPE_HD static lanes zero() { return {_mm_setzero_ps()}; }
  TROUPE_HD static lanes load(const float* p) { return {_mm_loadu_ps(p)}; }
  TROUPE_HD void add(float a, const lanes& b) { v = _mm_fmadd_ps(_mm_set1_ps(a), b.v, v); }
  TROUPE_HD void store(float* p, float scale) const { _mm_storeu_ps(p, _mm_mul_ps(_mm_set1_ps(scale), v)); }
};
template <>
struct lanes<8> {
  __m256 v;
  TROUPE_HD static lanes zero() { return {_mm256_setzero_ps()}; }
  TROUPE_HD static lanes load(const float* p) { return {_mm256_loadu_ps(p)}; }
  TROUPE_HD void add(float a, const lanes& b) { v = _mm256_fmadd_ps(_mm256_set1_ps(a), b.v, v); }
  TROUPE_HD void store(float* p, float scale) const { _mm256_storeu_ps(p, _mm256_mul_ps(_mm256_set1_ps(scale), v)); }
};
template <>
struct lanes<16> {
#if defined(__AVX512F__)
  __m512 v;
  TROUPE_HD static lanes zero() { return {_mm512_setzero_ps()}; }
  TROUPE_HD static lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
  TROUPE_HD void add(float a, const lanes& b) { v = _mm512_fmadd_ps(_mm512_set1_ps(a), b.v, v); }
  TROUPE_HD void store(float* p, float scale) const { _mm512_storeu_ps(p, _mm512_mul_ps(_mm512_set1_ps(scale), v)); }
#else
  lanes<8> low, high;
  TROUPE_HD static lanes zero() { return {lanes<8>::zero(), lanes<8>::zero()}; }
  TROUPE_HD static lanes load(const float* p) { return {lanes<8>::load(p), lanes<8>::load(p + 8)}; }
  TROUPE_HD void add(float a, const lanes& b) { low.add(a, b.low), high.add(a, b.high); }
  TROUPE_HD void store(float* p, float scale) const { low.store(p, scale), high.store(p + 8, scale); }
#endif
};
#endif
#endif

struct gemm_grid_op {
  gemm_grid_args x;

  /// One matrix's operands: A's element (r, i) at a[r a_row + i a_step], B's (i, j) at b[i b_step + j b_col].
  struct operands {
    const float *a, *b;
    float* c;
    i64 a_row, a_step, b_step, b_col;
  };
  TROUPE_HD operands matrix(i64 k, i64 q) const {
    const i64 i = quotient(q, x.inner), h = q - i * x.inner;
    return {x.a.data + k * x.a.stride + i * x.a.outer_stride + h * x.a.inner_stride,
            x.b.data + k * x.b.stride + i * x.b.outer_stride + h * x.b.inner_stride,
            x.c.data + k * x.c.stride + i * x.c.outer_stride + h * x.c.inner_stride,
            x.trans_a ? 1 : x.a.ld,
            x.trans_a ? x.a.ld : 1,
            x.trans_b ? 1 : x.b.ld,
            x.trans_b ? x.b.ld : 1};
  }

  struct element {
    const float *a, *b;
    float* c;
    i64 length, a_step, b_step, b_col;
    float alpha;
    TROUPE_HD void operator()(i64 j) const {
      float sum = 0;
      for (i64 i = 0; i < length; ++i)
        sum = mul_add(a[i * a_step], b[i * b_step + j * b_col], sum);
      c[j] = alpha * sum;
    }
  };
  TROUPE_HD element at(i64 k, i64 q, i64 r) const {
    const operands m = matrix(k, q);
    return {m.a + r * m.a_row, m.b, m.c + r * x.c.ld, x.k, m.a_step, m.b_step, m.b_col, x.alpha};
  }

#if !defined(__CUDACC__)
  /// Rows x Cols numbers of C in registers; B's rows are dense.
  template <int Rows, int Cols>
  TROUPE_HD void tile(const float* a, i64 a_row, i64 a_step, const float* b, i64 b_step, float* c) const {
    lanes<Cols> sum[Rows];
    for (int r = 0; r < Rows; ++r)
      sum[r] = lanes<Cols>::zero();
    for (i64 i = 0; i < x.k; ++i) {
      const auto line = lanes<Cols>::load(b + i * b_step);
      for (int r = 0; r < Rows; ++r)
        sum[r].add(a[r * a_row + i * a_step], line);
    }
    for (int r = 0; r < Rows; ++r)
      sum[r].store(c + r * x.c.ld, x.alpha);
  }
  template <int Cols>
  TROUPE_HD void columns(const operands& m, const float* b, i64 b_step, float* c) const {
    i64 r = 0;
    for (; r + 8 <= x.m; r += 8)
      tile<8, Cols>(m.a + r * m.a_row, m.a_row, m.a_step, b, b_step, c + r * x.c.ld);
    for (; r + 4 <= x.m; r += 4)
      tile<4, Cols>(m.a + r * m.a_row, m.a_row, m.a_step, b, b_step, c + r * x.c.ld);
    for (; r < x.m; ++r)
      tile<1, Cols>(m.a + r * m.a_row, m.a_row, m.a_step, b, b_step, c + r * x.c.ld);
  }

  TROUPE_HD void all_rows(i64 k, i64 q) const {
    constexpr i64 longest = 256;
    const operands m = matrix(k, q);
    if (x.trans_b && x.k > longest) {
      for (i64 r = 0; r < x.m; ++r) {
        const element e = at(k, q, r);
        for (i64 j = 0; j < x.n; ++j)
          e(j);
      }
      return;
    }
    alignas(64) float turned[longest * 16]; // 16 of B's columns as rows
    i64 j = 0;
    const auto take = [&](auto width) {
      constexpr int cols = decltype(width)::value;
      for (; j + cols <= x.n; j += cols) {
        const float* b = m.b + j * m.b_col;
        i64 b_step = m.b_step;
        if (x.trans_b) {
          for (int l = 0; l < cols; ++l)
            for (i64 i = 0; i < x.k; ++i)
              turned[i * cols + l] = b[l * x.b.ld + i];
          b = turned;
          b_step = cols;
        }
        columns<cols>(m, b, b_step, m.c + j);
      }
    };
    take(width_tag<16>{});
    take(width_tag<8>{});
    take(width_tag<4>{});
    take(width_tag<1>{});
  }

  template <int N>
  struct width_tag {
    static constexpr int value = N;
  };
#endif
};

inline void gemm_grid(const launch_target& on, const gemm_grid_args& a) {
  map_3d(on, a.members, a.outer * a.inner, a.m, a.n, gemm_grid_op{a});
}

} // namespace troupe::gpu::internal::TROUPE_KERNELS
