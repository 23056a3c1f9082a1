#pragma once

#include <vector>

#include "backend.hpp"

namespace troupe::gpu::internal {

/// Matrix products of one CPU slot. One thread computes; members are independent products, so that a member's result
/// depends neither on the others nor on how many there are.
class cpu_gemm {
public:
  explicit cpu_gemm(const slot_options& options);

  void operator()(const gemm_call& call);

private:
  std::vector<float> a_, b_; // bf16 operands as fp32
};

} // namespace troupe::gpu::internal
