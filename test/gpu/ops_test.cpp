#include "gpu/ops_fixture.hpp"
#include "gpu/ops_reference.hpp"

using namespace ops_test;
using ops_reference::numbers;
using ops_reference::numeric_gradient;

namespace {

numbers activated(activation act, const numbers& x) {
  numbers y;
  for (double v : x)
    y.push_back(act == activation::relu ? ops_reference::relu(v) : act == activation::gelu ? ops_reference::gelu(v) : v);
  return y;
}

constexpr double bf16_tolerance = 1.0 / 256 + 1e-6; // half a unit in the last of 8 bits, and what fp32 adds

template <class Out>
double tolerance_of(double fp32) {
  return std::is_same_v<Out, bf16> ? bf16_tolerance : fp32;
}

const activation all_activations[] = {activation::none, activation::relu, activation::gelu};

template <class Out>
void bias_act_conforms() {
  for (const shape& s : awkward_shapes())
    for (activation act : all_activations)
      for (bool with_bias : {false, true}) {
        const auto x = slab<float>(s.members, s.rows, s.cols, s.pad).random(1, -4, 4);
        const auto bias = slab<float>(s.members, 1, s.cols, s.pad).random(2);
        conform(
            s.text(), s.members, tolerance_of<Out>(1e-6),
            [&](context& ctx, const members_list& who) {
              placed<float> px(ctx, x, who), pb(ctx, bias, who);
              placed<Out> py(ctx, slab<Out>(s.members, s.rows, s.cols, s.pad), who);
              bias_act<Out>(ctx, i64(who.size()), act, px, with_bias ? vec<const float>(pb) : vec<const float>{}, py);
              return outputs().add(py);
            },
            [&](i64 k) {
              numbers v;
              for (i64 r = 0; r < s.rows; ++r)
                for (i64 c = 0; c < s.cols; ++c)
                  v.push_back(double(x.at(k, r, c)) + (with_bias ? double(bias.at(k, 0, c)) : 0.0));
              return activated(act, v);
            });
      }
}

/// Gradients and column sums, as expected of one member.
numbers expected_act_backward(activation act, const slab<float>& dy, const slab<float>& input, i64 k, bool sums) {
  const numbers x = input.values(k), weights = dy.values(k);
  numbers dx = numeric_gradient([&](const numbers& v) { return activated(act, v); }, x, weights);
  if (sums) {
    numbers total(std::size_t(dy.cols));
    for (std::size_t i = 0; i < dx.size(); ++i)
      total[i % total.size()] += dx[i];
    dx.insert(dx.end(), total.begin(), total.end());
  }
  return dx;
}

template <class S, class Out>
void act_backward_conforms() {
  for (const shape& s : small_shapes())
    for (activation act : all_activations)
      for (bool sums : {false, true}) {
        const auto dy = slab<float>(s.members, s.rows, s.cols, s.pad).random(3, -1, 1);
        // Inputs that bf16 holds exactly, away from relu's kink.
        const auto input = slab<float>(s.members, s.rows, s.cols, s.pad).set([](i64 k, i64 r, i64 c) {
          return double((k * 31 + r * 17 + c * 7) % 23 - 11) / 4 + 0.125;
        });
        slab<S> saved(s.members, s.rows, s.cols, s.pad);
        for (i64 k = 0; k < s.members; ++k)
          for (i64 r = 0; r < s.rows; ++r)
            for (i64 c = 0; c < s.cols; ++c) {
              const float v = act == activation::relu ? std::max(0.0f, input.at(k, r, c)) : input.at(k, r, c);
              if constexpr (std::is_same_v<S, bf16>) {
                std::uint32_t u;
                std::memcpy(&u, &v, sizeof u);
                saved.at(k, r, c) = bf16(u >> 16);
              } else
                saved.at(k, r, c) = v;
            }
        conform(
            s.text(), s.members, tolerance_of<Out>(1e-5),
            [&](context& ctx, const members_list& who) {
              placed<float> pdy(ctx, dy, who), pdb(ctx, slab<float>(s.members, 1, s.cols, s.pad), who);
              placed<S> ps(ctx, saved, who);
              placed<Out> pdx(ctx, slab<Out>(s.members, s.rows, s.cols, s.pad), who);
              act_backward<S, Out>(ctx, i64(who.size()), act, pdy, ps, pdx, sums ? vec<float>(pdb) : vec<float>{});
              outputs out;
              out.add(pdx);
              if (sums)
                out.add(pdb);
              return out;
            },
            [&](i64 k) { return expected_act_backward(act, dy, input, k, sums); });
      }
}

} // namespace

TEST_CASE("ops: say when no GPU takes part") { report_missing_gpu(); }

TEST_CASE("ops: all cases of a process share one context a device") {
  auto& first = devices();
  const auto* ctx = first.front().ctx.get();
  CHECK(&devices() == &first);
  CHECK(devices().front().ctx.get() == ctx);
}

TEST_CASE("bias_act adds the bias and applies the activation in fp32") { bias_act_conforms<float>(); }
TEST_CASE("bias_act adds the bias and applies the activation in bf16") { bias_act_conforms<bf16>(); }

TEST_CASE("bias_act works in place") {
  for (const shape& s : awkward_shapes()) {
    const auto x = slab<float>(s.members, s.rows, s.cols, s.pad).random(1);
    conform(
        s.text(), s.members, 1e-6,
        [&](context& ctx, const members_list& who) {
          placed<float> px(ctx, x, who);
          bias_act<float>(ctx, i64(who.size()), activation::relu, px, {}, px);
          return outputs().add(px);
        },
        [&](i64 k) { return activated(activation::relu, x.values(k)); });
  }
}

TEST_CASE("activations let NaN and infinity through") {
  slab<float> x(1, 1, 20);
  x.set([](i64, i64, i64 c) { return c % 3 == 0 ? NAN : c % 3 == 1 ? INFINITY : 100.0 * double(c); });
  for (activation act : all_activations)
    conform(
        "special values", 1, 1e-6,
        [&](context& ctx, const members_list& who) {
          placed<float> px(ctx, x, who);
          bias_act<float>(ctx, 1, act, px, {}, px);
          return outputs().add(px);
        },
        [&](i64) { return x.values(0); });
}

TEST_CASE("act_backward agrees with finite differences in fp32") { act_backward_conforms<float, float>(); }
TEST_CASE("act_backward agrees with finite differences from fp32 to bf16") { act_backward_conforms<float, bf16>(); }
TEST_CASE("act_backward agrees with finite differences from bf16 to fp32") { act_backward_conforms<bf16, float>(); }
TEST_CASE("act_backward agrees with finite differences in bf16") { act_backward_conforms<bf16, bf16>(); }

TEST_CASE("act_backward sums columns of any height in place") {
  for (const shape& s : awkward_shapes()) {
    const auto dy = slab<float>(s.members, s.rows, s.cols, s.pad).random(3, -1, 1);
    const auto input = slab<float>(s.members, s.rows, s.cols, s.pad).random(4, -2, 2, 0.05);
    conform(
        s.text(), s.members, 2e-5,
        [&](context& ctx, const members_list& who) {
          placed<float> pdy(ctx, dy, who), ps(ctx, input, who), pdb(ctx, slab<float>(s.members, 1, s.cols, s.pad), who);
          act_backward<float, float>(ctx, i64(who.size()), activation::relu, pdy, ps, pdy, pdb);
          return outputs().add(pdy).add(pdb);
        },
        [&](i64 k) {
          numbers dx, sums(std::size_t(s.cols));
          for (i64 r = 0; r < s.rows; ++r)
            for (i64 c = 0; c < s.cols; ++c) {
              dx.push_back(input.at(k, r, c) > 0 ? double(dy.at(k, r, c)) : 0.0);
              sums[std::size_t(c)] += dx.back();
            }
          dx.insert(dx.end(), sums.begin(), sums.end());
          return dx;
        });
  }
}

#if !defined(__SANITIZE_THREAD__)
TEST_CASE("column sums that are split among blocks are the same sums") {
  const i64 members = 2, rows = 5003, cols = 3;
  const auto dy = slab<float>(members, rows, cols, 1).random(3, -1, 1);
  slot_options o;
  o.device = find_devices().devices.front();
  context ctx(o);
  placed<float> pdy(ctx, dy, everyone(members)), sums(ctx, slab<float>(members, 1, cols, 2), everyone(members));
  std::vector<float> scratch(10000);
  for (std::size_t room : {std::size_t(0), std::size_t(30), scratch.size()}) { // none, for five splits, for more than make sense
    const internal::launch_target on{nullptr, scratch.data(), i64(room), "test"};
    cuda_emulation::table().act_backward_f32_f32(on, {members, activation::none, pdy, {}, pdy, sums});
    for (i64 k = 0; k < members; ++k) {
      numbers want(static_cast<std::size_t>(cols));
      for (i64 r = 0; r < rows; ++r)
        for (i64 c = 0; c < cols; ++c)
          want[std::size_t(c)] += double(dy.at(k, r, c));
      check_near(sums.back().values(k), want, 1e-5);
    }
  }
  CHECK(scratch[0] != 0);
}
#endif

namespace {

std::vector<i64> labels_of(const slab<std::int32_t>& labels, i64 k) {
  std::vector<i64> v;
  for (i64 r = 0; r < labels.cols; ++r)
    v.push_back(labels.at(k, 0, r));
  return v;
}

outputs& add_counters(outputs& out, const std::vector<member_counters>& counters) {
  out.members.resize(counters.size());
  for (std::size_t k = 0; k < counters.size(); ++k)
    for (double v : {double(counters[k].loss_sum), double(counters[k].loss_count), double(counters[k].correct),
                     double(counters[k].not_finite)})
      out.members[k].push_back(v);
  return out;
}

template <class Out>
void cross_entropy_conforms(const std::vector<shape>& shapes, bool with_bias) {
  for (const shape& s : shapes) {
    const auto logits = slab<float>(s.members, s.rows, s.cols, s.pad).random(5, -5, 5);
    const auto bias = slab<float>(s.members, 1, s.cols, s.pad).random(6);
    const auto labels = slab<std::int32_t>(s.members, 1, s.rows, s.pad).set([&](i64 k, i64, i64 r) {
      return (k + r * 7) % s.cols;
    });
    std::vector<member_params> params(std::size_t(s.members));
    std::vector<member_counters> counters(params.size());
    for (std::size_t k = 0; k < params.size(); ++k) {
      params[k].label_smoothing = k % 2 == 0 ? 0.0f : 0.1f;
      counters[k].loss_sum = 1;
      counters[k].correct = 5;
    }
    conform(
        s.text(), s.members, tolerance_of<Out>(5e-6),
        [&](context& ctx, const members_list& who) {
          placed<float> pl(ctx, logits, who), pb(ctx, bias, who), pdb(ctx, slab<float>(s.members, 1, s.cols, s.pad), who);
          placed<std::int32_t> pt(ctx, labels, who);
          placed<Out> pd(ctx, slab<Out>(s.members, s.rows, s.cols, s.pad), who);
          placed_structs<member_params> pp(ctx, params, who);
          placed_structs<member_counters> pc(ctx, counters, who);
          softmax_cross_entropy<Out>(ctx, i64(who.size()), pl, with_bias ? vec<const float>(pb) : vec<const float>{},
                                     pt, pp.get(), pd, pdb, pc.get(), nullptr);
          outputs out;
          out.add(pd).add(pdb);
          return add_counters(out, pc.back());
        },
        [&](i64 k) {
          const double smoothing = double(params[std::size_t(k)].label_smoothing);
          const auto loss = [&](const numbers& z) {
            return numbers{ops_reference::cross_entropy(z, s.rows, s.cols, labels_of(labels, k), smoothing)};
          };
          numbers z = logits.values(k);
          for (std::size_t i = 0; with_bias && i < z.size(); ++i)
            z[i] += double(bias.at(k, 0, i64(i) % s.cols));
          numbers want = numeric_gradient(loss, z, {1}), sums(std::size_t(s.cols));
          for (std::size_t i = 0; i < z.size(); ++i)
            sums[i % sums.size()] += want[i];
          want.insert(want.end(), sums.begin(), sums.end());
          i64 correct = 5;
          const double mean =
              ops_reference::cross_entropy(z, s.rows, s.cols, labels_of(labels, k), smoothing, &correct);
          want.insert(want.end(), {1 + mean, 1, double(correct), 0});
          return want;
        });
  }
}

} // namespace

TEST_CASE("softmax_cross_entropy gives loss and gradients in fp32") {
  auto shapes = small_shapes();
  shapes.push_back({3, 16, 10, 0});
  shapes.push_back({1, 2, 67, 0});
  cross_entropy_conforms<float>(shapes, true);
  cross_entropy_conforms<float>(small_shapes(), false);
}

TEST_CASE("softmax_cross_entropy gives loss and gradients in bf16") { cross_entropy_conforms<bf16>(small_shapes(), true); }

TEST_CASE("softmax_cross_entropy without gradients only counts and leaves inactive members alone") {
  const auto logits = slab<float>(3, 4, 3).random(1);
  const auto labels = slab<std::int32_t>(3, 1, 4).set([](i64, i64, i64 r) { return r % 3; });
  for (device_under_test& d : devices()) {
    placed<float> pl(*d.ctx, logits, everyone(3));
    placed<std::int32_t> pt(*d.ctx, labels, everyone(3));
    placed_structs<member_params> pp(*d.ctx, std::vector<member_params>(3), everyone(3));
    placed_structs<member_counters> pc(*d.ctx, std::vector<member_counters>(3), everyone(3));
    placed_structs<std::uint8_t> active(*d.ctx, {1, 0, 1}, everyone(3));
    for (int i = 0; i < 2; ++i)
      softmax_cross_entropy<float>(*d.ctx, 3, pl, {}, pt, pp.get(), {}, {}, pc.get(), active.get());
    const auto c = pc.back();
    CHECK(c[0].loss_count == 2);
    CHECK(c[1].loss_count == 0);
    CHECK(c[1].loss_sum == 0.0f);
    CHECK(c[2].loss_count == 2);
    CHECK(near(double(c[2].loss_sum), 2 * ops_reference::cross_entropy(logits.values(2), 4, 3, {0, 1, 2, 0}, 0), 1e-6));
  }
}

TEST_CASE("softmax_cross_entropy stays finite for huge logits and flags what is not finite") {
  slab<float> logits(5, 2, 3);
  logits.set([](i64, i64, i64 c) { return c == 0 ? 1e30 : -1e30; });
  logits.at(1, 0, 1) = NAN;
  logits.at(2, 1, 1) = INFINITY;
  slab<std::int32_t> labels(5, 1, 2);
  labels.set([](i64 k, i64, i64) { return k == 3 ? 3 : k == 4 ? -1 : 0; });
  for (device_under_test& d : devices()) {
    CAPTURE(d.name);
    placed<float> pl(*d.ctx, logits, everyone(5));
    placed<std::int32_t> pt(*d.ctx, labels, everyone(5));
    placed_structs<member_params> pp(*d.ctx, std::vector<member_params>(5), everyone(5));
    placed_structs<member_counters> pc(*d.ctx, std::vector<member_counters>(5), everyone(5));
    placed<float> pd(*d.ctx, slab<float>(5, 2, 3), everyone(5));
    softmax_cross_entropy<float>(*d.ctx, 5, pl, {}, pt, pp.get(), pd, {}, pc.get(), nullptr);
    const auto c = pc.back();
    CHECK(c[0].not_finite == 0);
    CHECK(c[0].correct == 2);
    CHECK(c[0].loss_sum == 0.0f);
    for (double v : pd.back().values(0))
      CHECK(std::isfinite(v));
    for (int k = 1; k < 5; ++k)
      CHECK(c[std::size_t(k)].not_finite == 1);
  }
}

TEST_CASE("a model whose logits are all equal is right as often as the first class is") {
  slab<float> logits(1, 10, 10);
  logits.set([](i64, i64, i64) { return 0.5; });
  const auto labels = slab<std::int32_t>(1, 1, 10).set([](i64, i64, i64 r) { return r; });
  for (device_under_test& d : devices()) {
    placed<float> pl(*d.ctx, logits, {0});
    placed<std::int32_t> pt(*d.ctx, labels, {0});
    placed_structs<member_params> pp(*d.ctx, std::vector<member_params>(1), {0});
    placed_structs<member_counters> pc(*d.ctx, std::vector<member_counters>(1), {0});
    softmax_cross_entropy<float>(*d.ctx, 1, pl, {}, pt, pp.get(), {}, {}, pc.get(), nullptr);
    CHECK(pc.back()[0].correct == 1);
  }
}

TEST_CASE("drawn numbers are those of a random stream on every device") {
  for (device_under_test& d : devices())
    for (const i64 n : {1, 2, 3, 31, 32, 33, 63, 64, 65, 1000, 4097}) {
      INFO(d.name << ", " << n << " numbers");
      const double lo = n % 2 != 0 ? -0.125 : -3e-4, hi = n % 2 != 0 ? 0.125 : 7.7;
      const auto size = std::size_t(n);
      std::vector<float> want(size + 8, 17.0f), got(want);
      troupe::core::random_stream rng(9 + std::uint64_t(n), "init.weights", std::uint64_t(n) << 33 | 5);
      for (std::size_t i = 0; i < size; ++i)
        want[i] = float(rng.uniform(lo, hi));
      const auto x = d.ctx->allocate_of<float>(got.size());
      d.ctx->upload(x.data(), std::span<const float>(got));
      draw_uniform(*d.ctx, 9 + std::uint64_t(n), "init.weights", std::uint64_t(n) << 33 | 5, lo, hi, {x.as<float>(), n, n});
      d.ctx->download(got.data(), x.data(), x.size());
      CHECK(got == want); // and nothing beyond
    }
}

TEST_CASE("a range that is empty or not finite is refused") {
  context ctx{[] {
    slot_options o;
    o.device = find_devices().devices.front();
    return o;
  }()};
  const auto x = ctx.allocate_of<float>(4);
  const vec<float> v{x.as<float>(), 4, 4};
  CHECK_THROWS_AS(draw_uniform(ctx, 1, "p", 0, 1.0, 1.0, v), std::invalid_argument);
  CHECK_THROWS_AS(draw_uniform(ctx, 1, "p", 0, -1e308, 1e308, v), std::invalid_argument);
  draw_uniform(ctx, 1, "p", 0, 0.0, 1.0, {nullptr, 0, 0});
}

TEST_CASE("fill and axpy cover exactly their vectors") {
  for (const shape& s : awkward_shapes()) {
    const auto x = slab<float>(s.members, 1, s.cols, s.pad).random(1), y = slab<float>(s.members, 1, s.cols, s.pad).random(2);
    conform(
        s.text(), s.members, 1e-6,
        [&](context& ctx, const members_list& who) {
          placed<float> px(ctx, x, who), py(ctx, y, who), pf(ctx, x, who);
          fill(ctx, i64(who.size()), pf, 2.5f);
          axpy(ctx, i64(who.size()), -0.75f, px, py);
          return outputs().add(pf).add(py);
        },
        [&](i64 k) {
          numbers want(std::size_t(s.cols), 2.5);
          for (i64 c = 0; c < s.cols; ++c)
            want.push_back(double(y.at(k, 0, c)) - 0.75 * double(x.at(k, 0, c)));
          return want;
        });
  }
}

TEST_CASE("every bf16 survives the way to float and back") {
  slab<bf16> x(1, 1, 65536);
  x.set([](i64, i64, i64 c) { return c; });
  for (device_under_test& d : devices()) {
    CAPTURE(d.name);
    placed<bf16> px(*d.ctx, x, {0}), py(*d.ctx, slab<bf16>(1, 1, 65536), {0});
    placed<float> pf(*d.ctx, slab<float>(1, 1, 65536), {0});
    to_float(*d.ctx, 1, px, pf);
    to_bf16(*d.ctx, 1, pf, py);
    const auto y = py.back();
    i64 changed = 0;
    for (i64 c = 0; c < 65536; ++c) {
      const bool nan = (c & 0x7fff) > 0x7f80;
      changed += nan ? !std::isnan(to_value(y.at(0, 0, c))) : y.at(0, 0, c) != bf16(c);
    }
    CHECK(changed == 0);
  }
}

TEST_CASE("rounding to bf16 goes to the nearest and ties to even") {
  const float from[] = {1.0f, 1.00390625f /* tie, down */, 1.01171875f /* tie, up */, 1.003906369f, -1.00390625f, 3.4e38f, 1e-40f};
  const float want[] = {1.0f, 1.0f, 1.015625f, 1.0078125f, -1.0f, INFINITY, 0};
  slab<float> x(1, 1, 7);
  x.set([&](i64, i64, i64 c) { return from[c]; });
  for (device_under_test& d : devices()) {
    placed<float> px(*d.ctx, x, {0});
    placed<bf16> py(*d.ctx, slab<bf16>(1, 1, 7), {0});
    to_bf16(*d.ctx, 1, px, py);
    const auto y = py.back();
    for (int i = 0; i < 6; ++i)
      CHECK(to_value(y.at(0, 0, i)) == want[i]);
    CHECK(to_value(y.at(0, 0, 6)) == doctest::Approx(1e-40f));
  }
}
