#include <string>

#include "checks.hpp"
#include "kernel_table.hpp"

// As ops.cpp, for the operations of convolutional networks.
namespace troupe::gpu {

using internal::checker;
using internal::target_of;

namespace {

/// Checks the window itself; `pooling`: without padding, and its place must fit a byte.
internal::window checked(checker& check, const conv_shape& s, bool pooling) {
  check.hold(s.n >= 0 && s.h > 0 && s.w > 0 && s.c > 0 && s.kh > 0 && s.kw > 0 && s.stride > 0 && s.pad >= 0, [&] {
    return "images of " + std::to_string(s.n) + " x " + std::to_string(s.h) + " x " + std::to_string(s.w) + " x " +
           std::to_string(s.c) + " with a window of " + std::to_string(s.kh) + " x " + std::to_string(s.kw) +
           ", stride " + std::to_string(s.stride) + ", padding " + std::to_string(s.pad) +
           ": sizes must be positive, the padding at least 0";
  });
  check.hold(s.h + 2 * s.pad >= s.kh && s.w + 2 * s.pad >= s.kw, [&] {
    return "a window of " + std::to_string(s.kh) + " x " + std::to_string(s.kw) + " does not fit an image of " +
           std::to_string(s.h) + " x " + std::to_string(s.w) + " with padding " + std::to_string(s.pad);
  });
  if (pooling)
    check.hold(s.pad == 0 && s.kh * s.kw <= 256, [&] {
      return "pooling needs padding 0 and a window of at most 256 places, not padding " + std::to_string(s.pad) +
             " and " + std::to_string(s.kh) + " x " + std::to_string(s.kw);
    });
  return {s.n, s.h, s.w, s.c, s.kh, s.kw, s.stride, s.pad, s.out_h(), s.out_w()};
}

} // namespace

void dropout(context& ctx, std::int64_t members, mat<const float> x, const member_params* params,
             const member_counters* counters, std::uint32_t site, mat<float> y) {
  checker check(ctx, "dropout", members);
  check.in("x", x).sized("y", y, x.rows, x.cols).out("y", y).there("params", params).there("counters", counters);
  check.hold(site < 65536, [&] { return "site is " + std::to_string(site) + ", but must be below 65536"; });
  ctx.kernels().dropout(target_of(ctx), {members, x, params, counters, site, y});
}

namespace {

void check_norm(checker& check, const mat<const float>& x, const vec<const float>& gain, const vec<const float>& bias,
                const mat<float>& y) {
  check.in("x", x).hold(x.cols > 0, [] { return "x has no columns"; });
  check.sized("gain", gain, 1, x.cols).in("gain", gain).sized("bias", bias, 1, x.cols).in("bias", bias);
  check.sized("y", y, x.rows, x.cols).out("y", y);
}

void check_norm_backward(checker& check, const internal::norm_backward_args& a, std::int64_t stats_rows,
                         std::int64_t stats_cols) {
  check.in("x", a.x).hold(a.x.cols > 0, [] { return "x has no columns"; });
  check.sized("dy", a.dy, a.x.rows, a.x.cols).in("dy", a.dy).sized("gain", a.gain, 1, a.x.cols).in("gain", a.gain);
  check.sized("stats", a.stats, stats_rows, stats_cols).in("stats", a.stats);
  check.sized("dx", a.dx, a.x.rows, a.x.cols).out("dx", a.dx);
  check.sized("dgain", a.dgain, 1, a.x.cols).out("dgain", a.dgain);
  check.sized("dbias", a.dbias, 1, a.x.cols).out("dbias", a.dbias);
}

} // namespace

void layer_norm(context& ctx, std::int64_t members, mat<const float> x, vec<const float> gain, vec<const float> bias,
                float eps, mat<float> y, mat<float> stats) {
  checker check(ctx, "layer_norm", members);
  check_norm(check, x, gain, bias, y);
  check.sized("stats", stats, x.rows, 2).out("stats", stats);
  ctx.kernels().layer_norm(target_of(ctx), {members, x, gain, bias, eps, 0, y, stats, {}, nullptr});
}

void layer_norm_backward(context& ctx, std::int64_t members, mat<const float> dy, mat<const float> x,
                         vec<const float> gain, mat<const float> stats, mat<float> dx, vec<float> dgain,
                         vec<float> dbias) {
  checker check(ctx, "layer_norm_backward", members);
  const internal::norm_backward_args args{members, dy, x, gain, stats, dx, dgain, dbias};
  check_norm_backward(check, args, x.rows, 2);
  ctx.kernels().layer_norm_backward(target_of(ctx), args);
}

void batch_norm(context& ctx, std::int64_t members, mat<const float> x, vec<const float> gain, vec<const float> bias,
                float eps, float rate, mat<float> y, mat<float> stats, mat<float> running, const std::uint8_t* active) {
  checker check(ctx, "batch_norm", members);
  check_norm(check, x, gain, bias, y);
  check.hold(x.rows > 0, [] { return "x has no rows, so their mean is undefined"; });
  check.sized("stats", stats, 2, x.cols).out("stats", stats).sized("running", running, 2, x.cols).out("running", running);
  ctx.kernels().batch_norm(target_of(ctx), {members, x, gain, bias, eps, rate, y, stats, running, active});
}

void batch_norm_inference(context& ctx, std::int64_t members, mat<const float> x, vec<const float> gain,
                          vec<const float> bias, float eps, mat<const float> running, mat<float> y) {
  checker check(ctx, "batch_norm_inference", members);
  check_norm(check, x, gain, bias, y);
  check.sized("running", running, 2, x.cols).in("running", running);
  // Read only; the arguments are shared with the mode that writes them.
  const mat<float> read{const_cast<float*>(running.data), running.rows, running.cols, running.ld, running.stride};
  ctx.kernels().batch_norm_inference(target_of(ctx), {members, x, gain, bias, eps, 0, y, {}, read, nullptr});
}

void batch_norm_backward(context& ctx, std::int64_t members, mat<const float> dy, mat<const float> x,
                         vec<const float> gain, mat<const float> stats, mat<float> dx, vec<float> dgain,
                         vec<float> dbias) {
  checker check(ctx, "batch_norm_backward", members);
  const internal::norm_backward_args args{members, dy, x, gain, stats, dx, dgain, dbias};
  check_norm_backward(check, args, 2, x.cols);
  check.hold(x.rows > 0, [] { return "x has no rows, so their mean is undefined"; });
  ctx.kernels().batch_norm_backward(target_of(ctx), args);
}

void im2col(context& ctx, std::int64_t members, const conv_shape& s, mat<const float> images, mat<float> columns) {
  checker check(ctx, "im2col", members);
  const internal::window w = checked(check, s, false);
  check.sized("images", images, w.n * w.h * w.w, w.c).in("images", images);
  check.hold(images.ld == w.c, [&] {
    return "images have " + std::to_string(images.ld) + " numbers from pixel to pixel, but their " +
           std::to_string(w.c) + " channels must be dense";
  });
  check.sized("columns", columns, w.n * w.oh * w.ow, w.kh * w.kw * w.c).out("columns", columns);
  ctx.kernels().im2col(target_of(ctx), {members, w, images, columns});
}

void col2im(context& ctx, std::int64_t members, const conv_shape& s, mat<const float> columns, mat<float> images) {
  checker check(ctx, "col2im", members);
  const internal::window w = checked(check, s, false);
  check.sized("columns", columns, w.n * w.oh * w.ow, w.kh * w.kw * w.c).in("columns", columns);
  check.sized("images", images, w.n * w.h * w.w, w.c).out("images", images);
  ctx.kernels().col2im(target_of(ctx), {members, w, columns, images});
}

void max_pool(context& ctx, std::int64_t members, const conv_shape& s, mat<const float> x, mat<float> y,
              mat<std::uint8_t> argmax) {
  checker check(ctx, "max_pool", members);
  const internal::window w = checked(check, s, true);
  check.sized("x", x, w.n * w.h * w.w, w.c).in("x", x).sized("y", y, w.n * w.oh * w.ow, w.c).out("y", y);
  check.sized("argmax", argmax, w.n * w.oh * w.ow, w.c).out("argmax", argmax);
  ctx.kernels().max_pool(target_of(ctx), {members, w, x, y, argmax});
}

void max_pool_backward(context& ctx, std::int64_t members, const conv_shape& s, mat<const float> dy,
                       mat<const std::uint8_t> argmax, mat<float> dx) {
  checker check(ctx, "max_pool_backward", members);
  const internal::window w = checked(check, s, true);
  check.sized("dy", dy, w.n * w.oh * w.ow, w.c).in("dy", dy).sized("argmax", argmax, w.n * w.oh * w.ow, w.c);
  check.in("argmax", argmax).sized("dx", dx, w.n * w.h * w.w, w.c).out("dx", dx);
  ctx.kernels().max_pool_backward(target_of(ctx), {members, w, dy, argmax, dx});
}

} // namespace troupe::gpu
