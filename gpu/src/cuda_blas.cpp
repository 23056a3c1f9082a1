#include "cuda_blas.hpp"

#include <limits>

#include "cuda_libraries.hpp"
#include "cuda_support.hpp"
#include "shared_library.hpp"

namespace troupe::gpu::internal {

cuda_blas::cuda_blas(cudaStream_t stream, void* workspace, std::size_t workspace_bytes, math_mode math,
                     const std::string& label)
    : label_(label), stream_(stream) {
  std::string why;
  const auto lib = shared_library::open(cuda_library_paths("libcublas"), why);
  decltype(&cublasCreate_v2) create = nullptr;
  decltype(&cublasSetStream_v2) set_stream = nullptr;
  decltype(&cublasSetWorkspace_v2) set_workspace = nullptr;
  decltype(&cublasSetMathMode) set_math = nullptr;
  if (!lib || !lib->get(create, "cublasCreate_v2", why) || !lib->get(destroy_, "cublasDestroy_v2", why) ||
      !lib->get(set_stream, "cublasSetStream_v2", why) ||
      !lib->get(set_workspace, "cublasSetWorkspace_v2", why) ||
      !lib->get(set_math, "cublasSetMathMode", why) ||
      !lib->get(status_text_, "cublasGetStatusString", why) || !lib->get(sgemm_, "cublasSgemm_v2", why) ||
      !lib->get(sgemm_batched_, "cublasSgemmStridedBatched", why) ||
      !lib->get(gemm_batched_, "cublasGemmStridedBatchedEx", why))
    throw device_error(label_ + ": a GPU slot needs cuBLAS, which cannot be loaded: " + why + cuda_library_advice, false);
  check(create(&handle_), "cublasCreate");
  try {
    check(set_stream(handle_, stream), "cublasSetStream");
    check(set_workspace(handle_, workspace, workspace_bytes),
          "cublasSetWorkspace"); // after the stream, which resets it
    check(set_math(handle_, math == math_mode::tf32 ? CUBLAS_TF32_TENSOR_OP_MATH : CUBLAS_DEFAULT_MATH),
          "cublasSetMathMode");
  } catch (...) {
    destroy_(handle_);
    throw;
  }
}

cuda_blas::~cuda_blas() { destroy_(handle_); }

void cuda_blas::check(cublasStatus_t rc, const char* call) const {
  if (rc == CUBLAS_STATUS_SUCCESS)
    return;
  // cuBLAS only knows that it failed, and has a runtime of its own, so ours may know of no error: the stream does.
  throw_cuda(cudaGetLastError(), label_, call, stream_, status_text_(rc));
}

void cuda_blas::gemm(const gemm_call& call) {
  for (auto x : {call.m, call.n, call.k, call.lda, call.ldb, call.ldc, call.members})
    if (x > std::numeric_limits<int>::max())
      throw std::invalid_argument(label_ + ": gemm takes sizes below 2^31, this one is " + std::to_string(x));
  const auto i = [](std::int64_t x) { return static_cast<int>(x); };
  // Row-major C = op(A) op(B) is column-major C^T = op(B)^T op(A)^T, and a row-major matrix is its transpose
  // there.
  const auto op = [](bool trans) { return trans ? CUBLAS_OP_T : CUBLAS_OP_N; };
  float alpha = call.alpha;
  const void *a = call.a, *b = call.b;
  int k = i(call.k), lda = std::max(1, i(call.lda)), ldb = std::max(1, i(call.ldb));
  auto stride_a = call.stride_a, stride_b = call.stride_b;
  if (k == 0) { // C = beta C; with alpha 0 the operands are not read
    alpha = 0, k = 1, a = b = call.c, stride_a = stride_b = 0;
    lda = call.trans_a ? i(call.m) : 1;
    ldb = call.trans_b ? 1 : i(call.n);
  }
  if (call.low)
    check(gemm_batched_(handle_, op(call.trans_b), op(call.trans_a), i(call.n), i(call.m), k, &alpha, b,
                        CUDA_R_16BF, ldb, stride_b, a, CUDA_R_16BF, lda, stride_a, &call.beta, call.c,
                        CUDA_R_32F, i(call.ldc), call.stride_c, i(call.members), CUBLAS_COMPUTE_32F,
                        CUBLAS_GEMM_DEFAULT),
          "cublasGemmStridedBatchedEx");
  else if (call.members == 1)
    check(sgemm_(handle_, op(call.trans_b), op(call.trans_a), i(call.n), i(call.m), k, &alpha,
                 static_cast<const float*>(b), ldb, static_cast<const float*>(a), lda, &call.beta, call.c,
                 i(call.ldc)),
          "cublasSgemm");
  else
    check(sgemm_batched_(handle_, op(call.trans_b), op(call.trans_a), i(call.n), i(call.m), k, &alpha,
                         static_cast<const float*>(b), ldb, stride_b, static_cast<const float*>(a), lda,
                         stride_a, &call.beta, call.c, i(call.ldc), call.stride_c, i(call.members)),
          "cublasSgemmStridedBatched");
}

} // namespace troupe::gpu::internal
