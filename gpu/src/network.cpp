#include "troupe/gpu/network.hpp"

#include <algorithm>
#include <stdexcept>

#include "kernel_table.hpp"
#include "network_layout.hpp"

namespace troupe::gpu {

using internal::block;

namespace {

constexpr float norm_epsilon = 1e-5F; // as PyTorch's layers
constexpr float running_rate = 0.1F;

template <class T>
using slab = lane_memory<T>;

/// A block's activations.
struct block_state {
  slab<float> linear;      ///< the product; without normalisation and GELU also the activation
  slab<float> normed;
  slab<float> output;      ///< the activation where `linear` or `normed` must stay, else one of them
  slab<float> stats;
  slab<float> pooled;
  slab<std::uint8_t> argmax;
  slab<bf16> low;          ///< bf16 copy of what goes out, where the next product reads bf16
  bool wrote_low_only = false; ///< in this pass the activation exists as bf16 alone
};

} // namespace

struct network::impl {
  context& ctx;
  network_spec spec;
  internal::layout plan;
  std::int64_t members = 1; ///< that passes compute now
  std::int64_t rows;

  slab<float> weights, running; ///< of these members
  slab<bf16> low;
  slab<float> running_scratch;
  slab<float> input;
  slab<bf16> input_low;
  slab<std::int32_t> labels;
  std::vector<block_state> states;
  slab<float> error[2];   ///< gradients by activations, taking turns
  slab<bf16> error_low;   ///< bf16 copy of the newest for products
  slab<float> columns, column_errors;
  slab<bf16> columns_low;
  slab<float> tile;       ///< one tile's products, or errors by them
  std::int64_t column_budget; ///< bytes of one tile of columns; at least an image is taken

  impl(network& self, network_spec s)
    : ctx(self.ctx()), spec(std::move(s)), plan(internal::make_layout(spec)), rows(self.rows()) {
    column_budget = internal::column_budget(ctx.kernels().wants_many, self.lanes());
    allocate(self);
  }

  bool uses_bf16() const { return spec.precision == precision_kind::bf16; }

  /// ReLU and a bias commute with taking maxima, so they can wait until there are fewer numbers, and what lies before the
  /// pooling need never be whole in memory: both passes go tile by tile.
  bool pools_first(const block& b) const {
    return b.pool > 1 && b.norm == norm_kind::none && spec.act != activation::gelu;
  }

  void allocate(network& self) {
    if (plan.statistics_size > 0) {
      running_scratch = self.take<float>(plan.statistics_size);
      ctx.zero(running_scratch.data, static_cast<std::size_t>(self.lanes() * running_scratch.stride) * sizeof(float));
    }
    labels = self.take<std::int32_t>(rows);
    const bool low_input = uses_bf16() && !plan.blocks.front().is_conv;
    if (low_input)
      input_low = self.take<bf16>(rows * spec.features);
    else
      input = self.take<float>(rows * spec.features);
    std::int64_t largest = 0, largest_product = 0, largest_columns = 0, largest_tile = 0;
    for (std::size_t i = 0; i < plan.blocks.size(); ++i) {
      const auto& b = plan.blocks[i];
      auto& s = states.emplace_back();
      const auto images = b.is_conv ? tile_images(b, rows) : rows;
      if (b.is_conv)
        largest_columns = std::max(largest_columns, images * b.rows * b.inner);
      const auto n = (pools_first(b) ? images : rows) * b.rows * b.cols;
      if (pools_first(b))
        largest_tile = std::max(largest_tile, n);
      else
        s.linear = s.output = self.take<float>(n);
      if (b.norm != norm_kind::none) {
        s.normed = s.output = self.take<float>(n);
        s.stats = self.take<float>(2 * (b.norm == norm_kind::batch ? b.cols : rows * b.rows));
      }
      if (spec.act == activation::gelu && !b.is_head)
        s.output = self.take<float>(n);
      if (b.pool > 1) {
        s.pooled = self.take<float>(rows * b.out_features);
        s.argmax = self.take<std::uint8_t>(rows * b.out_features);
      }
      if (uses_bf16() && !b.is_head && !plan.blocks[i + 1].is_conv)
        s.low = self.take<bf16>(rows * b.out_features);
      largest = std::max({largest, pools_first(b) ? 0 : n, rows * b.out_features, i > 0 ? rows * b.in_features : 0});
      largest_product = std::max(largest_product, n);
    }
    for (auto& e : error)
      e = self.take<float>(largest);
    if (uses_bf16())
      error_low = self.take<bf16>(largest_product);
    if (largest_columns > 0) {
      columns = self.take<float>(largest_columns);
      column_errors = self.take<float>(largest_columns);
      if (uses_bf16())
        columns_low = self.take<bf16>(largest_columns);
    }
    if (largest_tile > 0)
      tile = self.take<float>(largest_tile);
  }

  std::int64_t tile_images(const block& b, std::int64_t n) const {
    const auto bytes = b.rows * (b.inner + b.cols) * static_cast<std::int64_t>(sizeof(float));
    return std::clamp<std::int64_t>(column_budget / bytes, 1, n);
  }

  template <class T>
  mat<const T> weight_of(const block& b) const {
    if constexpr (std::is_same_v<T, bf16>)
      return {low.data + b.weight, b.inner, b.cols, b.cols, low.stride};
    else
      return {weights.data + b.weight, b.inner, b.cols, b.cols, weights.stride};
  }
  vec<const float> vector_of(const block& b, std::int64_t offset) const {
    return {weights.data + offset, b.cols, weights.stride};
  }
  vec<float> vector_gradient(const block& b, std::int64_t offset, const gradient_target& to) const {
    return {to.vectors + offset, b.cols, to.vector_stride};
  }
  mat<float> product_gradient(const block& b, const gradient_target& to) const {
    return {to.products + b.weight, b.inner, b.cols, b.cols, to.product_stride};
  }

  slab<float> block_input(std::size_t i) const {
    if (i == 0)
      return input;
    const auto& s = states[i - 1];
    return s.pooled ? s.pooled : s.output;
  }
  slab<bf16> block_input_low(std::size_t i) const { return i == 0 ? input_low : states[i - 1].low; }

  // -- forward -------------------------------------------------------------------------------------------------------

  void forward_linear(std::size_t i, std::int64_t n) {
    const auto& b = plan.blocks[i];
    const auto out = states[i].linear;
    if (!b.is_conv) {
      if (uses_bf16())
        gemm(ctx, members, false, false, 1, block_input_low(i).view(n, b.inner), weight_of<bf16>(b), 0, out.view(n, b.cols));
      else
        gemm(ctx, members, false, false, 1, block_input(i).view(n, b.inner), weight_of<float>(b), 0, out.view(n, b.cols));
      return;
    }
    const auto step = tile_images(b, n);
    for (std::int64_t at = 0; at < n; at += step) {
      const auto images = std::min(step, n - at), pixels = images * b.rows;
      const auto product = pools_first(b) ? tile.view(pixels, b.cols) : out.view(pixels, b.cols, at * b.rows * b.cols);
      if (make_columns(i, at, images))
        gemm(ctx, members, false, false, 1, columns_low.view(pixels, b.inner), weight_of<bf16>(b), 0, product);
      else
        gemm(ctx, members, false, false, 1, columns.view(pixels, b.inner), weight_of<float>(b), 0, product);
      if (pools_first(b))
        pool_forward(i, product, at, images);
    }
  }

  static conv_shape pool_shape(const block& b, std::int64_t images) {
    auto shape = b.pool_shape;
    shape.n = static_cast<std::int32_t>(images);
    return shape;
  }
  /// Rows of a pooled matrix.
  static std::int64_t pooled_pixels(const block& b, std::int64_t images) {
    return images * b.pool_shape.out_h() * b.pool_shape.out_w();
  }

  void pool_forward(std::size_t i, mat<const float> x, std::int64_t at, std::int64_t images) {
    const auto& b = plan.blocks[i];
    const auto& s = states[i];
    const auto n = pooled_pixels(b, images), first = at * b.out_features;
    max_pool(ctx, members, pool_shape(b, images), x, s.pooled.view(n, b.cols, first), s.argmax.view(n, b.cols, first));
  }

  /// Columns of `images` images from image `at` on; returns whether they are bf16.
  bool make_columns(std::size_t i, std::int64_t at, std::int64_t images) {
    const auto& b = plan.blocks[i];
    auto shape = b.shape;
    shape.n = static_cast<std::int32_t>(images);
    const auto pixels = images * b.rows;
    im2col(ctx, members, shape, block_input(i).view(images * shape.h * shape.w, shape.c, at * b.in_features),
           columns.view(pixels, b.inner));
    if (uses_bf16())
      to_bf16(ctx, members, columns.flat(pixels * b.inner), columns_low.flat(pixels * b.inner));
    return uses_bf16();
  }

  void forward_block(std::size_t i, const pass& p) {
    const auto& b = plan.blocks[i];
    auto& s = states[i];
    forward_linear(i, p.rows);
    if (b.is_head)
      return;
    if (pools_first(b)) {
      const auto y = s.pooled.view(pooled_pixels(b, p.rows), b.cols);
      bias_act(ctx, members, spec.act, y, vector_of(b, b.bias), y);
      low_output(i, p);
      return;
    }
    const auto n = p.rows * b.rows;
    const bool drop = p.training && p.dropout && !b.is_conv;
    s.wrote_low_only = s.low && !drop && !s.pooled;
    auto before = s.linear; // what the activation is applied to
    vec<const float> bias = vector_of(b, b.bias);
    if (b.norm != norm_kind::none) {
      forward_norm(i, p);
      before = s.normed;
      bias = {};
    } else if (spec.act == activation::gelu) {
      bias_act(ctx, members, activation::none, before.view(n, b.cols), bias, before.view(n, b.cols));
      bias = {};
    }
    if (s.wrote_low_only)
      bias_act(ctx, members, spec.act, before.view(n, b.cols), bias, s.low.view(n, b.cols));
    else
      bias_act(ctx, members, spec.act, before.view(n, b.cols), bias, s.output.view(n, b.cols));
    if (drop)
      dropout(ctx, members, s.output.view(n, b.cols), p.params, p.counters, static_cast<std::uint32_t>(i),
              s.output.view(n, b.cols));
    if (s.pooled)
      pool_forward(i, s.output.view(n, b.cols), 0, p.rows);
    low_output(i, p);
  }

  void low_output(std::size_t i, const pass& p) {
    const auto& s = states[i];
    if (!s.low || s.wrote_low_only)
      return;
    const auto out = s.pooled ? s.pooled : s.output;
    const auto n = p.rows * plan.blocks[i].out_features;
    to_bf16(ctx, members, out.flat(n), s.low.flat(n));
  }

  void forward_norm(std::size_t i, const pass& p) {
    const auto& b = plan.blocks[i];
    auto& s = states[i];
    const auto n = p.rows * b.rows;
    const auto x = s.linear.view(n, b.cols), y = s.normed.view(n, b.cols);
    const auto gain = vector_of(b, b.gain), shift = vector_of(b, b.bias);
    if (b.norm == norm_kind::layer) {
      layer_norm(ctx, members, x, gain, shift, norm_epsilon, y, s.stats.view(n, 2));
    } else if (p.training) {
      const auto& moving = p.move_statistics ? running : running_scratch;
      batch_norm(ctx, members, x, gain, shift, norm_epsilon, running_rate, y, s.stats.view(2, b.cols),
                 moving.view(2, b.cols, b.running), p.active);
    } else {
      batch_norm_inference(ctx, members, x, gain, shift, norm_epsilon, running.view(2, b.cols, b.running), y);
    }
  }

  // -- backward ------------------------------------------------------------------------------------------------------

  /// Softmax and cross-entropy; the error by the logits lands in error[0] or error_low.
  void backward_head(const pass& p, const gradient_target& to) {
    const auto& b = plan.blocks.back();
    const auto logits = states.back().linear.view(p.rows, b.cols);
    const auto bias = vector_of(b, b.bias);
    const auto dbias = vector_gradient(b, b.bias, to);
    if (uses_bf16())
      softmax_cross_entropy(ctx, members, logits, bias, labels.flat(p.rows), p.params, error_low.view(p.rows, b.cols), dbias,
                            p.counters, p.active);
    else
      softmax_cross_entropy(ctx, members, logits, bias, labels.flat(p.rows), p.params, error[0].view(p.rows, b.cols), dbias,
                            p.counters, p.active);
  }

  void pool_backward(std::size_t i, const slab<float>& dy, std::int64_t at, std::int64_t images, mat<float> dx) {
    const auto& b = plan.blocks[i];
    const auto n = pooled_pixels(b, images), first = at * b.out_features;
    max_pool_backward(ctx, members, pool_shape(b, images), dy.view(n, b.cols, first), states[i].argmax.view(n, b.cols, first), dx);
  }

  /// From the error by the block's output, in error[at], to the error by its linear product, in error[result] and with bf16 in
  /// error_low.
  int backward_post(std::size_t i, int at, const pass& p, const gradient_target& to) {
    const auto& b = plan.blocks[i];
    const auto& s = states[i];
    if (pools_first(b)) {
      // The rest, from the pooling on, goes tile by tile in backward_conv.
      const auto out = pooled_pixels(b, p.rows);
      const auto d = error[at].view(out, b.cols);
      act_backward(ctx, members, spec.act, d, mat<const float>(s.pooled.view(out, b.cols)), d, vector_gradient(b, b.bias, to));
      return at;
    }
    const auto n = p.rows * b.rows;
    if (s.pooled) {
      pool_backward(i, error[at], 0, p.rows, error[1 - at].view(n, b.cols));
      at = 1 - at;
    }
    const auto d = error[at].view(n, b.cols);
    if (p.training && p.dropout && !b.is_conv)
      dropout(ctx, members, d, p.params, p.counters, static_cast<std::uint32_t>(i), d);
    const bool normed = b.norm != norm_kind::none;
    const auto dbias = normed ? vec<float>{} : vector_gradient(b, b.bias, to);
    const auto pre = normed ? s.normed : s.linear;
    auto through_activation = [&](auto dx) {
      if (spec.act == activation::gelu)
        act_backward(ctx, members, spec.act, d, mat<const float>(pre.view(n, b.cols)), dx, dbias);
      else if (s.wrote_low_only)
        act_backward(ctx, members, spec.act, d, mat<const bf16>(s.low.view(n, b.cols)), dx, dbias);
      else
        act_backward(ctx, members, spec.act, d, mat<const float>(s.output.view(n, b.cols)), dx, dbias);
    };
    if (!normed) {
      if (uses_bf16())
        through_activation(error_low.view(n, b.cols));
      else
        through_activation(d);
      return at;
    }
    through_activation(d);
    const auto x = s.linear.view(n, b.cols), dx = error[1 - at].view(n, b.cols);
    const auto gain = vector_of(b, b.gain);
    const auto dgain = vector_gradient(b, b.gain, to), dshift = vector_gradient(b, b.bias, to);
    if (b.norm == norm_kind::layer)
      layer_norm_backward(ctx, members, d, x, gain, s.stats.view(n, 2), dx, dgain, dshift);
    else
      batch_norm_backward(ctx, members, d, x, gain, s.stats.view(2, b.cols), dx, dgain, dshift);
    if (uses_bf16())
      to_bf16(ctx, members, error[1 - at].flat(n * b.cols), error_low.flat(n * b.cols));
    return 1 - at;
  }

  /// From the error by the linear product to the weights' gradient and the error by the block's input, in error[1 - at].
  void backward_linear(std::size_t i, int at, const pass& p, const gradient_target& to) {
    const auto& b = plan.blocks[i];
    const auto n = p.rows;
    const auto gradient = product_gradient(b, to);
    if (b.is_conv) {
      backward_conv(i, at, p, to);
    } else if (uses_bf16()) {
      const auto d = error_low.view(n, b.cols);
      gemm(ctx, members, true, false, 1, block_input_low(i).view(n, b.inner), d, to.product_scale, gradient);
      if (i > 0)
        gemm(ctx, members, false, true, 1, d, weight_of<bf16>(b), 0, error[1 - at].view(n, b.inner));
    } else {
      const auto d = error[at].view(n, b.cols);
      gemm(ctx, members, true, false, 1, block_input(i).view(n, b.inner), d, to.product_scale, gradient);
      if (i > 0)
        gemm(ctx, members, false, true, 1, d, weight_of<float>(b), 0, error[1 - at].view(n, b.inner));
    }
  }

  void backward_conv(std::size_t i, int at, const pass& p, const gradient_target& to) {
    const auto& b = plan.blocks[i];
    const auto gradient = product_gradient(b, to);
    const auto step = tile_images(b, p.rows);
    for (std::int64_t from = 0; from < p.rows; from += step) {
      const auto images = std::min(step, p.rows - from), pixels = images * b.rows;
      const float scale = from == 0 ? to.product_scale : 1;
      auto d = error[at].view(pixels, b.cols, from * b.rows * b.cols);
      auto d_low = uses_bf16() ? error_low.view(pixels, b.cols, from * b.rows * b.cols) : mat<bf16>{};
      if (pools_first(b)) {
        d = tile.view(pixels, b.cols);
        pool_backward(i, error[at], from, images, d);
        if (uses_bf16()) {
          d_low = error_low.view(pixels, b.cols);
          to_bf16(ctx, members, tile.flat(pixels * b.cols), error_low.flat(pixels * b.cols));
        }
      }
      auto products = [&](auto cols, auto by_product, auto w) {
        gemm(ctx, members, true, false, 1, cols, by_product, scale, gradient);
        if (i > 0)
          gemm(ctx, members, false, true, 1, by_product, w, 0, column_errors.view(pixels, b.inner));
      };
      if (make_columns(i, from, images))
        products(mat<const bf16>(columns_low.view(pixels, b.inner)), mat<const bf16>(d_low), weight_of<bf16>(b));
      else
        products(mat<const float>(columns.view(pixels, b.inner)), mat<const float>(d), weight_of<float>(b));
      if (i > 0) {
        auto shape = b.shape;
        shape.n = static_cast<std::int32_t>(images);
        col2im(ctx, members, shape, column_errors.view(pixels, b.inner),
               error[1 - at].view(images * shape.h * shape.w, shape.c, from * b.in_features));
      }
    }
  }
};

network::network(context& c, network_spec spec, std::int64_t lanes, std::int64_t rows)
  : model(c, internal::make_layout(spec), lanes, rows), impl_(std::make_unique<impl>(*this, std::move(spec))) {
}

network::~network() = default;

model_factory network::factory(network_spec spec) {
  return [spec = std::move(spec)](context& ctx, std::int64_t lanes, std::int64_t rows) {
    return std::make_unique<network>(ctx, spec, lanes, rows);
  };
}

const network_spec& network::spec() const noexcept {
  return impl_->spec;
}
std::int64_t network::least_batch() const noexcept {
  return impl_->spec.norm == norm_kind::batch ? 2 : 1;
}

network::impl& network::here() {
  auto& m = *impl_;
  const auto& s = state();
  m.members = members();
  m.weights = {s.weights, s.stride};
  m.running = {s.statistics, s.stride};
  m.low = {s.low, s.low_stride};
  return m;
}

void network::load_input(const data_source& data, const member_counters* counters, std::int64_t offset, std::int64_t rows) {
  auto& m = here();
  if (data.features != m.spec.features || rows > m.rows)
    throw std::invalid_argument("network: the data's features or the number of rows do not fit the network");
  if (m.input_low)
    gather(m.ctx, m.members, data, counters, offset, m.input_low.view(rows, data.features), m.labels.flat(rows));
  else
    gather(m.ctx, m.members, data, counters, offset, m.input.view(rows, data.features), m.labels.flat(rows));
}

void network::forward(const pass& p) {
  auto& m = here();
  for (std::size_t i = 0; i < m.plan.blocks.size(); ++i)
    m.forward_block(i, p);
}

void network::loss(const pass& p) {
  auto& m = here();
  const auto& head = m.plan.blocks.back();
  softmax_cross_entropy<float>(m.ctx, m.members, m.states.back().linear.view(p.rows, head.cols), m.vector_of(head, head.bias),
                               m.labels.flat(p.rows), p.params, {}, {}, p.counters, p.active);
}

void network::backward(const pass& p, const gradient_target& to) {
  auto& m = here();
  m.backward_head(p, to);
  int at = 0;
  for (std::size_t i = m.plan.blocks.size(); i-- > 0;) {
    if (!m.plan.blocks[i].is_head)
      at = m.backward_post(i, at, p, to);
    m.backward_linear(i, at, p, to);
    at = 1 - at;
  }
}

double network::flops_per_example() const noexcept {
  double sum = 0;
  for (std::size_t i = 0; i < impl_->plan.blocks.size(); ++i) {
    const auto& b = impl_->plan.blocks[i];
    sum += 2.0 * static_cast<double>(b.rows * b.inner * b.cols) * (i == 0 ? 2 : 3);
  }
  return sum;
}

} // namespace troupe::gpu
