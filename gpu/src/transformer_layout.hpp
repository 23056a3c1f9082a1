#pragma once

#include <vector>

#include "troupe/gpu/transformer.hpp"

namespace troupe::gpu::internal {

/// Where a layer's weights lie.
struct transformer_layer {
  std::int64_t qkv = 0, projection = 0, up = 0, down = 0;                  ///< matrices
  std::int64_t qkv_bias = 0, projection_bias = 0, up_bias = 0, down_bias = 0;
  std::int64_t gain1 = 0, shift1 = 0, gain2 = 0, shift2 = 0;               ///< of the two normalisations
};

struct transformer_layout : model_layout {
  std::vector<transformer_layer> layers;
  std::int64_t output = 0, output_bias = 0;
  std::int64_t tokens = 0, positions = 0; ///< tables; their gradients are no products
  std::int64_t gain = 0, shift = 0;       ///< of the last normalisation
};

/// Throws `std::invalid_argument` where the spec makes no model.
transformer_layout make_layout(const transformer_spec& spec);

} // namespace troupe::gpu::internal
