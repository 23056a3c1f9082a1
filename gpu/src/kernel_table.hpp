#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "troupe/gpu/device.hpp"
#include "troupe/gpu/ops.hpp"

/// The seam between ops.hpp and the kernels: one function per operation and element type. ops.cpp checks shapes and
/// calls the table of its context; kernels/*.hpp hold the arithmetic, built once per CPU instruction set and once by nvcc.
///
/// To add an operation: declare it in ops.hpp; add its arguments and its entry here; write the functor and its launch
/// wrapper in a header of kernels/ (see kernels/prelude.hpp for the forms); fill the entry in kernels/table.hpp; check
/// shapes in ops*.cpp; add a case against a double reference in test/gpu/.
namespace troupe::gpu::internal {

/// Keeps calls instead of making them: how the CPU captures work (`context::capture`).
class call_recorder {
public:
  virtual void add(std::function<void()> call) = 0;

protected:
  ~call_recorder() = default;
};

/// Where a kernel is enqueued.
struct launch_target {
  void* stream = nullptr;   ///< cudaStream_t; ignored by the CPU
  float* scratch = nullptr; ///< device memory that a kernel may use until it ends, or null
  std::int64_t scratch_floats = 0;
  const char* who = ""; ///< names slot and device in error texts
  call_recorder* record = nullptr; ///< where given, calls go there instead
};

template <class Out>
struct bias_act_args {
  std::int64_t members;
  activation act;
  mat<const float> x;
  vec<const float> bias;
  mat<Out> y;
};

template <class S, class Out>
struct act_backward_args {
  std::int64_t members;
  activation act;
  mat<const float> dy;
  mat<const S> saved;
  mat<Out> dx;
  vec<float> dbias;
};

template <class Out>
struct cross_entropy_args {
  std::int64_t members;
  mat<const float> logits;
  vec<const float> bias;
  vec<const std::int32_t> labels;
  const member_params* params;
  mat<Out> dlogits;
  vec<float> dbias;
  member_counters* counters;
  const std::uint8_t* active;
};

struct dropout_args {
  std::int64_t members;
  mat<const float> x;
  const member_params* params;
  const member_counters* counters;
  std::uint32_t site;
  mat<float> y;
};

/// Layer norm, and batch norm in both its modes. `running` is read at inference and moved in training.
struct norm_args {
  std::int64_t members;
  mat<const float> x;
  vec<const float> gain, bias;
  float eps, rate;
  mat<float> y, stats, running;
  const std::uint8_t* active;
};

struct norm_backward_args {
  std::int64_t members;
  mat<const float> dy, x;
  vec<const float> gain;
  mat<const float> stats;
  mat<float> dx;
  vec<float> dgain, dbias;
};

/// `conv_shape` with its derived sizes filled in, so that kernels call no function of a public header.
struct window {
  std::int64_t n, h, w, c, kh, kw, stride, pad, oh, ow;
};

struct columns_args {
  std::int64_t members;
  window s;
  mat<const float> in;
  mat<float> out;
};

struct max_pool_args {
  std::int64_t members;
  window s;
  mat<const float> x;
  mat<float> y;
  mat<std::uint8_t> argmax;
};

struct max_pool_backward_args {
  std::int64_t members;
  window s;
  mat<const float> dy;
  mat<const std::uint8_t> argmax;
  mat<float> dx;
};

struct step_args {
  std::int64_t members;
  const member_params* params;
  member_counters* counters;
  const std::uint8_t* active;
};

struct gradient_norm_args {
  std::int64_t members;
  vec<const float> grad;
  const member_params* params;
  member_counters* counters;
  vec<float> scratch;
  const std::uint8_t* active;
};

struct sgd_args {
  std::int64_t members;
  vec<float> w, v;
  vec<const float> grad;
  const member_params* params;
  const member_counters* counters;
  vec<bf16> low;
  const std::uint8_t* active;
};

struct sgd_apply_args {
  std::int64_t members;
  vec<float> w, v;
  const member_counters* counters;
  vec<bf16> low;
  const std::uint8_t* active;
};

struct adamw_args {
  std::int64_t members;
  vec<float> w, m, v;
  vec<const float> grad;
  const member_params* params;
  const member_counters* counters;
  vec<bf16> low;
  const std::uint8_t* active;
};

template <class Out>
struct gather_args {
  std::int64_t members;
  data_source data;
  const member_counters* counters;
  std::int64_t offset;
  mat<Out> x;
  vec<std::int32_t> labels;
};

struct gather_tokens_args {
  std::int64_t members;
  data_source data;
  const member_counters* counters;
  std::int64_t offset;
  mat<std::int32_t> tokens;
  vec<std::int32_t> lengths, labels;
};

struct gemm_grid_args {
  std::int64_t members, outer, inner;
  std::int64_t m, n, k;
  bool trans_a, trans_b;
  float alpha;
  mat_grid<const float> a, b;
  mat_grid<float> c;
};

struct embed_args {
  std::int64_t members;
  mat<const std::int32_t> tokens;
  mat<const float> table, positions;
  mat<float> y;
};

struct embed_backward_args {
  std::int64_t members;
  mat<const std::int32_t> tokens;
  mat<const float> dy;
  mat<float> dtable, dpositions;
};

struct softmax_args {
  std::int64_t members;
  float scale;
  mat<const float> x;
  vec<const std::int32_t> lengths;
  mat<float> y;
};

struct softmax_backward_args {
  std::int64_t members;
  float scale;
  mat<const float> dy, y;
  mat<float> dx;
};

/// The mean over a text's tokens, and back: then x is read, or written, n * t rows of it.
struct mean_tokens_args {
  std::int64_t members;
  mat<const float> in;
  vec<const std::int32_t> lengths;
  mat<float> out;
};

struct add_residual_args {
  std::int64_t members;
  mat<const float> x;
  vec<const float> bias;
  mat<const float> residual;
  mat<float> y;
};

/// Of a core::random_stream: its key, its index, its range; `below_hi` is the largest number under `hi`.
struct draw_uniform_args {
  std::uint64_t key, index;
  double lo, width, hi, below_hi;
  float* x;
  std::int64_t n;
};

struct fill_args {
  std::int64_t members;
  vec<float> x;
  float value;
};

struct axpy_args {
  std::int64_t members;
  float alpha;
  vec<const float> x;
  vec<float> y;
};

template <class In, class Out>
struct convert_args {
  std::int64_t members;
  vec<const In> x;
  vec<Out> y;
};

/// A launch wrapper; its arguments are copied where the call is recorded.
template <class Args>
class kernel {
public:
  using function = void (*)(const launch_target&, const Args&);

  constexpr kernel() noexcept = default;
  constexpr kernel(function f) noexcept : f_(f) {}

  void operator()(const launch_target& on, const Args& args) const {
    if (on.record == nullptr)
      return f_(on, args);
    auto later = on;
    later.record = nullptr;
    on.record->add([f = f_, later, args] { f(later, args); });
  }

private:
  function f_ = nullptr;
};

struct kernel_table {
  const char* name;    ///< "cpu_baseline", "cpu_v3", "cpu_v4" or "cuda"
  bool wants_many;     ///< one launch over many members costs hardly more than over one

  kernel<bias_act_args<float>> bias_act_f32;
  kernel<bias_act_args<bf16>> bias_act_bf16;
  kernel<act_backward_args<float, float>> act_backward_f32_f32;
  kernel<act_backward_args<float, bf16>> act_backward_f32_bf16;
  kernel<act_backward_args<bf16, float>> act_backward_bf16_f32;
  kernel<act_backward_args<bf16, bf16>> act_backward_bf16_bf16;
  kernel<cross_entropy_args<float>> cross_entropy_f32;
  kernel<cross_entropy_args<bf16>> cross_entropy_bf16;

  kernel<dropout_args> dropout;
  kernel<norm_args> layer_norm, batch_norm, batch_norm_inference;
  kernel<norm_backward_args> layer_norm_backward, batch_norm_backward;

  kernel<columns_args> im2col, col2im;
  kernel<max_pool_args> max_pool;
  kernel<max_pool_backward_args> max_pool_backward;

  kernel<step_args> begin_step, end_step;
  kernel<gradient_norm_args> gradient_norm;
  kernel<sgd_args> sgd;
  kernel<sgd_apply_args> sgd_apply;
  kernel<adamw_args> adamw;

  kernel<gather_args<float>> gather_f32;
  kernel<gather_args<bf16>> gather_bf16;

  kernel<gather_tokens_args> gather_tokens;
  kernel<gemm_grid_args> gemm_grid;
  kernel<embed_args> embed;
  kernel<embed_backward_args> embed_backward;
  kernel<softmax_args> softmax;
  kernel<softmax_backward_args> softmax_backward;
  kernel<mean_tokens_args> mean_tokens, mean_tokens_backward;
  kernel<add_residual_args> add_residual;

  kernel<draw_uniform_args> draw_uniform;
  kernel<fill_args> fill;
  kernel<axpy_args> axpy;
  kernel<convert_args<float, bf16>> to_bf16;
  kernel<convert_args<bf16, float>> to_float;
};

/// The fastest table that this machine can run. Throws `device_error` for CUDA in a build without it.
const kernel_table& kernels_for(device_kind kind);

/// Every CPU table that this machine can run, slowest first; all but the first use fused multiply-add and give the
/// same results, bit for bit.
std::vector<const kernel_table*> cpu_kernel_tables();

/// The context's stream, and the memory and name that go with it.
launch_target target_of(context& ctx) noexcept;

/// Makes a context use another table of its device, so that a test can run all of them.
struct kernel_override {
  static void use(context& ctx, const kernel_table& table) noexcept;
};

} // namespace troupe::gpu::internal
