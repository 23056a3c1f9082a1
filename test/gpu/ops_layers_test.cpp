#include "gpu/ops_fixture.hpp"
#include "gpu/ops_reference.hpp"

#include "troupe/gpu/counter_random.hpp"

using namespace ops_test;
using ops_reference::numbers;
using ops_reference::numeric_gradient;

namespace {

std::vector<member_counters> seeded(i64 members, std::uint64_t step = 3) {
  std::vector<member_counters> c(static_cast<std::size_t>(members));
  for (std::size_t k = 0; k < c.size(); ++k) {
    c[k].seed = 0x123456789abcdefull + k;
    c[k].step = step + k;
  }
  return c;
}

void append(numbers& to, const numbers& from) { to.insert(to.end(), from.begin(), from.end()); }

} // namespace

TEST_CASE("dropout keeps exactly the elements whose random bits say so") {
  for (const shape& s : awkward_shapes()) {
    const auto x = slab<float>(s.members, s.rows, s.cols, s.pad).random(1);
    std::vector<member_params> params(std::size_t(s.members));
    for (std::size_t k = 0; k < params.size(); ++k)
      params[k].dropout = k == 1 ? 0.0f : 0.25f * float(k + 1);
    const auto counters = seeded(s.members);
    for (bool in_place : {false, true})
      conform(
          s.text(), s.members, 1e-6,
          [&](context& ctx, const members_list& who) {
            placed<float> px(ctx, x, who), py(ctx, slab<float>(s.members, s.rows, s.cols, s.pad), who);
            placed_structs<member_params> pp(ctx, params, who);
            placed_structs<member_counters> pc(ctx, counters, who);
            placed<float>& to = in_place ? px : py;
            dropout(ctx, i64(who.size()), px, pp.get(), pc.get(), 7, to);
            return outputs().add(to);
          },
          [&](i64 k) {
            numbers y;
            const double rate = double(params[std::size_t(k)].dropout);
            const auto& c = counters[std::size_t(k)];
            for (i64 r = 0; r < s.rows; ++r)
              for (i64 j = 0; j < s.cols; ++j) {
                const std::uint32_t bits = dropout_bits(c.seed, c.step, 7, std::uint64_t(r * s.cols + j));
                const bool kept = double(bits) >= rate * 4294967296.0 && rate < 1;
                y.push_back(kept ? double(x.at(k, r, j)) / (1 - rate) : 0.0);
              }
            return y;
          });
  }
}

TEST_CASE("dropout hits its rate and differs between seeds and steps and sites") {
  slab<float> ones(1, 100, 100);
  ones.set([](i64, i64, i64) { return 1; });
  for (device_under_test& d : devices()) {
    CAPTURE(d.name);
    std::vector<member_params> params(1);
    params[0].dropout = 0.3f;
    const auto mask = [&](std::uint64_t seed, std::uint64_t step, std::uint32_t site) {
      auto counters = seeded(1, step);
      counters[0].seed = seed;
      placed<float> x(*d.ctx, ones, {0});
      placed_structs<member_params> pp(*d.ctx, params, {0});
      placed_structs<member_counters> pc(*d.ctx, counters, {0});
      dropout(*d.ctx, 1, x, pp.get(), pc.get(), site, x);
      return x.back().values(0);
    };
    const numbers a = mask(1, 1, 1);
    const auto equal_to_a = [&](const numbers& b) {
      double n = 0;
      for (std::size_t i = 0; i < a.size(); ++i)
        n += (a[i] == 0) == (b[i] == 0);
      return n / double(a.size());
    };
    double zeros = 0;
    for (double v : a)
      zeros += v == 0;
    CHECK(zeros / 1e4 == doctest::Approx(0.3).epsilon(0.05)); // more than 3 standard deviations
    CHECK(equal_to_a(mask(1, 1, 1)) == 1.0);
    for (const numbers& other : {mask(2, 1, 1), mask(1, 2, 1), mask(1, 1, 2), mask(1, 1ull << 33, 1)})
      CHECK(equal_to_a(other) == doctest::Approx(0.58).epsilon(0.05)); // 0.3^2 + 0.7^2
  }
}

TEST_CASE("layer_norm normalises each row") {
  for (const shape& s : awkward_shapes()) {
    const auto x = slab<float>(s.members, s.rows, s.cols, s.pad).random(1, 9, 13); // a mean well off 0
    const auto gain = slab<float>(s.members, 1, s.cols, s.pad).random(2), bias = slab<float>(s.members, 1, s.cols, s.pad).random(3);
    conform(
        s.text(), s.members, 2e-5,
        [&](context& ctx, const members_list& who) {
          placed<float> px(ctx, x, who), pg(ctx, gain, who), pb(ctx, bias, who),
              ps(ctx, slab<float>(s.members, s.rows, 2, s.pad), who);
          layer_norm(ctx, i64(who.size()), px, pg, pb, 1e-2f, px, ps);
          return outputs().add(px).add(ps);
        },
        [&](i64 k) {
          numbers stats, y = ops_reference::layer_norm(x.values(k), s.rows, s.cols, gain.values(k), bias.values(k),
                                                       double(1e-2f), &stats);
          append(y, stats);
          return y;
        });
  }
}

TEST_CASE("layer_norm_backward agrees with finite differences") {
  for (const shape& s : small_shapes()) {
    const auto x = slab<float>(s.members, s.rows, s.cols, s.pad).random(1), dy = slab<float>(s.members, s.rows, s.cols, s.pad).random(4);
    const auto gain = slab<float>(s.members, 1, s.cols, s.pad).random(2), bias = slab<float>(s.members, 1, s.cols, s.pad).random(3);
    const double eps = double(1e-2f);
    conform(
        s.text(), s.members, 5e-5,
        [&](context& ctx, const members_list& who) {
          const i64 n = i64(who.size());
          const slab<float> row(s.members, 1, s.cols, s.pad);
          placed<float> px(ctx, x, who), pg(ctx, gain, who), pb(ctx, bias, who), pdy(ctx, dy, who), pdg(ctx, row, who),
              pdb(ctx, row, who), py(ctx, slab<float>(s.members, s.rows, s.cols, s.pad), who),
              ps(ctx, slab<float>(s.members, s.rows, 2, s.pad), who);
          layer_norm(ctx, n, px, pg, pb, float(eps), py, ps);
          layer_norm_backward(ctx, n, pdy, px, pg, ps, pdy, pdg, pdb); // in place
          return outputs().add(pdy).add(pdg).add(pdb);
        },
        [&](i64 k) {
          const numbers w = dy.values(k), vx = x.values(k), vg = gain.values(k), vb = bias.values(k);
          numbers want = numeric_gradient(
              [&](const numbers& v) { return ops_reference::layer_norm(v, s.rows, s.cols, vg, vb, eps); }, vx, w);
          append(want, numeric_gradient(
                           [&](const numbers& v) { return ops_reference::layer_norm(vx, s.rows, s.cols, v, vb, eps); }, vg, w));
          append(want, numeric_gradient(
                           [&](const numbers& v) { return ops_reference::layer_norm(vx, s.rows, s.cols, vg, v, eps); }, vb, w));
          return want;
        });
  }
}

TEST_CASE("batch_norm normalises each column and moves the running statistics") {
  for (const shape& s : awkward_shapes()) {
    const auto x = slab<float>(s.members, s.rows, s.cols, s.pad).random(1, 9, 13);
    const auto gain = slab<float>(s.members, 1, s.cols, s.pad).random(2), bias = slab<float>(s.members, 1, s.cols, s.pad).random(3);
    const auto running = slab<float>(s.members, 2, s.cols, s.pad).random(4, 1, 2);
    conform(
        s.text(), s.members, 2e-5,
        [&](context& ctx, const members_list& who) {
          const i64 n = i64(who.size());
          placed<float> px(ctx, x, who), pg(ctx, gain, who), pb(ctx, bias, who), pr(ctx, running, who),
              py(ctx, slab<float>(s.members, s.rows, s.cols, s.pad), who), pi(ctx, x, who),
              ps(ctx, slab<float>(s.members, 2, s.cols, s.pad), who);
          batch_norm_inference(ctx, n, px, pg, pb, 1e-2f, pr, pi);
          batch_norm(ctx, n, px, pg, pb, 1e-2f, 0.1f, py, ps, pr);
          return outputs().add(pi).add(py).add(ps).add(pr);
        },
        [&](i64 k) {
          numbers want, mean, variance;
          const numbers v = x.values(k), old = running.values(k);
          for (std::size_t i = 0; i < v.size(); ++i) {
            const std::size_t c = i % std::size_t(s.cols);
            want.push_back((v[i] - old[c]) / std::sqrt(old[std::size_t(s.cols) + c] + 1e-2) * double(gain.at(k, 0, i64(c))) +
                           double(bias.at(k, 0, i64(c))));
          }
          append(want, ops_reference::batch_norm(v, s.rows, s.cols, gain.values(k), bias.values(k), double(1e-2f), &mean,
                                                 &variance));
          append(want, mean);
          for (double var : variance)
            want.push_back(1 / std::sqrt(var + double(1e-2f)));
          for (i64 c = 0; c < s.cols; ++c)
            want.push_back(0.9 * old[std::size_t(c)] + 0.1 * mean[std::size_t(c)]);
          const double unbiased = s.rows > 1 ? double(s.rows) / double(s.rows - 1) : 1;
          for (i64 c = 0; c < s.cols; ++c)
            want.push_back(0.9 * old[std::size_t(s.cols + c)] + 0.1 * unbiased * variance[std::size_t(c)]);
          return want;
        });
  }
}

TEST_CASE("batch_norm_backward agrees with finite differences") {
  for (const shape& s : small_shapes()) {
    const auto x = slab<float>(s.members, s.rows, s.cols, s.pad).random(1), dy = slab<float>(s.members, s.rows, s.cols, s.pad).random(4);
    const auto gain = slab<float>(s.members, 1, s.cols, s.pad).random(2), bias = slab<float>(s.members, 1, s.cols, s.pad).random(3);
    const double eps = double(1e-2f);
    conform(
        s.text(), s.members, 5e-5,
        [&](context& ctx, const members_list& who) {
          const i64 n = i64(who.size());
          const slab<float> row(s.members, 1, s.cols, s.pad), two(s.members, 2, s.cols, s.pad);
          placed<float> px(ctx, x, who), pg(ctx, gain, who), pb(ctx, bias, who), pdy(ctx, dy, who), pdg(ctx, row, who),
              pdb(ctx, row, who), py(ctx, slab<float>(s.members, s.rows, s.cols, s.pad), who), ps(ctx, two, who),
              pr(ctx, two, who);
          batch_norm(ctx, n, px, pg, pb, float(eps), 0, py, ps, pr);
          batch_norm_backward(ctx, n, pdy, px, pg, ps, pdy, pdg, pdb); // in place
          return outputs().add(pdy).add(pdg).add(pdb);
        },
        [&](i64 k) {
          const numbers w = dy.values(k), vx = x.values(k), vg = gain.values(k), vb = bias.values(k);
          numbers want = numeric_gradient(
              [&](const numbers& v) { return ops_reference::batch_norm(v, s.rows, s.cols, vg, vb, eps); }, vx, w);
          append(want, numeric_gradient(
                           [&](const numbers& v) { return ops_reference::batch_norm(vx, s.rows, s.cols, v, vb, eps); }, vg, w));
          append(want, numeric_gradient(
                           [&](const numbers& v) { return ops_reference::batch_norm(vx, s.rows, s.cols, vg, v, eps); }, vb, w));
          return want;
        });
  }
}

namespace {

struct image_case {
  ops_reference::conv s;
  i64 members, pad;
  std::string text() const {
    return std::to_string(s.n) + " images of " + std::to_string(s.h) + " x " + std::to_string(s.w) + " x " +
           std::to_string(s.c) + ", window " + std::to_string(s.kh) + " x " + std::to_string(s.kw) + ", stride " +
           std::to_string(s.stride) + ", padding " + std::to_string(s.pad);
  }
  conv_shape shape() const {
    const auto i = [](i64 x) { return std::int32_t(x); };
    return {i(s.n), i(s.h), i(s.w), i(s.c), i(s.kh), i(s.kw), i(s.stride), i(s.pad)};
  }
};

//                                     n  h  w  c   kh kw st pad  members, padding of slabs
const image_case convolutions[] = {{{1, 1, 1, 1, 1, 1, 1, 0}, 1, 0},  {{2, 5, 5, 1, 3, 3, 1, 1}, 2, 0},
                                   {{1, 7, 4, 3, 3, 3, 1, 0}, 3, 5},  {{2, 6, 7, 2, 3, 2, 2, 1}, 2, 3},
                                   {{1, 4, 4, 17, 3, 3, 1, 1}, 2, 0}, {{1, 9, 9, 2, 5, 5, 3, 2}, 1, 0},
                                   {{1, 3, 3, 1, 5, 5, 1, 4}, 1, 2},  {{1, 5, 5, 2, 1, 1, 3, 0}, 2, 0}};
const image_case poolings[] = {{{1, 1, 1, 1, 1, 1, 1, 0}, 1, 0},  {{2, 6, 6, 16, 2, 2, 2, 0}, 2, 0},
                               {{1, 7, 5, 3, 2, 2, 2, 0}, 3, 4},  {{1, 9, 7, 5, 3, 3, 2, 0}, 2, 1},
                               {{1, 7, 7, 33, 3, 3, 3, 0}, 1, 0}, {{2, 8, 7, 2, 4, 3, 2, 0}, 2, 3},
                               {{1, 7, 7, 2, 2, 2, 3, 0}, 1, 0}};

} // namespace

TEST_CASE("im2col copies windows and col2im adds them up again") {
  for (const image_case& c : convolutions) {
    const auto& s = c.s;
    const i64 pixels = s.n * s.h * s.w, outs = s.n * s.oh() * s.ow(), width = s.kh * s.kw * s.c;
    // The rows of the images are dense, those of the columns need not be.
    slab<float> images(c.members, pixels, s.c);
    images.random(1);
    const auto columns = slab<float>(c.members, outs, width, c.pad).random(2);
    const auto sources = ops_reference::im2col_sources(s);
    conform(
        c.text(), c.members, 1e-5,
        [&](context& ctx, const members_list& who) {
          placed<float> pi(ctx, images, who), pc(ctx, columns, who), to(ctx, slab<float>(c.members, outs, width, c.pad), who),
              back(ctx, slab<float>(c.members, pixels, s.c, c.pad), who);
          im2col(ctx, i64(who.size()), c.shape(), pi, to);
          col2im(ctx, i64(who.size()), c.shape(), pc, back);
          return outputs().add(to).add(back);
        },
        [&](i64 k) {
          const numbers in = images.values(k), d = columns.values(k);
          numbers want, sums(in.size());
          for (std::size_t i = 0; i < sources.size(); ++i) {
            want.push_back(sources[i] < 0 ? 0.0 : in[std::size_t(sources[i])]);
            if (sources[i] >= 0)
              sums[std::size_t(sources[i])] += d[i];
          }
          append(want, sums);
          return want;
        });
  }
}

TEST_CASE("max_pool takes the first largest of each window and gives it the gradient") {
  for (const image_case& c : poolings) {
    const auto& s = c.s;
    const i64 pixels = s.n * s.h * s.w, outs = s.n * s.oh() * s.ow();
    // Few different values, so that there are ties.
    slab<float> x(c.members, pixels, s.c, c.pad);
    x.set([](i64 k, i64 r, i64 j) { return double((k * 5 + r * 3 + j * 7 + r * r) % 4) - 2; });
    const auto dy = slab<float>(c.members, outs, s.c, c.pad).random(2);
    conform(
        c.text(), c.members, 1e-6,
        [&](context& ctx, const members_list& who) {
          const i64 n = i64(who.size());
          placed<float> px(ctx, x, who), py(ctx, slab<float>(c.members, outs, s.c, c.pad), who), pdy(ctx, dy, who),
              pdx(ctx, slab<float>(c.members, pixels, s.c, c.pad), who);
          placed<std::uint8_t> at(ctx, slab<std::uint8_t>(c.members, outs, s.c, c.pad), who);
          max_pool(ctx, n, c.shape(), px, py, at);
          max_pool_backward(ctx, n, c.shape(), pdy, at, pdx);
          return outputs().add(py).add(at).add(pdx);
        },
        [&](i64 k) {
          const numbers in = x.values(k), d = dy.values(k);
          const auto p = ops_reference::max_pool(in, s);
          numbers want, dx(in.size());
          for (i64 i : p.source)
            want.push_back(in[std::size_t(i)]);
          for (i64 place : p.place)
            want.push_back(double(place));
          for (std::size_t i = 0; i < d.size(); ++i)
            dx[std::size_t(p.source[i])] += d[i];
          append(want, dx);
          return want;
        });
  }
}

TEST_CASE("max_pool lets NaN through") {
  slab<float> x(1, 4, 1);
  x.set([](i64, i64 r, i64) { return r == 2 ? NAN : double(r); });
  for (device_under_test& d : devices()) {
    placed<float> px(*d.ctx, x, {0}), py(*d.ctx, slab<float>(1, 1, 1), {0});
    placed<std::uint8_t> at(*d.ctx, slab<std::uint8_t>(1, 1, 1), {0});
    max_pool(*d.ctx, 1, {1, 2, 2, 1, 2, 2, 2, 0}, px, py, at);
    CHECK(std::isnan(py.back().at(0, 0, 0)));
  }
}
