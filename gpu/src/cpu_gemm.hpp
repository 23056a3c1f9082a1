#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend.hpp"
#include "matrix_libraries.hpp"
#include "troupe/gpu/gemm_plan.hpp"

namespace troupe::gpu::internal {

/// Matrix products of one CPU slot. One thread computes; members are independent products of the same kind,
/// so that a member's result depends neither on the others nor on how many there are.
class cpu_gemm {
public:
  /// `native_bf16`: whether the processor multiplies bf16; a test may deny it.
  explicit cpu_gemm(const slot_options& options, bool native_bf16 = onednn::native_bf16());

  void operator()(const gemm_call& call);

private:
  gemm_library choose(const product& p);
  gemm_library probe(const gemm_shape& shape, const product& p);
  bool compute(gemm_library library, const product& p);
  void compute_low(const product& p);
  openblas& blas();

  std::shared_ptr<gemm_plan> plan_;            // may be null: the default for all
  std::map<gemm_shape, gemm_library> choices_; // the plan's, as far as met
  onednn onednn_;
  std::unique_ptr<openblas> blas_;
  bool native_bf16_;
  std::vector<float> a_, b_; // bf16 operands as fp32
};

} // namespace troupe::gpu::internal
