#pragma once

#include "troupe/gpu/network.hpp"

namespace troupe::gpu::internal {

/// One linear layer with what follows it, and where its weights lie.
struct block {
  bool is_conv = false;
  bool is_head = false;           ///< the last layer: no activation, its bias belongs to the loss
  conv_shape shape;               ///< conv: of one image
  std::int32_t pool = 1;
  conv_shape pool_shape;          ///< pool > 1: of one image
  std::int64_t rows = 1;          ///< of the linear product, per example (conv: output pixels)
  std::int64_t inner = 0;         ///< the product's inner dimension (conv: kernel * kernel * channels)
  std::int64_t cols = 0;          ///< outputs (conv: filters)
  std::int64_t in_features = 0;   ///< numbers per example that come in
  std::int64_t out_features = 0;  ///< and go out, after pooling
  norm_kind norm = norm_kind::none;
  std::int64_t weight = 0;        ///< offsets into a member's weights
  std::int64_t bias = 0;
  std::int64_t gain = -1;         ///< with normalisation
  std::int64_t running = -1;      ///< batch normalisation: offset of mean, then variance
};

struct layout : model_layout {
  std::vector<block> blocks;
};

/// Bytes of one tile of a convolution's columns and products for one of `lanes` that are computed at once. On the CPU a tile stays in
/// the second-level cache, and is the same whatever trains beside. A GPU wants few large launches, over all lanes together: those
/// share 64 MiB.
constexpr std::int64_t column_budget(bool on_gpu, std::int64_t lanes) {
  return on_gpu ? (std::int64_t{64} << 20) / (lanes > 0 ? lanes : 1) : 256 << 10;
}

/// Throws `std::invalid_argument` where the spec makes no network.
layout make_layout(const network_spec& spec);

} // namespace troupe::gpu::internal
