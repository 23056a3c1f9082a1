#include <stdexcept>
#include <string>

#include "backend.hpp"
#include "troupe/gpu/ops.hpp"

namespace troupe::gpu {

namespace {

template <class T>
std::string shape_of(const char* name, const mat<T>& x, bool trans) {
  return std::string(name) + (trans ? "^T: " : ": ") + std::to_string(x.rows) + " x " +
         std::to_string(x.cols) + ", ld " + std::to_string(x.ld);
}

template <class T>
void product(context& ctx, std::int64_t members, bool trans_a, bool trans_b, float alpha,
             const mat<const T>& a, const mat<const T>& b, float beta, const mat<float>& c) {
  ctx.check_thread();
  internal::gemm_call call;
  call.members = members;
  call.m = trans_a ? a.cols : a.rows;
  call.k = trans_a ? a.rows : a.cols;
  call.n = trans_b ? b.rows : b.cols;
  const auto kb = trans_b ? b.cols : b.rows;
  if (call.m != c.rows || call.n != c.cols || call.k != kb || a.ld < a.cols || b.ld < b.cols ||
      c.ld < c.cols || members < 0)
    throw std::invalid_argument("gemm: the shapes do not fit: " + shape_of("A", a, trans_a) + "; " +
                                shape_of("B", b, trans_b) + "; " + shape_of("C", c, false) + "; members " +
                                std::to_string(members));
  call.trans_a = trans_a;
  call.trans_b = trans_b;
  call.low = sizeof(T) == 2;
  call.alpha = alpha;
  call.beta = beta;
  call.a = a.data;
  call.b = b.data;
  call.c = c.data;
  call.lda = a.ld;
  call.ldb = b.ld;
  call.ldc = c.ld;
  call.stride_a = a.stride;
  call.stride_b = b.stride;
  call.stride_c = c.stride;
  if (members != 0 && call.m != 0 && call.n != 0)
    ctx.impl().gemm(call);
}

} // namespace

void gemm(context& ctx, std::int64_t members, bool trans_a, bool trans_b, float alpha, mat<const float> a,
          mat<const float> b, float beta, mat<float> c) {
  product(ctx, members, trans_a, trans_b, alpha, a, b, beta, c);
}

void gemm(context& ctx, std::int64_t members, bool trans_a, bool trans_b, float alpha, mat<const bf16> a,
          mat<const bf16> b, float beta, mat<float> c) {
  product(ctx, members, trans_a, trans_b, alpha, a, b, beta, c);
}

} // namespace troupe::gpu
