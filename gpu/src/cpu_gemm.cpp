#include "cpu_gemm.hpp"

#include <bit>

#ifdef TROUPE_WITH_ONEDNN
#include <oneapi/dnnl/dnnl.h>
#endif

namespace troupe::gpu::internal {

namespace {

void sgemm(bool ta, bool tb, std::int64_t m, std::int64_t n, std::int64_t k, float alpha, const float* a, std::int64_t lda,
           const float* b, std::int64_t ldb, float beta, float* c, std::int64_t ldc) {
  const auto st = dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  if (st != dnnl_success)
    throw device_error("dnnl_sgemm failed with status " + std::to_string(st), false);
}

/// A matrix of rows x cols bf16 with leading dimension ld, as dense fp32.
void widen(const std::uint16_t* x, std::int64_t rows, std::int64_t cols, std::int64_t ld, std::vector<float>& out) {
  out.resize(static_cast<std::size_t>(rows * cols));
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j)
      out[static_cast<std::size_t>(i * cols + j)] = std::bit_cast<float>(std::uint32_t(x[i * ld + j]) << 16);
}

void scale(const gemm_call& call, float* c) {
  for (std::int64_t i = 0; i < call.m; ++i)
    for (std::int64_t j = 0; j < call.n; ++j)
      c[i * call.ldc + j] = call.beta == 0 ? 0.f : call.beta * c[i * call.ldc + j];
}

} // namespace

cpu_gemm::cpu_gemm(const slot_options&) {}

void cpu_gemm::operator()(const gemm_call& call) {
  if (call.m == 0 || call.n == 0)
    return;
  for (std::int64_t i = 0; i < call.members; ++i) {
    float* c = call.c + i * call.stride_c;
    if (call.k == 0 || call.alpha == 0) {
      scale(call, c);
    } else if (call.low) {
      const auto* a = static_cast<const std::uint16_t*>(call.a) + i * call.stride_a;
      const auto* b = static_cast<const std::uint16_t*>(call.b) + i * call.stride_b;
      const auto ac = call.trans_a ? call.m : call.k, bc = call.trans_b ? call.k : call.n;
      widen(a, call.trans_a ? call.k : call.m, ac, call.lda, a_);
      widen(b, call.trans_b ? call.n : call.k, bc, call.ldb, b_);
      sgemm(call.trans_a, call.trans_b, call.m, call.n, call.k, call.alpha, a_.data(), ac, b_.data(), bc, call.beta, c,
            call.ldc);
    } else {
      sgemm(call.trans_a, call.trans_b, call.m, call.n, call.k, call.alpha,
            static_cast<const float*>(call.a) + i * call.stride_a, call.lda,
            static_cast<const float*>(call.b) + i * call.stride_b, call.ldb, call.beta, c, call.ldc);
    }
  }
}

} // namespace troupe::gpu::internal
