#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/gpu/context.hpp"
#include "troupe/gpu/ops.hpp"

namespace troupe::gpu {

/// Operands of matrix products. bf16: weights have a bf16 copy for the products, sums, weights and optimizer are fp32.
enum class precision_kind : std::uint8_t { fp32, bf16 };
std::string_view to_string(precision_kind x) noexcept;

/// A named array that a model learns or keeps: weights, and the likes of batch normalisation's running statistics.
struct parameter {
  std::string name;                ///< "weights.dense0.weight", "statistics.dense0.mean"
  std::vector<std::int64_t> shape; ///< of a matrix: in x out
  std::int64_t offset = 0;         ///< of the first element in a member's weights, or in its statistics
  std::int64_t size = 0;
  std::int64_t fan_in = 0;         ///< > 0: starts uniform in ±1/sqrt(fan_in), as PyTorch's layers; 0: starts at `initial`
  float initial = 0;
};

/// What a model remembers, as numbers: first all matrices, whose gradients are products, then all vectors (biases, gains).
/// Each begins at a multiple of 64 bytes.
struct model_layout {
  std::vector<parameter> weights;
  std::vector<parameter> statistics; ///< moved by forward passes, not by the optimizer
  std::int64_t matrix_size = 0;      ///< floats at the weights' beginning that hold matrices
  std::int64_t size = 0;             ///< floats of all weights, gaps included
  std::int64_t statistics_size = 0;
  precision_kind precision = precision_kind::fp32;

  /// Each returns the offset. `name` goes without "weights." or "statistics.". All matrices come before the first vector,
  /// else `std::logic_error`.
  std::int64_t add_matrix(std::string_view name, std::vector<std::int64_t> shape, std::int64_t fan_in, float initial = 0);
  std::int64_t add_vector(std::string_view name, std::int64_t size, std::int64_t fan_in, float initial = 0);
  /// As a vector, of more than one dimension: an array whose gradient is no product.
  std::int64_t add_table(std::string_view name, std::vector<std::int64_t> shape, std::int64_t fan_in, float initial = 0);
  /// Statistics of `arrays` names lie one after the other without a gap, so that one operation can move them.
  std::int64_t add_statistics(const std::vector<std::string>& names, std::int64_t size, const std::vector<float>& initial);

private:
  std::int64_t add_weight(std::string_view name, std::vector<std::int64_t> shape, std::int64_t fan_in, float initial);
};

/// Where the members of a pass keep what they remember. Member k's weights are `layout().size` floats from weights + k * stride
/// on, and so on. Device memory.
struct member_state {
  float* weights = nullptr;
  float* statistics = nullptr;
  std::int64_t stride = 0;     ///< floats from member to member, of weights and of statistics
  bf16* low = nullptr;         ///< the bf16 copy of the weights, at the same offsets; null with fp32
  std::int64_t low_stride = 0;
};

/// Where `model::backward` puts gradients, laid out like the weights. Products of layer inputs and errors are *added* to
/// `product_scale` times what `products` holds, so plain SGD's momentum needs no pass of its own: hand in the momentum and its
/// factor.
struct gradient_target {
  float* products = nullptr;       ///< for parameters below `matrix_size`
  std::int64_t product_stride = 0; ///< floats from member to member
  float product_scale = 0;
  float* vectors = nullptr;        ///< for all others; overwritten
  std::int64_t vector_stride = 0;
};

/// Memory of n elements for each lane.
template <class T>
struct lane_memory {
  T* data = nullptr;
  std::int64_t stride = 0; ///< elements from lane to lane

  explicit operator bool() const { return data != nullptr; }
  /// The first rows x cols elements of each lane, from element `from` on.
  mat<T> view(std::int64_t rows, std::int64_t cols, std::int64_t from = 0) const {
    return {data + from, rows, cols, cols, stride};
  }
  vec<T> flat(std::int64_t n, std::int64_t from = 0) const { return {data + from, n, stride}; }
};

/// An architecture, as Troupe's operations compute it for several members at once. Derive from it to have optimizers, schedules,
/// data, checkpoints, evaluation and fusion for a model of one's own (`training_group`, `model_workload.hpp`); `network` is
/// Troupe's own.
///
/// A model has no weights: whoever trains keeps its members' states and says before each pass whose they are. What it has is a
/// workspace (inputs, activations, errors) of `lanes` places, and the k-th member of a pass works in the k-th. Nothing in the
/// workspace outlives a pass, so members that take turns share it. All memory is taken when the model is made.
///
/// The rules that fusion rests on: a member's results are a function of its own state, parameters and counters, never of the
/// other members or of its place among them; members that are not `active` may be computed, but nothing of theirs beyond the
/// workspace and the gradients is written. Operations of ops.hpp keep both. Belongs to one context and its thread.
class model {
public:
  virtual ~model() = default;
  model(const model&) = delete;
  model& operator=(const model&) = delete;

  const model_layout& layout() const noexcept { return layout_; }
  std::int64_t lanes() const noexcept { return lanes_; } ///< the most members of a pass
  std::int64_t rows() const noexcept { return rows_; }   ///< the most examples a pass may have
  std::uint64_t memory_bytes() const noexcept;           ///< of the workspace

  /// The least examples that a training step needs.
  virtual std::int64_t least_batch() const noexcept { return 1; }
  /// Enqueues the making of fresh weights and statistics, `size` and `statistics_size` zeros before, in device memory: every number is
  /// a function of (seed, parameter, element), and the same on every device.
  virtual void initialise(float* weights, float* statistics, std::uint64_t seed) const;

  // -- a pass: select, load_input, forward, then loss or backward ----------------------------------------------------

  struct pass {
    std::int64_t rows = 0;
    bool training = true;          ///< batch statistics and dropout
    bool move_statistics = true;   ///< training only: running statistics follow
    bool dropout = false;          ///< training only: some member's rate is not 0. It changes nothing for one whose rate is 0
    const member_params* params = nullptr;
    member_counters* counters = nullptr;
    const std::uint8_t* active = nullptr;
  };
  /// Passes compute so many members from now on, at most `lanes`. Parameters, counters, masks and gradients handed to a pass
  /// begin with the first of these.
  void select(const member_state& where, std::int64_t members);

  /// Draws the next batch (offset < 0) or rows offset, offset + 1, … into the workspace.
  virtual void load_input(const data_source& data, const member_counters* counters, std::int64_t offset,
                          std::int64_t rows) = 0;
  /// Computes the outputs of the loaded input.
  virtual void forward(const pass& p) = 0;
  /// After `forward`: adds the mean loss and the number of right answers to the counters.
  virtual void loss(const pass& p) = 0;
  /// Instead of `loss`: does the same and computes the gradient of the mean loss.
  virtual void backward(const pass& p, const gradient_target& to) = 0;

protected:
  /// Throws `std::invalid_argument` for less than 1 lane or row.
  model(context& ctx, model_layout layout, std::int64_t lanes, std::int64_t rows);

  /// Workspace of `n` elements a lane, lanes 64 bytes aligned. Throws `out_of_memory`. For constructors.
  template <class T>
  lane_memory<T> take(std::int64_t n) {
    constexpr std::int64_t line = 64 / static_cast<std::int64_t>(sizeof(T));
    const auto stride = (n + line - 1) / line * line;
    return {static_cast<T*>(take_bytes(static_cast<std::size_t>(stride * lanes_) * sizeof(T))), stride};
  }

  context& ctx() const noexcept { return ctx_; }
  const member_state& state() const noexcept { return state_; } ///< of the members selected
  std::int64_t members() const noexcept { return members_; }    ///< of a pass

private:
  void* take_bytes(std::size_t n);

  context& ctx_;
  model_layout layout_;
  std::int64_t lanes_, rows_;
  std::vector<buffer> buffers_;
  member_state state_;
  std::int64_t members_ = 0;
};

/// Makes a model with so many lanes and rows; called again when a group needs another number of lanes. A function of nothing
/// else: all its models are the same.
using model_factory = std::function<std::unique_ptr<model>(context&, std::int64_t lanes, std::int64_t rows)>;

} // namespace troupe::gpu
