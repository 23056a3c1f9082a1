#pragma once

#include <cstdint>
#include <string_view>

#include "troupe/gpu/fwd.hpp"

/// Troupe's operations, each on K members at once.
///
/// A member is one model of a fusion group; a model that trains alone is a group of one. Member k of a matrix lies
/// at `data + k * stride`, so weights of all members form one slab with a padded stride and nothing has to move when
/// models are fused. All operations are enqueued on the context's stream, allocate nothing, and give for member k a
/// result that does not depend on the other members (bit for bit on the CPU). `active`, where given, is a device array
/// of K bytes: a member with 0 is left untouched. All pointers are device memory. Row-major everywhere.
/// Arguments that do not fit throw `std::invalid_argument` with the operation, the argument and its shape.
namespace troupe::gpu {

using bf16 = std::uint16_t; ///< the upper half of a float, rounded to nearest even

template <class T>
struct mat {
  T* data = nullptr;
  std::int64_t rows = 0, cols = 0;
  std::int64_t ld = 0;     ///< elements from row to row, >= cols
  std::int64_t stride = 0; ///< elements from member to member

  /// Dense rows, members one after the other.
  static mat dense(T* p, std::int64_t rows, std::int64_t cols) { return {p, rows, cols, cols, rows * cols}; }
  operator mat<const T>() const { return {data, rows, cols, ld, stride}; }
};

template <class T>
struct vec {
  T* data = nullptr;
  std::int64_t size = 0;
  std::int64_t stride = 0;
  operator vec<const T>() const { return {data, size, stride}; }
};

enum class activation : std::uint8_t { none, relu, gelu /**< tanh form, Hendrycks & Gimpel 2016 */ };

/// A member's hyperparameters as the kernels read them: device memory, one struct per member.
struct alignas(64) member_params {
  float lr = 0.01f, momentum = 0, weight_decay = 0, nesterov = 0; ///< weight decay: coupled (L2) for SGD, decoupled for AdamW
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f;
  float clip_norm = 0;     ///< gradients of larger L2 norm are scaled down to it; 0: off
  float dropout = 0;       ///< probability of a zero
  float label_smoothing = 0;
  float schedule = 0;      ///< 0 constant, 1 step, 2 cosine, 3 linear warm-up then cosine, see `lr_at`
  float schedule_a = 0, schedule_b = 0, schedule_c = 0;
  float reserved[2] = {0, 0};
};
static_assert(sizeof(member_params) == 64);

/// A member's counters in device memory. Everything random is a function of (seed, step, site): no generator state.
struct alignas(64) member_counters {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;       ///< optimizer updates done
  std::uint64_t batch = 0;      ///< batches drawn
  std::uint64_t updates = 0;    ///< that the optimizer's state has seen: `step`, unless that state came from another member
  float lr_now = 0;             ///< of this step, after its schedule
  float bias1 = 1, bias2 = 1;   ///< AdamW's bias corrections of this step
  float grad_scale = 1;         ///< of this step's clipping
  float grad_norm = 0;          ///< L2, before clipping
  float loss_sum = 0;           ///< of batch losses since the last reset
  std::uint32_t loss_count = 0;
  std::uint32_t correct = 0;    ///< of the last softmax_cross_entropy call, summed since reset
  std::uint32_t not_finite = 0; ///< 1 once a loss was not finite
};
static_assert(sizeof(member_counters) == 128);

// -- products ------------------------------------------------------------------------------------------------------

/// C = alpha op(A) op(B) + beta C for each member; op(A) is m x k, op(B) k x n. fp32 in, fp32 out.
void gemm(context& ctx, std::int64_t members, bool trans_a, bool trans_b, float alpha, mat<const float> a, mat<const float> b,
          float beta, mat<float> c);
/// bf16 operands, fp32 sum and result. beta 0 or any.
void gemm(context& ctx, std::int64_t members, bool trans_a, bool trans_b, float alpha, mat<const bf16> a, mat<const bf16> b,
          float beta, mat<float> c);

// -- elementwise and rowwise ---------------------------------------------------------------------------------------

/// y = act(x + bias), bias along the columns; `bias.data` may be null. x and y may be the same.
template <class Out>
void bias_act(context& ctx, std::int64_t members, activation act, mat<const float> x, vec<const float> bias, mat<Out> y);
/// dx = dy * act'(·) and dbias = column sums of dx, before dx is rounded. `saved`: for relu the output y, for gelu the
/// input x + bias, for none anything. `dbias.data` may be null. dy and dx may be the same.
template <class S, class Out>
void act_backward(context& ctx, std::int64_t members, activation act, mat<const float> dy, mat<const S> saved, mat<Out> dx,
                  vec<float> dbias);
/// Mean over the rows of -log softmax(logits + bias)[label], with label smoothing. Adds to each member's loss_sum,
/// loss_count, correct (rows whose first largest logit is the label's), sets not_finite. dlogits (may be null) is the gradient
/// of the mean, and may be logits; dbias (may be null, needs dlogits) the column sums of what dlogits holds. A label outside the columns makes
/// the loss infinite.
template <class Out>
void softmax_cross_entropy(context& ctx, std::int64_t members, mat<const float> logits, vec<const float> bias, vec<const std::int32_t> labels,
                           const member_params* params, mat<Out> dlogits, vec<float> dbias, member_counters* counters,
                           const std::uint8_t* active);
/// y = x * mask / (1 - rate) with rate = params[k].dropout; the mask is Philox4x32-10 at (seed, step, site, element),
/// so the backward pass is the same call on the gradient. site < 2^16; x and y may be the same.
void dropout(context& ctx, std::int64_t members, mat<const float> x, const member_params* params, const member_counters* counters,
             std::uint32_t site, mat<float> y);
/// Per row: y = (x - mean) / sqrt(var + eps) * gain + bias; `stats` receives mean and 1/sqrt per row (2 columns). Here and
/// below x and y may be the same (backward then lacks x), and so may dy and dx.
void layer_norm(context& ctx, std::int64_t members, mat<const float> x, vec<const float> gain, vec<const float> bias, float eps,
                mat<float> y, mat<float> stats);
void layer_norm_backward(context& ctx, std::int64_t members, mat<const float> dy, mat<const float> x, vec<const float> gain,
                         mat<const float> stats, mat<float> dx, vec<float> dgain, vec<float> dbias);
/// Per column over the rows (NHWC images: rows = n*h*w, columns = channels). `stats` as above but per column (2 rows).
/// Training mode also moves running = (1 - rate) running + rate * batch (unbiased variance); `running` has 2 rows.
void batch_norm(context& ctx, std::int64_t members, mat<const float> x, vec<const float> gain, vec<const float> bias, float eps,
                float rate, mat<float> y, mat<float> stats, mat<float> running, const std::uint8_t* active = nullptr);
void batch_norm_inference(context& ctx, std::int64_t members, mat<const float> x, vec<const float> gain, vec<const float> bias,
                          float eps, mat<const float> running, mat<float> y);
void batch_norm_backward(context& ctx, std::int64_t members, mat<const float> dy, mat<const float> x, vec<const float> gain,
                         mat<const float> stats, mat<float> dx, vec<float> dgain, vec<float> dbias);

// -- images: NHWC --------------------------------------------------------------------------------------------------

struct conv_shape {
  std::int32_t n = 0, h = 0, w = 0, c = 0;        ///< input images
  std::int32_t kh = 3, kw = 3, stride = 1, pad = 1;
  std::int32_t out_h() const { return (h + 2 * pad - kh) / stride + 1; }
  std::int32_t out_w() const { return (w + 2 * pad - kw) / stride + 1; }
};
/// columns: (n * out_h * out_w) x (kh * kw * c), zero where the window leaves the image. The images' rows must be dense.
void im2col(context& ctx, std::int64_t members, const conv_shape& s, mat<const float> images, mat<float> columns);
/// The transpose: images (n*h*w x c) = sums of the columns that read each pixel (gathered, so in a fixed order).
void col2im(context& ctx, std::int64_t members, const conv_shape& s, mat<const float> columns, mat<float> images);
/// Window kh x kw of at most 256 places, stride `stride`; `pad` must be 0. `argmax` receives the place in its window
/// (row by row) of each output, the first of equal ones; NaN counts as largest.
void max_pool(context& ctx, std::int64_t members, const conv_shape& s, mat<const float> x, mat<float> y, mat<std::uint8_t> argmax);
void max_pool_backward(context& ctx, std::int64_t members, const conv_shape& s, mat<const float> dy, mat<const std::uint8_t> argmax,
                       mat<float> dx);

// -- optimizers and counters ---------------------------------------------------------------------------------------

/// Before a step: computes lr_now from the schedule at counters.step, AdamW's bias corrections for updates + 1,
/// grad_scale = 1. `lr_at` in lr_schedule.hpp is the same function for the host.
void begin_step(context& ctx, std::int64_t members, const member_params* params, member_counters* counters, const std::uint8_t* active);
/// After a step: step, batch and updates += 1.
void end_step(context& ctx, std::int64_t members, member_counters* counters, const std::uint8_t* active);
/// grad_norm and, where clip_norm > 0, grad_scale = min(1, clip_norm / grad_norm). Sums in a fixed order.
/// `scratch`: at least 256 floats a member.
void gradient_norm(context& ctx, std::int64_t members, vec<const float> grad, const member_params* params, member_counters* counters,
                   vec<float> scratch, const std::uint8_t* active);
/// g' = grad_scale g + weight_decay w; v = momentum v + g'; w -= lr_now (nesterov ? g' + momentum v : v).
/// As torch.optim.SGD with dampening 0. `low` (may be null) receives the bf16 copy of w.
void sgd(context& ctx, std::int64_t members, vec<float> w, vec<float> v, vec<const float> grad, const member_params* params,
         const member_counters* counters, vec<bf16> low, const std::uint8_t* active);
/// w -= lr_now v, for gradients that a product has already added to v (beta = momentum): plain SGD without clipping,
/// decay or Nesterov. On a GPU, subnormal numbers in v become 0: its products keep them.
void sgd_apply(context& ctx, std::int64_t members, vec<float> w, vec<float> v, const member_counters* counters, vec<bf16> low,
               const std::uint8_t* active);
/// AdamW (Loshchilov & Hutter 2019) as torch.optim.AdamW: m, v moments; decoupled decay.
void adamw(context& ctx, std::int64_t members, vec<float> w, vec<float> m, vec<float> v, vec<const float> grad,
           const member_params* params, const member_counters* counters, vec<bf16> low, const std::uint8_t* active);

// -- data ----------------------------------------------------------------------------------------------------------

/// Draws member k's next batch: epoch e = batch / batches_per_epoch, place p = batch % batches_per_epoch, row r takes
/// example permute(seed, e, p * rows + r), a counter-based bijection of [0, examples) (see counter_random.hpp). The last,
/// incomplete batch of an epoch is dropped. x = (pixel * scale) + shift. `offset` >= 0: rows offset, offset + 1, …
/// in order instead (evaluation; rows past the end repeat the last example).
struct data_source {
  const std::uint8_t* images = nullptr; ///< examples x features, or null
  const float* floats = nullptr;        ///< examples x features, or null
  const std::int32_t* labels = nullptr;
  std::int64_t examples = 0, features = 0;
  float scale = 1, shift = 0;
  const std::uint16_t* tokens = nullptr; ///< examples x features, for `gather_tokens`; zeros at an example's end are padding
  std::int64_t member_stride = 0; ///< `offset` >= 0: member k's rows begin k times so many examples later
};
/// Example i is features numbers from i * features; `labels` may be null.
template <class Out>
void gather(context& ctx, std::int64_t members, const data_source& data, const member_counters* counters, std::int64_t offset,
            mat<Out> x, vec<std::int32_t> labels);

/// The same for texts: example i is features tokens from i * features. `lengths` receives the number of tokens up to the last that is
/// not 0, at least 1; `labels` may be null.
void gather_tokens(context& ctx, std::int64_t members, const data_source& data, const member_counters* counters, std::int64_t offset,
                   mat<std::int32_t> tokens, vec<std::int32_t> lengths, vec<std::int32_t> labels);

// -- sequences -----------------------------------------------------------------------------------------------------

/// Row i * t + j of a matrix over n texts of t tokens is token j of text i; `lengths` has n numbers, and tokens of text i from
/// lengths[i] on are padding, which no result depends on. Attention of `heads` heads over n texts takes its matrices as an
/// n x heads grid, so that they can lie interleaved as one product with the weights leaves them.
template <class T>
struct mat_grid {
  T* data = nullptr;
  std::int64_t rows = 0, cols = 0;
  std::int64_t ld = 0;           ///< elements from row to row, >= cols
  std::int64_t inner_stride = 0; ///< from head to head
  std::int64_t outer_stride = 0; ///< from text to text
  std::int64_t stride = 0;       ///< from member to member
  operator mat_grid<const T>() const { return {data, rows, cols, ld, inner_stride, outer_stride, stride}; }
};
/// C = alpha op(A) op(B) for each of outer x inner matrices of each member: small products, many at once. Sums go along the inner
/// dimension in order, the same on CPU and GPU. C's matrices may not overlap.
void gemm_grid(context& ctx, std::int64_t members, std::int64_t outer, std::int64_t inner, bool trans_a, bool trans_b, float alpha,
               mat_grid<const float> a, mat_grid<const float> b, mat_grid<float> c);

/// y[i * t + j] = table[tokens(i, j)] + positions[j]; `table` has a row for each token there is. A token without a row makes NaN.
void embed(context& ctx, std::int64_t members, mat<const std::int32_t> tokens, mat<const float> table, mat<const float> positions,
           mat<float> y);
/// dtable[v]: the sum of dy's rows whose token is v, in their order; dpositions[j]: of token j of all texts. dy's rows must be dense.
void embed_backward(context& ctx, std::int64_t members, mat<const std::int32_t> tokens, mat<const float> dy, mat<float> dtable,
                    mat<float> dpositions);

/// y = softmax(scale * x) along each row, over its first `length` columns; the others become 0. The rows fall into as many equal runs
/// as `lengths` has numbers; without lengths all columns count. x and y may be the same.
void softmax(context& ctx, std::int64_t members, float scale, mat<const float> x, vec<const std::int32_t> lengths, mat<float> y);
/// dx = scale * y * (dy - sum(y * dy)) along each row. dy and dx may be the same.
void softmax_backward(context& ctx, std::int64_t members, float scale, mat<const float> dy, mat<const float> y, mat<float> dx);

/// y[i] = mean of text i's tokens in x, padding left out.
void mean_tokens(context& ctx, std::int64_t members, mat<const float> x, vec<const std::int32_t> lengths, mat<float> y);
void mean_tokens_backward(context& ctx, std::int64_t members, mat<const float> dy, vec<const std::int32_t> lengths, mat<float> dx);

/// y = residual + x + bias, bias along the columns; `bias.data` may be null. y may be x or residual.
void add_residual(context& ctx, std::int64_t members, mat<const float> x, vec<const float> bias, mat<const float> residual,
                  mat<float> y);

// -- small helpers -------------------------------------------------------------------------------------------------

/// x[i] = the i-th number that `core::random_stream(seed, purpose, index).uniform(lo, hi)` gives there, rounded to float: fresh weights
/// are the same on every device. lo < hi, both finite, and so is their difference.
void draw_uniform(context& ctx, std::uint64_t seed, std::string_view purpose, std::uint64_t index, double lo, double hi, vec<float> x);
void fill(context& ctx, std::int64_t members, vec<float> x, float value);
void axpy(context& ctx, std::int64_t members, float alpha, vec<const float> x, vec<float> y); ///< y += alpha x
void to_bf16(context& ctx, std::int64_t members, vec<const float> x, vec<bf16> y);
void to_float(context& ctx, std::int64_t members, vec<const bf16> x, vec<float> y);

} // namespace troupe::gpu
