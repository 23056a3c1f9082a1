#pragma once

#include <string>

#include <cublas_v2.h>

#include "backend.hpp"

namespace troupe::gpu::internal {

/// cuBLAS, loaded when the first GPU slot opens: it is hundreds of megabytes, and a program without a GPU
/// does without. One handle, on one stream, with its own workspace, so that products can be captured in a
/// graph.
class cuda_blas {
public:
  /// Throws `device_error` that names what is missing. `workspace` is device memory that lives as long as
  /// this.
  cuda_blas(cudaStream_t stream, void* workspace, std::size_t workspace_bytes, math_mode math,
            const std::string& label);
  ~cuda_blas();
  cuda_blas(const cuda_blas&) = delete;
  cuda_blas& operator=(const cuda_blas&) = delete;

  void gemm(const gemm_call& call);

private:
  void check(cublasStatus_t rc, const char* call) const;

  std::string label_;
  cudaStream_t stream_ = nullptr;
  cublasHandle_t handle_ = nullptr;
  decltype(&cublasDestroy_v2) destroy_ = nullptr;
  decltype(&cublasGetStatusString) status_text_ = nullptr;
  decltype(&cublasSgemm_v2) sgemm_ = nullptr;
  decltype(&cublasSgemmStridedBatched) sgemm_batched_ = nullptr;
  // Written out: cublas_api.h overloads the name for old code.
  cublasStatus_t (*gemm_batched_)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k,
                                  const void* alpha, const void* a, cudaDataType, int lda, long long stride_a,
                                  const void* b, cudaDataType, int ldb, long long stride_b, const void* beta,
                                  void* c, cudaDataType, int ldc, long long stride_c, int count,
                                  cublasComputeType_t, cublasGemmAlgo_t) = nullptr;
};

} // namespace troupe::gpu::internal
