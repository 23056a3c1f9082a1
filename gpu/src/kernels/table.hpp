#pragma once

#include "kernels/cross_entropy.hpp"
#include "kernels/draw.hpp"
#include "kernels/dropout.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/gather.hpp"
#include "kernels/images.hpp"
#include "kernels/normalization.hpp"
#include "kernels/optimizer.hpp"
#include "kernels/products.hpp"
#include "kernels/sequences.hpp"

namespace troupe::gpu::internal::TROUPE_KERNELS {

constexpr kernel_table make_table(const char* name, bool wants_many) {
  kernel_table t{};
  t.name = name;
  t.wants_many = wants_many;
  t.bias_act_f32 = bias_act<float>;
  t.bias_act_bf16 = bias_act<bf16>;
  t.act_backward_f32_f32 = act_backward<float, float>;
  t.act_backward_f32_bf16 = act_backward<float, bf16>;
  t.act_backward_bf16_f32 = act_backward<bf16, float>;
  t.act_backward_bf16_bf16 = act_backward<bf16, bf16>;
  t.cross_entropy_f32 = softmax_cross_entropy<float>;
  t.cross_entropy_bf16 = softmax_cross_entropy<bf16>;
  t.dropout = dropout;
  t.layer_norm = layer_norm;
  t.layer_norm_backward = layer_norm_backward;
  t.batch_norm = batch_norm;
  t.batch_norm_inference = batch_norm_inference;
  t.batch_norm_backward = batch_norm_backward;
  t.im2col = im2col;
  t.col2im = col2im;
  t.max_pool = max_pool;
  t.max_pool_backward = max_pool_backward;
  t.begin_step = begin_step;
  t.end_step = end_step;
  t.gradient_norm = gradient_norm;
  t.sgd = sgd;
  t.sgd_apply = sgd_apply;
  t.adamw = adamw;
  t.gather_f32 = gather<float>;
  t.gather_bf16 = gather<bf16>;
  t.gather_tokens = gather_tokens;
  t.gemm_grid = gemm_grid;
  t.embed = embed;
  t.embed_backward = embed_backward;
  t.softmax = softmax;
  t.softmax_backward = softmax_backward;
  t.mean_tokens = mean_tokens;
  t.mean_tokens_backward = mean_tokens_backward;
  t.add_residual = add_residual;
  t.draw_uniform = draw_uniform;
  t.fill = fill;
  t.axpy = axpy;
  t.to_bf16 = convert<float, bf16>;
  t.to_float = convert<bf16, float>;
  return t;
}

} // namespace troupe::gpu::internal::TROUPE_KERNELS
