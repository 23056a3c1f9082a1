#include "gpu/ops_fixture.hpp"

#include <stdexcept>

// Wrong use: every operation says its name, the argument at fault and the shapes.
using namespace ops_test;

namespace {

struct fixture {
  context ctx{[] {
    slot_options o;
    o.device = find_devices().devices.front();
    return o;
  }()};
  buffer memory = ctx.allocate(1 << 16);
  float* data = memory.as<float>();
  bf16* h = memory.as<bf16>();
  std::int32_t* i = memory.as<std::int32_t>();
  std::uint8_t* b = memory.as<std::uint8_t>();
  member_params* p = memory.as<member_params>();
  member_counters* c = memory.as<member_counters>();

  mat<float> m(i64 rows, i64 cols) const { return mat<float>::dense(data, rows, cols); }
  vec<float> v(i64 n) const { return {data, n, n}; }
};

template <class F>
void check_refused(const F& f, const std::string& op, const std::string& detail) {
  try {
    f();
    FAIL_CHECK(op << " accepted wrong arguments");
  } catch (const std::invalid_argument& e) {
    const std::string text = e.what();
    CHECK_MESSAGE(text.rfind(op + ": ", 0) == 0, text);
    CHECK_MESSAGE(text.find(detail) != std::string::npos, text);
  }
}

} // namespace

TEST_CASE_FIXTURE(fixture, "elementwise operations name what does not fit") {
  check_refused([&] { bias_act<float>(ctx, 1, activation::relu, m(2, 3), {}, m(2, 4)); }, "bias_act",
                "y is 2 x 4 (row distance 4, member distance 8), expected 2 x 3");
  check_refused([&] { bias_act<float>(ctx, 1, activation::relu, m(2, 3), v(2), m(2, 3)); }, "bias_act", "bias is 1 x 2");
  check_refused([&] { bias_act<float>(ctx, 1, activation::relu, {nullptr, 2, 3, 3, 6}, {}, m(2, 3)); }, "bias_act", "x is null");
  check_refused([&] { bias_act<float>(ctx, 1, activation::relu, {data, 2, 3, 2, 6}, {}, m(2, 3)); }, "bias_act", "rows may not overlap");
  check_refused([&] { bias_act<float>(ctx, 2, activation::relu, m(2, 3), {}, {data, 2, 3, 3, 5}); }, "bias_act", "members overlap");
  check_refused([&] { bias_act<float>(ctx, -1, activation::relu, m(2, 3), {}, m(2, 3)); }, "bias_act", "members is -1");
  check_refused([&] { act_backward<float, float>(ctx, 1, activation::gelu, m(2, 3), m(3, 3), m(2, 3), {}); }, "act_backward", "saved is 3 x 3");
  check_refused([&] { act_backward<float, float>(ctx, 1, activation::relu, m(2, 3), m(2, 3), m(2, 3), v(2)); }, "act_backward", "dbias");
  check_refused([&] { axpy(ctx, 1, 1, v(3), v(4)); }, "axpy", "y is 1 x 4");
  check_refused([&] { to_bf16(ctx, 1, v(3), {h, 4, 4}); }, "to_bf16", "expected 1 x 3");
  check_refused([&] { to_float(ctx, 1, vec<const bf16>{h, 3, 3}, v(4)); }, "to_float", "expected 1 x 3");
  check_refused([&] { fill(ctx, 2, {data, 4, 3}, 0); }, "fill", "members overlap");
  check_refused([&] { dropout(ctx, 1, m(2, 2), p, c, 65536, m(2, 2)); }, "dropout", "65536");
  check_refused([&] { dropout(ctx, 1, m(2, 2), nullptr, c, 0, m(2, 2)); }, "dropout", "params is null");
}

TEST_CASE_FIXTURE(fixture, "softmax_cross_entropy names what does not fit") {
  const std::string op = "softmax_cross_entropy";
  const vec<const std::int32_t> labels{i, 2, 2};
  check_refused([&] { softmax_cross_entropy<float>(ctx, 1, m(3, 4), {}, labels, p, {}, {}, c, nullptr); }, op, "labels is 1 x 2");
  check_refused([&] { softmax_cross_entropy<float>(ctx, 1, m(2, 4), v(3), labels, p, {}, {}, c, nullptr); }, op, "bias");
  check_refused([&] { softmax_cross_entropy<float>(ctx, 1, m(2, 4), {}, labels, p, m(2, 5), {}, c, nullptr); }, op, "dlogits");
  check_refused([&] { softmax_cross_entropy<float>(ctx, 1, m(2, 4), {}, labels, p, {}, v(4), c, nullptr); }, op, "dlogits, which is null");
  check_refused([&] { softmax_cross_entropy<float>(ctx, 1, m(2, 4), {}, labels, p, {}, {}, nullptr, nullptr); }, op, "counters is null");
  check_refused([&] { softmax_cross_entropy<float>(ctx, 1, m(0, 4), {}, {i, 0, 0}, p, {}, {}, c, nullptr); }, op, "empty");
}

TEST_CASE_FIXTURE(fixture, "norms name what does not fit") {
  check_refused([&] { layer_norm(ctx, 1, m(2, 3), v(2), v(3), 0, m(2, 3), m(2, 2)); }, "layer_norm", "gain");
  check_refused([&] { layer_norm(ctx, 1, m(2, 3), v(3), v(3), 0, m(2, 3), m(2, 3)); }, "layer_norm", "stats is 2 x 3");
  check_refused([&] { layer_norm_backward(ctx, 1, m(2, 3), m(2, 3), v(3), m(2, 2), m(2, 3), v(3), v(4)); }, "layer_norm_backward", "dbias");
  check_refused([&] { batch_norm(ctx, 1, m(2, 3), v(3), v(3), 0, 0, m(2, 3), m(2, 3), m(3, 3)); }, "batch_norm", "running is 3 x 3");
  check_refused([&] { batch_norm(ctx, 1, m(0, 3), v(3), v(3), 0, 0, m(0, 3), m(2, 3), m(2, 3)); }, "batch_norm", "no rows");
  check_refused([&] { batch_norm_inference(ctx, 1, m(2, 3), v(3), v(3), 0, m(1, 3), m(2, 3)); }, "batch_norm_inference", "running");
  check_refused([&] { batch_norm_backward(ctx, 1, m(2, 3), m(2, 3), v(3), m(3, 3), m(2, 3), v(3), v(3)); }, "batch_norm_backward", "stats is 3 x 3");
}

TEST_CASE_FIXTURE(fixture, "image operations name what does not fit") {
  const conv_shape s{1, 4, 4, 2, 3, 3, 1, 1}, pool{1, 4, 4, 2, 2, 2, 2, 0};
  const mat<std::uint8_t> at = mat<std::uint8_t>::dense(b, 4, 2);
  check_refused([&] { im2col(ctx, 1, s, m(15, 2), m(16, 18)); }, "im2col", "images is 15 x 2");
  check_refused([&] { im2col(ctx, 1, s, m(16, 2), m(16, 17)); }, "im2col", "columns is 16 x 17");
  check_refused([&] { im2col(ctx, 1, s, {data, 16, 2, 3, 48}, m(16, 18)); }, "im2col", "must be dense");
  check_refused([&] { im2col(ctx, 1, {1, 2, 2, 1, 5, 5, 1, 0}, m(4, 1), m(1, 25)); }, "im2col", "does not fit");
  check_refused([&] { im2col(ctx, 1, {1, 2, 2, 1, 1, 1, 0, 0}, m(4, 1), m(4, 1)); }, "im2col", "stride 0");
  check_refused([&] { col2im(ctx, 1, s, m(16, 18), m(16, 3)); }, "col2im", "images is 16 x 3");
  check_refused([&] { max_pool(ctx, 1, s, m(16, 2), m(4, 2), at); }, "max_pool", "padding 1");
  check_refused([&] { max_pool(ctx, 1, pool, m(16, 2), m(4, 3), at); }, "max_pool", "y is 4 x 3");
  check_refused([&] { max_pool(ctx, 1, {1, 17, 17, 1, 17, 17, 1, 0}, m(289, 1), m(1, 1), at); }, "max_pool", "256 places");
  check_refused([&] { max_pool_backward(ctx, 1, pool, m(4, 2), at, m(15, 2)); }, "max_pool_backward", "dx is 15 x 2");
}

TEST_CASE_FIXTURE(fixture, "optimizers and gather name what does not fit") {
  check_refused([&] { begin_step(ctx, 1, nullptr, c, nullptr); }, "begin_step", "params is null");
  check_refused([&] { end_step(ctx, 1, nullptr, nullptr); }, "end_step", "counters is null");
  check_refused([&] { gradient_norm(ctx, 1, v(9), p, c, v(255), nullptr); }, "gradient_norm", "holds 255 floats a member, 256 are needed");
  check_refused([&] { sgd(ctx, 1, v(9), v(8), v(9), p, c, {}, nullptr); }, "sgd", "v is 1 x 8");
  check_refused([&] { sgd(ctx, 1, v(9), v(9), v(9), p, c, {h, 8, 8}, nullptr); }, "sgd", "low is 1 x 8");
  check_refused([&] { sgd_apply(ctx, 1, v(9), v(8), c, {}, nullptr); }, "sgd_apply", "v is 1 x 8");
  check_refused([&] { adamw(ctx, 1, v(9), v(9), v(9), v(8), p, c, {}, nullptr); }, "adamw", "grad is 1 x 8");

  const data_source d{b, nullptr, i, 10, 3, 1, 0};
  check_refused([&] { gather<float>(ctx, 1, d, c, -1, m(2, 4), {}); }, "gather", "x has 4 columns, but an example has 3 features");
  check_refused([&] { gather<float>(ctx, 1, d, c, -1, m(11, 3), {}); }, "gather", "a batch of 11 rows is larger than the data, 10 examples");
  check_refused([&] { gather<float>(ctx, 1, d, nullptr, -1, m(2, 3), {}); }, "gather", "counters is null");
  check_refused([&] { gather<float>(ctx, 1, {b, data, i, 10, 3, 1, 0}, c, -1, m(2, 3), {}); }, "gather", "either images or floats");
  check_refused([&] { gather<float>(ctx, 1, d, c, -1, m(2, 3), {i, 3, 3}); }, "gather", "labels is 1 x 3");
}

TEST_CASE_FIXTURE(fixture, "operations on nothing do nothing") {
  fill(ctx, 0, v(4), 1);
  bias_act<float>(ctx, 1, activation::relu, m(0, 3), {}, m(0, 3));
  gather<float>(ctx, 1, {b, nullptr, nullptr, 10, 3, 1, 0}, c, -1, m(0, 3), {});
  layer_norm(ctx, 1, m(0, 3), v(3), v(3), 0, m(0, 3), m(0, 2));
  sgd(ctx, 1, v(0), v(0), v(0), p, c, {}, nullptr);
  float x = 7;
  ctx.upload(data, &x, sizeof x);
  fill(ctx, 1, v(0), 1);
  ctx.download(&x, data, sizeof x);
  CHECK(x == 7);
}
