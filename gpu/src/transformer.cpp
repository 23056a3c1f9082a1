#include "troupe/gpu/transformer.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <type_traits>

#include "transformer_layout.hpp"

namespace troupe::gpu {

using internal::transformer_layer;

namespace {

constexpr float norm_epsilon = 1e-5F; // as PyTorch's layers

/// What a layer remembers of a forward pass, a row for each token. `_low`: the bf16 copies that products read.
struct layer_state {
  lane_memory<float> input;  ///< of the layer: what its first normalisation reads
  lane_memory<float> middle; ///< after attention: what its second normalisation reads
  lane_memory<float> stats1, stats2;
  lane_memory<float> normed1, normed2;
  lane_memory<bf16> normed1_low, normed2_low;
  lane_memory<float> qkv;
  lane_memory<float> attention; ///< texts x heads x length x length: how much each token takes of each
  lane_memory<float> mixed;     ///< what attention gives, heads side by side
  lane_memory<bf16> mixed_low;
  lane_memory<float> linear;    ///< before GELU
  lane_memory<float> active;    ///< after it
  lane_memory<bf16> active_low;
};

} // namespace

struct transformer::impl {
  transformer& self;
  context& ctx;
  transformer_spec spec;
  internal::transformer_layout plan;
  std::int64_t width, hidden, heads, length;

  lane_memory<std::int32_t> tokens, lengths, labels;
  std::vector<layer_state> layers;
  lane_memory<float> output, output_stats, output_normed; ///< of the last layer, and its normalisation
  lane_memory<float> pooled, logits;
  lane_memory<bf16> pooled_low;
  lane_memory<float> branch; ///< what a layer's part adds; backward: the error by it
  // Backward.
  lane_memory<float> error;  ///< by the stream that runs through all layers
  lane_memory<float> wide;   ///< by hidden units, or by queries, keys and values
  lane_memory<float> scores; ///< by attention
  lane_memory<bf16> error_low;

  impl(transformer& owner, transformer_spec s)
    : self(owner), ctx(owner.ctx()), spec(s), plan(internal::make_layout(s)), width(s.width), hidden(s.hidden), heads(s.heads),
      length(s.length) {
    const auto rows = self.rows(), n = rows * length, d = width;
    tokens = self.take<std::int32_t>(n);
    lengths = self.take<std::int32_t>(rows);
    labels = self.take<std::int32_t>(rows);
    for (std::int64_t i = 0; i < spec.layers; ++i) {
      auto& l = layers.emplace_back();
      l.input = self.take<float>(n * d);
      l.middle = self.take<float>(n * d);
      l.stats1 = self.take<float>(n * 2);
      l.stats2 = self.take<float>(n * 2);
      l.normed1 = self.take<float>(n * d);
      l.normed2 = self.take<float>(n * d);
      l.qkv = self.take<float>(n * 3 * d);
      l.attention = self.take<float>(rows * heads * length * length);
      l.mixed = self.take<float>(n * d);
      l.linear = self.take<float>(n * hidden);
      if (!uses_bf16()) {
        l.active = self.take<float>(n * hidden);
        continue;
      }
      l.normed1_low = self.take<bf16>(n * d);
      l.normed2_low = self.take<bf16>(n * d);
      l.mixed_low = self.take<bf16>(n * d);
      l.active_low = self.take<bf16>(n * hidden);
    }
    output = self.take<float>(n * d);
    output_stats = self.take<float>(n * 2);
    output_normed = self.take<float>(n * d);
    pooled = self.take<float>(rows * d);
    logits = self.take<float>(rows * spec.classes);
    branch = self.take<float>(n * d);
    error = self.take<float>(n * d);
    wide = self.take<float>(n * std::max(hidden, 3 * d));
    scores = self.take<float>(rows * heads * length * length);
    if (uses_bf16()) {
      pooled_low = self.take<bf16>(rows * d);
      error_low = self.take<bf16>(std::max(n * std::max(hidden, 3 * d), rows * spec.classes));
    }
  }

  bool uses_bf16() const { return spec.precision == precision_kind::bf16; }
  std::int64_t members() const { return self.members(); }
  bool drops(const pass& p) const { return p.training && p.dropout; }
  /// The places where dropout draws, in the order of the forward pass.
  static std::uint32_t site(std::size_t layer, int part) { return static_cast<std::uint32_t>(1 + 2 * layer) + static_cast<std::uint32_t>(part); }

  // -- weights and gradients -----------------------------------------------------------------------------------------

  template <class T>
  mat<const T> matrix(std::int64_t at, std::int64_t rows, std::int64_t cols) const {
    const auto& s = self.state();
    if constexpr (std::is_same_v<T, bf16>)
      return {s.low + at, rows, cols, cols, s.low_stride};
    else
      return {s.weights + at, rows, cols, cols, s.stride};
  }
  vec<const float> vector(std::int64_t at, std::int64_t n) const { return {self.state().weights + at, n, self.state().stride}; }
  static mat<float> product_gradient(const gradient_target& to, std::int64_t at, std::int64_t rows, std::int64_t cols) {
    return {to.products + at, rows, cols, cols, to.product_stride};
  }
  static vec<float> vector_gradient(const gradient_target& to, std::int64_t at, std::int64_t n) {
    return {to.vectors + at, n, to.vector_stride};
  }
  static mat<float> table_gradient(const gradient_target& to, std::int64_t at, std::int64_t rows, std::int64_t cols) {
    return {to.vectors + at, rows, cols, cols, to.vector_stride};
  }

  // -- linear layers -------------------------------------------------------------------------------------------------

  /// y = x W, of n rows; x in both precisions, as far as they are there.
  void linear(const lane_memory<float>& x, const lane_memory<bf16>& low, std::int64_t weight, std::int64_t n, std::int64_t in,
              std::int64_t out, const lane_memory<float>& y) {
    if (uses_bf16())
      gemm(ctx, members(), false, false, 1, low.view(n, in), matrix<bf16>(weight, in, out), 0, y.view(n, out));
    else
      gemm(ctx, members(), false, false, 1, x.view(n, in), matrix<float>(weight, in, out), 0, y.view(n, out));
  }

  /// From the error d by y, of which `error_low` has the bf16 copy: the weights' gradient and the error by x.
  void linear_backward(const lane_memory<float>& x, const lane_memory<bf16>& low, std::int64_t weight, std::int64_t n,
                       std::int64_t in, std::int64_t out, const lane_memory<float>& d, const lane_memory<float>& dx,
                       const gradient_target& to) {
    const auto gradient = product_gradient(to, weight, in, out);
    if (uses_bf16()) {
      const auto e = error_low.view(n, out);
      gemm(ctx, members(), true, false, 1, low.view(n, in), e, to.product_scale, gradient);
      gemm(ctx, members(), false, true, 1, e, matrix<bf16>(weight, in, out), 0, dx.view(n, in));
    } else {
      const auto e = d.view(n, out);
      gemm(ctx, members(), true, false, 1, x.view(n, in), e, to.product_scale, gradient);
      gemm(ctx, members(), false, true, 1, e, matrix<float>(weight, in, out), 0, dx.view(n, in));
    }
  }

  /// Takes the bias' gradient from the error d and, with bf16, its copy for products.
  void bias_backward(const lane_memory<float>& d, std::int64_t n, std::int64_t cols, std::int64_t bias, const gradient_target& to) {
    const auto db = vector_gradient(to, bias, cols);
    const auto e = d.view(n, cols);
    if (uses_bf16())
      act_backward(ctx, members(), activation::none, e, mat<const float>{}, error_low.view(n, cols), db);
    else
      act_backward(ctx, members(), activation::none, e, mat<const float>{}, e, db);
  }

  void low_copy(const lane_memory<float>& x, const lane_memory<bf16>& low, std::int64_t n) {
    if (uses_bf16())
      to_bf16(ctx, members(), x.flat(n), low.flat(n));
  }

  void norm(const lane_memory<float>& x, std::int64_t gain, std::int64_t shift, const lane_memory<float>& y,
            const lane_memory<float>& stats, std::int64_t n) {
    layer_norm(ctx, members(), x.view(n, width), vector(gain, width), vector(shift, width), norm_epsilon, y.view(n, width),
               stats.view(n, 2));
  }

  /// dy and dx may be the same.
  void norm_backward(const lane_memory<float>& dy, const lane_memory<float>& x, std::int64_t gain, std::int64_t shift,
                     const lane_memory<float>& stats, const lane_memory<float>& dx, std::int64_t n, const gradient_target& to) {
    layer_norm_backward(ctx, members(), dy.view(n, width), x.view(n, width), vector(gain, width), stats.view(n, 2),
                        dx.view(n, width), vector_gradient(to, gain, width), vector_gradient(to, shift, width));
  }

  // -- attention -----------------------------------------------------------------------------------------------------

  /// Queries (0), keys (1) or values (2) in the rows that one product with the weights made.
  mat_grid<float> part_of(const lane_memory<float>& qkv, int part) const {
    const auto head = width / heads;
    return {qkv.data + part * width, length, head, 3 * width, head, length * 3 * width, qkv.stride};
  }
  mat_grid<float> heads_of(const lane_memory<float>& x) const {
    const auto head = width / heads;
    return {x.data, length, head, width, head, length * width, x.stride};
  }
  mat_grid<float> grid_of(const lane_memory<float>& x) const {
    return {x.data, length, length, length, length * length, heads * length * length, x.stride};
  }
  mat<float> lines_of(const lane_memory<float>& x, std::int64_t texts) const { return x.view(texts * heads * length, length); }
  float scale() const { return 1 / std::sqrt(static_cast<float>(width / heads)); }

  void attend(layer_state& l, std::int64_t texts) {
    const auto k = members();
    gemm_grid(ctx, k, texts, heads, false, true, 1, part_of(l.qkv, 0), part_of(l.qkv, 1), grid_of(l.attention));
    const auto lines = lines_of(l.attention, texts);
    softmax(ctx, k, scale(), lines, lengths.flat(texts), lines);
    gemm_grid(ctx, k, texts, heads, false, false, 1, grid_of(l.attention), part_of(l.qkv, 2), heads_of(l.mixed));
  }

  /// From the error by `mixed`, in `branch`, to that by queries, keys and values, in `wide`.
  void attend_backward(layer_state& l, std::int64_t texts) {
    const auto k = members();
    const auto d = heads_of(branch);
    gemm_grid(ctx, k, texts, heads, true, false, 1, grid_of(l.attention), d, part_of(wide, 2));
    gemm_grid(ctx, k, texts, heads, false, true, 1, d, part_of(l.qkv, 2), grid_of(scores));
    const auto lines = lines_of(scores, texts);
    softmax_backward(ctx, k, scale(), lines, lines_of(l.attention, texts), lines);
    gemm_grid(ctx, k, texts, heads, false, false, 1, grid_of(scores), part_of(l.qkv, 1), part_of(wide, 0));
    gemm_grid(ctx, k, texts, heads, true, false, 1, grid_of(scores), part_of(l.qkv, 0), part_of(wide, 1));
  }

  // -- passes --------------------------------------------------------------------------------------------------------

  /// to = from + dropout(branch + bias)
  void join(const pass& p, std::uint32_t at, std::int64_t bias, const lane_memory<float>& from, const lane_memory<float>& to,
            std::int64_t n) {
    const auto b = branch.view(n, width);
    auto add = vector(bias, width);
    if (drops(p)) {
      bias_act(ctx, members(), activation::none, b, add, b);
      dropout(ctx, members(), b, p.params, p.counters, at, b);
      add = {};
    }
    add_residual(ctx, members(), b, add, from.view(n, width), to.view(n, width));
  }

  void forward(const pass& p) {
    const auto k = members(), n = p.rows * length;
    const auto first = layers.front().input.view(n, width);
    embed(ctx, k, tokens.view(p.rows, length), matrix<float>(plan.tokens, spec.vocabulary, width),
          matrix<float>(plan.positions, length, width), first);
    if (drops(p))
      dropout(ctx, k, first, p.params, p.counters, 0, first);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      auto& l = layers[i];
      const auto& w = plan.layers[i];
      norm(l.input, w.gain1, w.shift1, l.normed1, l.stats1, n);
      low_copy(l.normed1, l.normed1_low, n * width);
      linear(l.normed1, l.normed1_low, w.qkv, n, width, 3 * width, l.qkv);
      const auto qkv = l.qkv.view(n, 3 * width);
      bias_act(ctx, k, activation::none, qkv, vector(w.qkv_bias, 3 * width), qkv);
      attend(l, p.rows);
      low_copy(l.mixed, l.mixed_low, n * width);
      linear(l.mixed, l.mixed_low, w.projection, n, width, width, branch);
      join(p, site(i, 0), w.projection_bias, l.input, l.middle, n);

      norm(l.middle, w.gain2, w.shift2, l.normed2, l.stats2, n);
      low_copy(l.normed2, l.normed2_low, n * width);
      linear(l.normed2, l.normed2_low, w.up, n, width, hidden, l.linear);
      const auto x = l.linear.view(n, hidden);
      bias_act(ctx, k, activation::none, x, vector(w.up_bias, hidden), x);
      if (uses_bf16())
        bias_act<bf16>(ctx, k, activation::gelu, x, {}, l.active_low.view(n, hidden));
      else
        bias_act<float>(ctx, k, activation::gelu, x, {}, l.active.view(n, hidden));
      linear(l.active, l.active_low, w.down, n, hidden, width, branch);
      join(p, site(i, 1), w.down_bias, l.middle, i + 1 < layers.size() ? layers[i + 1].input : output, n);
    }
    norm(output, plan.gain, plan.shift, output_normed, output_stats, n);
    mean_tokens(ctx, k, output_normed.view(n, width), lengths.flat(p.rows), pooled.view(p.rows, width));
    low_copy(pooled, pooled_low, p.rows * width);
    linear(pooled, pooled_low, plan.output, p.rows, width, spec.classes, logits);
  }

  /// The error by a part's sum, before its dropout: in `error` itself, or its masked copy in `copy`.
  const lane_memory<float>& masked(const pass& p, std::uint32_t at, const lane_memory<float>& copy, std::int64_t n) {
    if (!drops(p))
      return error;
    dropout(ctx, members(), error.view(n, width), p.params, p.counters, at, copy.view(n, width));
    return copy;
  }

  /// `error` passes a part by; what comes back through it, in `branch`, is added.
  void rejoin(std::int64_t n) {
    axpy(ctx, members(), 1, branch.flat(n * width), error.flat(n * width));
  }

  void backward(const pass& p, const gradient_target& to) {
    const auto k = members(), n = p.rows * length;
    backward_head(p, to);
    for (std::size_t i = layers.size(); i-- > 0;) {
      auto& l = layers[i];
      const auto& w = plan.layers[i];
      const auto& by_sum2 = masked(p, site(i, 1), branch, n);
      bias_backward(by_sum2, n, width, w.down_bias, to);
      linear_backward(l.active, l.active_low, w.down, n, hidden, width, by_sum2, wide, to);
      const auto d = wide.view(n, hidden);
      const mat<const float> x = l.linear.view(n, hidden);
      if (uses_bf16())
        act_backward(ctx, k, activation::gelu, d, x, error_low.view(n, hidden), vector_gradient(to, w.up_bias, hidden));
      else
        act_backward(ctx, k, activation::gelu, d, x, d, vector_gradient(to, w.up_bias, hidden));
      linear_backward(l.normed2, l.normed2_low, w.up, n, width, hidden, wide, branch, to);
      norm_backward(branch, l.middle, w.gain2, w.shift2, l.stats2, branch, n, to);
      rejoin(n);

      const auto& by_sum1 = masked(p, site(i, 0), wide, n);
      bias_backward(by_sum1, n, width, w.projection_bias, to);
      linear_backward(l.mixed, l.mixed_low, w.projection, n, width, width, by_sum1, branch, to);
      attend_backward(l, p.rows);
      bias_backward(wide, n, 3 * width, w.qkv_bias, to);
      linear_backward(l.normed1, l.normed1_low, w.qkv, n, width, 3 * width, wide, branch, to);
      norm_backward(branch, l.input, w.gain1, w.shift1, l.stats1, branch, n, to);
      rejoin(n);
    }
    const auto d = error.view(n, width);
    if (drops(p))
      dropout(ctx, k, d, p.params, p.counters, 0, d);
    embed_backward(ctx, k, tokens.view(p.rows, length), d, table_gradient(to, plan.tokens, spec.vocabulary, width),
                   table_gradient(to, plan.positions, length, width));
  }

  /// Softmax and cross-entropy, the last layer, the mean and the last normalisation: to the error by `output`, in `error`.
  void backward_head(const pass& p, const gradient_target& to) {
    const auto k = members(), n = p.rows * length;
    const auto& d = wide; // room for the error by the logits, then by the mean
    const auto bias = vector(plan.output_bias, spec.classes);
    const auto db = vector_gradient(to, plan.output_bias, spec.classes);
    const auto y = logits.view(p.rows, spec.classes);
    if (uses_bf16())
      softmax_cross_entropy(ctx, k, y, bias, labels.flat(p.rows), p.params, error_low.view(p.rows, spec.classes), db, p.counters,
                            p.active);
    else
      softmax_cross_entropy(ctx, k, y, bias, labels.flat(p.rows), p.params, y, db, p.counters, p.active);
    linear_backward(pooled, pooled_low, plan.output, p.rows, width, spec.classes, logits, d, to);
    mean_tokens_backward(ctx, k, d.view(p.rows, width), lengths.flat(p.rows), branch.view(n, width));
    norm_backward(branch, output, plan.gain, plan.shift, output_stats, error, n, to);
  }
};

transformer::transformer(context& ctx, transformer_spec spec, std::int64_t lanes, std::int64_t rows)
  : model(ctx, internal::make_layout(spec), lanes, rows), impl_(std::make_unique<impl>(*this, spec)) {
}

transformer::~transformer() = default;

model_factory transformer::factory(transformer_spec spec) {
  return [spec](context& ctx, std::int64_t lanes, std::int64_t rows) { return std::make_unique<transformer>(ctx, spec, lanes, rows); };
}

const transformer_spec& transformer::spec() const noexcept {
  return impl_->spec;
}

void transformer::load_input(const data_source& data, const member_counters* counters, std::int64_t offset, std::int64_t n) {
  auto& m = *impl_;
  if (data.tokens == nullptr || data.features != m.length || n > rows())
    throw std::invalid_argument("transformer: the data are no texts of " + std::to_string(m.length)
                                + " tokens, or the number of rows does not fit");
  gather_tokens(ctx(), members(), data, counters, offset, m.tokens.view(n, m.length), m.lengths.flat(n), m.labels.flat(n));
}

void transformer::forward(const pass& p) {
  impl_->forward(p);
}

void transformer::loss(const pass& p) {
  auto& m = *impl_;
  softmax_cross_entropy<float>(ctx(), members(), m.logits.view(p.rows, m.spec.classes), m.vector(m.plan.output_bias, m.spec.classes),
                               m.labels.flat(p.rows), p.params, {}, {}, p.counters, p.active);
}

void transformer::backward(const pass& p, const gradient_target& to) {
  impl_->backward(p, to);
}

double transformer::flops_per_example() const noexcept {
  const auto& s = impl_->spec;
  const auto d = static_cast<double>(s.width), t = static_cast<double>(s.length);
  const auto layer = t * (4 * d * d + 2 * d * static_cast<double>(s.hidden)) + 2 * t * t * d;
  return 2 * 3 * (static_cast<double>(s.layers) * layer + d * static_cast<double>(s.classes));
}

} // namespace troupe::gpu
