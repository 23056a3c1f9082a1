#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "troupe/core/result.hpp"
#include "troupe/gpu/context.hpp"
#include "troupe/gpu/dataset.hpp"
#include "troupe/gpu/model.hpp"
#include "troupe/gpu/ops.hpp"

namespace troupe::gpu {

enum class norm_kind : std::uint8_t { none, layer, batch };

std::string_view to_string(norm_kind x) noexcept;
std::string_view to_string(activation x) noexcept;

/// One convolution of a network, followed by normalisation, activation and, where pool > 1, max-pooling of pool x pool
/// pixels with stride pool.
struct conv_spec {
  std::int32_t filters = 16;
  std::int32_t kernel = 3;
  std::int32_t stride = 1;
  std::int32_t pad = 1;
  std::int32_t pool = 2;
};

/// A classifier: convolutions, then dense layers, then one dense layer to the classes' logits. Every layer but the last is
/// linear -> normalisation -> activation -> dropout (dense layers only).
struct network_spec {
  std::int64_t features = 0;                        ///< numbers per example
  std::int32_t height = 0, width = 0, channels = 0; ///< of the images; needed where there are convolutions
  std::int64_t classes = 0;
  std::vector<conv_spec> conv;
  std::vector<std::int64_t> hidden; ///< widths of the dense layers
  activation act = activation::relu;
  norm_kind norm = norm_kind::none; ///< `layer` is for dense layers only
  precision_kind precision = precision_kind::fp32;

  /// "784-256-256-10 relu" and the like: equal for networks whose weights mean the same.
  std::string describe() const;
};

/// Networks of one architecture that compute together.
class network final : public model {
public:
  /// Throws `std::invalid_argument` for a spec that makes no network (a convolution larger than its image, convolutions without
  /// images, nothing to classify), `out_of_memory`.
  network(context& ctx, network_spec spec, std::int64_t lanes, std::int64_t rows);
  ~network() override;

  static model_factory factory(network_spec spec);

  const network_spec& spec() const noexcept;
  std::int64_t least_batch() const noexcept override; ///< 2 with batch normalisation

  void load_input(const data_source& data, const member_counters* counters, std::int64_t offset, std::int64_t rows) override;
  /// Computes the logits, without the last layer's bias.
  void forward(const pass& p) override;
  void loss(const pass& p) override;
  void backward(const pass& p, const gradient_target& to) override;

  /// Multiplications and additions of one training step of one example in matrix products (2 per multiply-add).
  double flops_per_example() const noexcept;

private:
  struct impl;
  impl& here(); ///< with the members that are selected
  std::unique_ptr<impl> impl_;
};

} // namespace troupe::gpu
