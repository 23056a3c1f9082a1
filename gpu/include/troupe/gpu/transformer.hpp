#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "troupe/gpu/model.hpp"

namespace troupe::gpu {

/// A classifier of texts: token and position embeddings, layers of attention and a GELU network, the mean over the tokens, one
/// dense layer to the classes' logits. Normalised before each part (pre-norm: Xiong et al. 2020), with one more normalisation at the
/// end. Attention looks both ways and never at padding.
struct transformer_spec {
  std::int64_t vocabulary = 0; ///< tokens there are; 0 is padding
  std::int64_t length = 0;     ///< tokens of a text, padding included
  std::int64_t classes = 0;
  std::int64_t width = 64;     ///< numbers per token; a multiple of `heads`
  std::int64_t heads = 4;
  std::int64_t layers = 2;
  std::int64_t hidden = 256;   ///< of the GELU network in each layer
  precision_kind precision = precision_kind::fp32; ///< bf16: of products with weights; attention's own products are fp32

  /// "text 256x16 width 64 heads 4 layers 2 hidden 256 classes 5": equal for models whose weights mean the same.
  std::string describe() const;
};

/// K transformers that compute together. Dropout follows the embedding and each part of each layer.
class transformer final : public model {
public:
  /// Throws `std::invalid_argument` for a spec that makes no model, `out_of_memory`.
  transformer(context& ctx, transformer_spec spec, std::int64_t lanes, std::int64_t rows);
  ~transformer() override;
  /// Makes such models.
  static model_factory factory(transformer_spec spec);

  const transformer_spec& spec() const noexcept;

  void load_input(const data_source& data, const member_counters* counters, std::int64_t offset, std::int64_t rows) override;
  void forward(const pass& p) override;
  void loss(const pass& p) override;
  void backward(const pass& p, const gradient_target& to) override;

  /// Multiplications and additions of one training step of one text in products (2 per multiply-add).
  double flops_per_example() const noexcept;

private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

} // namespace troupe::gpu
