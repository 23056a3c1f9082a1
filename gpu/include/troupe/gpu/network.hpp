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
#include "troupe/gpu/ops.hpp"

namespace troupe::gpu {

enum class norm_kind : std::uint8_t { none, layer, batch };

/// Operands of matrix products. bf16: weights have a bf16 copy for the products, sums, weights and optimizer are fp32.
enum class precision_kind : std::uint8_t { fp32, bf16 };

std::string_view to_string(norm_kind x) noexcept;
std::string_view to_string(precision_kind x) noexcept;
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

/// A named array of a network: weights, and the running statistics of batch normalisation.
struct parameter {
  std::string name;                ///< "weights.dense0.weight"
  std::vector<std::int64_t> shape; ///< dense: in x out; conv: kernel x kernel x in x out
  std::int64_t offset = 0;         ///< of the first element in a member's part of the slab
  std::int64_t size = 0;
  std::int64_t fan_in = 0;         ///< > 0: starts uniform in ±1/sqrt(fan_in), as PyTorch's layers; 0: starts at `initial`
  float initial = 0;
};

/// Where `network::backward` puts gradients: two slabs laid out like the weights (offset and stride). Products of layer
/// inputs and errors are *added* to `product_scale` times what `products` holds, so plain SGD's momentum needs no pass of its own:
/// hand in the momentum and its factor.
struct gradient_target {
  float* products = nullptr; ///< for parameters below `network::matrix_size()`
  float product_scale = 0;
  float* vectors = nullptr;  ///< for all others; overwritten
};

/// K networks of one architecture that compute together: weights in one slab, member k's at k * stride().
///
/// All memory is taken when it is made; nothing is allocated afterwards. Weights come first all matrices, then all vectors
/// (biases, gains), each at a multiple of 64 bytes. Belongs to one context and its thread.
class network {
public:
  /// `rows`: the most examples a pass may have. Throws `std::invalid_argument` for a spec that makes no network (a
  /// convolution larger than its image, convolutions without images, nothing to classify), `out_of_memory`.
  network(context& ctx, network_spec spec, std::int64_t members, std::int64_t rows);
  ~network();
  network(const network&) = delete;
  network& operator=(const network&) = delete;

  const network_spec& spec() const noexcept;
  std::int64_t members() const noexcept;
  std::int64_t rows() const noexcept;
  const std::vector<parameter>& parameters() const noexcept; ///< weights, in the slab's order
  const std::vector<parameter>& statistics() const noexcept; ///< running means and variances
  std::int64_t stride() const noexcept;      ///< floats from member to member in the weights' slab
  std::int64_t matrix_size() const noexcept; ///< floats at the slab's beginning that hold matrices
  std::int64_t size() const noexcept;        ///< floats of a member, gaps included
  std::int64_t statistics_stride() const noexcept;

  float* weights() const noexcept;
  bf16* low() const noexcept; ///< the bf16 copy, null with fp32
  float* running() const noexcept;

  /// Fills member k's weights from `seed` alone: every number is a function of (seed, parameter, element).
  void initialise(std::int64_t member, std::uint64_t seed);
  /// Call after writing to `weights()`: brings the bf16 copy up to date.
  void weights_changed();

  // -- a pass: gather or write the input, forward, loss, backward ----------------------------------------------------

  /// Passes compute members first … first + count - 1 from now on; at first all of them. Parameters, counters, masks and
  /// gradients handed to a pass begin with the first of these.
  void select(std::int64_t first, std::int64_t count);

  /// Draws the next batch (offset < 0) or rows offset, offset + 1, … into the input and labels.
  void load_input(const data_source& data, const member_counters* counters, std::int64_t offset, std::int64_t rows);

  struct pass {
    std::int64_t rows = 0;
    bool training = true;          ///< batch statistics and dropout
    bool move_statistics = true;   ///< training only: batch normalisation's running statistics follow
    bool dropout = false;          ///< training only: some member's rate is not 0
    const member_params* params = nullptr;
    member_counters* counters = nullptr;
    const std::uint8_t* active = nullptr;
  };
  /// Computes the logits of the loaded input, without the last layer's bias.
  void forward(const pass& p);
  /// After `forward`: adds the mean loss and the number of right answers to the counters.
  void loss(const pass& p);
  /// Instead of `loss`: does the same and computes the gradient of the mean loss.
  void backward(const pass& p, const gradient_target& to);

  /// Multiplications and additions of one training step of one example in matrix products (2 per multiply-add).
  double flops_per_example() const noexcept;
  std::uint64_t memory_bytes() const noexcept;

private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

} // namespace troupe::gpu
