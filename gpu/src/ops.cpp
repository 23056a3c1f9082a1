#include "troupe/gpu/ops.hpp"

#include <cmath>
#include <string>
#include <type_traits>

#include "checks.hpp"
#include "kernel_table.hpp"
#include "troupe/core/random.hpp"

// The thread and the shapes are checked here, once for all devices; the context's table does the work.
namespace troupe::gpu {

using internal::checker;
using internal::target_of;

namespace {

template <class T>
constexpr bool is_float = std::is_same_v<T, float>;

} // namespace

template <class Out>
void bias_act(context& ctx, std::int64_t members, activation act, mat<const float> x, vec<const float> bias,
              mat<Out> y) {
  checker check(ctx, "bias_act", members);
  check.in("x", x).sized("y", y, x.rows, x.cols).out("y", y);
  if (bias.data != nullptr)
    check.sized("bias", bias, 1, x.cols);
  const auto& k = ctx.kernels();
  if constexpr (is_float<Out>)
    k.bias_act_f32(target_of(ctx), {members, act, x, bias, y});
  else
    k.bias_act_bf16(target_of(ctx), {members, act, x, bias, y});
}
template void bias_act(context&, std::int64_t, activation, mat<const float>, vec<const float>, mat<float>);
template void bias_act(context&, std::int64_t, activation, mat<const float>, vec<const float>, mat<bf16>);

template <class S, class Out>
void act_backward(context& ctx, std::int64_t members, activation act, mat<const float> dy, mat<const S> saved,
                  mat<Out> dx, vec<float> dbias) {
  checker check(ctx, "act_backward", members);
  check.in("dy", dy).sized("dx", dx, dy.rows, dy.cols).out("dx", dx);
  if (act != activation::none)
    check.sized("saved", saved, dy.rows, dy.cols).in("saved", saved);
  if (dbias.data != nullptr)
    check.sized("dbias", dbias, 1, dy.cols).out("dbias", dbias);
  const auto& k = ctx.kernels();
  const internal::act_backward_args<S, Out> args{members, act, dy, saved, dx, dbias};
  if constexpr (is_float<S> && is_float<Out>)
    k.act_backward_f32_f32(target_of(ctx), args);
  else if constexpr (is_float<S>)
    k.act_backward_f32_bf16(target_of(ctx), args);
  else if constexpr (is_float<Out>)
    k.act_backward_bf16_f32(target_of(ctx), args);
  else
    k.act_backward_bf16_bf16(target_of(ctx), args);
}
template void act_backward(context&, std::int64_t, activation, mat<const float>, mat<const float>, mat<float>,
                           vec<float>);
template void act_backward(context&, std::int64_t, activation, mat<const float>, mat<const float>, mat<bf16>,
                           vec<float>);
template void act_backward(context&, std::int64_t, activation, mat<const float>, mat<const bf16>, mat<float>,
                           vec<float>);
template void act_backward(context&, std::int64_t, activation, mat<const float>, mat<const bf16>, mat<bf16>,
                           vec<float>);

template <class Out>
void softmax_cross_entropy(context& ctx, std::int64_t members, mat<const float> logits, vec<const float> bias,
                           vec<const std::int32_t> labels, const member_params* params, mat<Out> dlogits,
                           vec<float> dbias, member_counters* counters, const std::uint8_t* active) {
  checker check(ctx, "softmax_cross_entropy", members);
  check.in("logits", logits).sized("labels", labels, 1, logits.rows).in("labels", labels);
  check.there("params", params).there("counters", counters);
  check.hold(logits.rows > 0 && logits.cols > 0, [] { return "logits are empty, so their mean loss is undefined"; });
  if (bias.data != nullptr)
    check.sized("bias", bias, 1, logits.cols);
  if (dlogits.data != nullptr)
    check.sized("dlogits", dlogits, logits.rows, logits.cols).out("dlogits", dlogits);
  if (dbias.data != nullptr)
    check.hold(dlogits.data != nullptr, [] { return "dbias is the sum of dlogits, which is null"; })
        .sized("dbias", dbias, 1, logits.cols)
        .out("dbias", dbias);
  const auto& k = ctx.kernels();
  const internal::cross_entropy_args<Out> args{members, logits, bias, labels, params, dlogits, dbias, counters, active};
  if constexpr (is_float<Out>)
    k.cross_entropy_f32(target_of(ctx), args);
  else
    k.cross_entropy_bf16(target_of(ctx), args);
}
template void softmax_cross_entropy(context&, std::int64_t, mat<const float>, vec<const float>,
                                    vec<const std::int32_t>, const member_params*, mat<float>, vec<float>,
                                    member_counters*, const std::uint8_t*);
template void softmax_cross_entropy(context&, std::int64_t, mat<const float>, vec<const float>,
                                    vec<const std::int32_t>, const member_params*, mat<bf16>, vec<float>,
                                    member_counters*, const std::uint8_t*);

void begin_step(context& ctx, std::int64_t members, const member_params* params, member_counters* counters,
                const std::uint8_t* active) {
  checker(ctx, "begin_step", members).there("params", params).there("counters", counters);
  ctx.kernels().begin_step(target_of(ctx), {members, params, counters, active});
}

void end_step(context& ctx, std::int64_t members, member_counters* counters, const std::uint8_t* active) {
  checker(ctx, "end_step", members).there("counters", counters);
  ctx.kernels().end_step(target_of(ctx), {members, nullptr, counters, active});
}

void gradient_norm(context& ctx, std::int64_t members, vec<const float> grad, const member_params* params,
                   member_counters* counters, vec<float> scratch, const std::uint8_t* active) {
  checker check(ctx, "gradient_norm", members);
  check.in("grad", grad).there("params", params).there("counters", counters).out("scratch", scratch);
  check.hold(scratch.size >= 256,
             [&] { return "scratch holds " + std::to_string(scratch.size) + " floats a member, 256 are needed"; });
  ctx.kernels().gradient_norm(target_of(ctx), {members, grad, params, counters, scratch, active});
}

void sgd(context& ctx, std::int64_t members, vec<float> w, vec<float> v, vec<const float> grad,
         const member_params* params, const member_counters* counters, vec<bf16> low, const std::uint8_t* active) {
  checker check(ctx, "sgd", members);
  check.out("w", w).sized("v", v, 1, w.size).out("v", v).sized("grad", grad, 1, w.size).in("grad", grad);
  check.there("params", params).there("counters", counters);
  if (low.data != nullptr)
    check.sized("low", low, 1, w.size).out("low", low);
  ctx.kernels().sgd(target_of(ctx), {members, w, v, grad, params, counters, low, active});
}

void sgd_apply(context& ctx, std::int64_t members, vec<float> w, vec<float> v, const member_counters* counters,
               vec<bf16> low, const std::uint8_t* active) {
  checker check(ctx, "sgd_apply", members);
  check.out("w", w).sized("v", v, 1, w.size).out("v", v).there("counters", counters);
  if (low.data != nullptr)
    check.sized("low", low, 1, w.size).out("low", low);
  ctx.kernels().sgd_apply(target_of(ctx), {members, w, v, counters, low, active});
}

void adamw(context& ctx, std::int64_t members, vec<float> w, vec<float> m, vec<float> v, vec<const float> grad,
           const member_params* params, const member_counters* counters, vec<bf16> low, const std::uint8_t* active) {
  checker check(ctx, "adamw", members);
  check.out("w", w).sized("m", m, 1, w.size).out("m", m).sized("v", v, 1, w.size).out("v", v);
  check.sized("grad", grad, 1, w.size).in("grad", grad).there("params", params).there("counters", counters);
  if (low.data != nullptr)
    check.sized("low", low, 1, w.size).out("low", low);
  ctx.kernels().adamw(target_of(ctx), {members, w, m, v, grad, params, counters, low, active});
}

template <class Out>
void gather(context& ctx, std::int64_t members, const data_source& data, const member_counters* counters,
            std::int64_t offset, mat<Out> x, vec<std::int32_t> labels) {
  checker check(ctx, "gather", members);
  check.out("x", x).hold((data.images != nullptr) != (data.floats != nullptr),
                         [] { return "the data source must have either images or floats"; });
  check.hold(x.cols == data.features, [&] {
    return "x has " + std::to_string(x.cols) + " columns, but an example has " + std::to_string(data.features) +
           " features";
  });
  check.hold(data.examples > 0, [] { return "the data source is empty"; });
  if (labels.data != nullptr)
    check.sized("labels", labels, 1, x.rows).out("labels", labels).there("the data source's labels", data.labels);
  if (offset < 0)
    check.there("counters", counters).hold(x.rows <= data.examples, [&] {
      return "a batch of " + std::to_string(x.rows) + " rows is larger than the data, " +
             std::to_string(data.examples) + " examples";
    });
  if (x.rows == 0)
    return;
  const auto& k = ctx.kernels();
  if constexpr (is_float<Out>)
    k.gather_f32(target_of(ctx), {members, data, counters, offset, x, labels});
  else
    k.gather_bf16(target_of(ctx), {members, data, counters, offset, x, labels});
}
template void gather(context&, std::int64_t, const data_source&, const member_counters*, std::int64_t, mat<float>,
                     vec<std::int32_t>);
template void gather(context&, std::int64_t, const data_source&, const member_counters*, std::int64_t, mat<bf16>,
                     vec<std::int32_t>);

void draw_uniform(context& ctx, std::uint64_t seed, std::string_view purpose, std::uint64_t index, double lo, double hi,
                  vec<float> x) {
  checker check(ctx, "draw_uniform", 1);
  check.out("x", x).hold(lo < hi && std::isfinite(hi - lo), [&] {
    return "the range from " + std::to_string(lo) + " to " + std::to_string(hi) + " is empty or not finite";
  });
  if (x.size > 0)
    ctx.kernels().draw_uniform(target_of(ctx), {core::derive_seed(seed, purpose), index, lo, hi - lo, hi,
                                                std::nextafter(hi, lo), x.data, x.size});
}

void fill(context& ctx, std::int64_t members, vec<float> x, float value) {
  checker(ctx, "fill", members).out("x", x);
  ctx.kernels().fill(target_of(ctx), {members, x, value});
}

void axpy(context& ctx, std::int64_t members, float alpha, vec<const float> x, vec<float> y) {
  checker(ctx, "axpy", members).in("x", x).sized("y", y, 1, x.size).out("y", y);
  ctx.kernels().axpy(target_of(ctx), {members, alpha, x, y});
}

void to_bf16(context& ctx, std::int64_t members, vec<const float> x, vec<bf16> y) {
  checker(ctx, "to_bf16", members).in("x", x).sized("y", y, 1, x.size).out("y", y);
  ctx.kernels().to_bf16(target_of(ctx), {members, x, y});
}

void to_float(context& ctx, std::int64_t members, vec<const bf16> x, vec<float> y) {
  checker(ctx, "to_float", members).in("x", x).sized("y", y, 1, x.size).out("y", y);
  ctx.kernels().to_float(target_of(ctx), {members, x, y});
}

} // namespace troupe::gpu
