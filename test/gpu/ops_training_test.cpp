#include "gpu/ops_fixture.hpp"
#include "gpu/ops_reference.hpp"

#include <array>
#include <set>

#include "troupe/gpu/counter_random.hpp"
#include "troupe/gpu/lr_schedule.hpp"

using namespace ops_test;
using ops_reference::numbers;

namespace {

/// Members that differ in every hyperparameter an optimizer reads.
std::vector<member_params> varied(i64 members) {
  std::vector<member_params> p(static_cast<std::size_t>(members));
  for (std::size_t k = 0; k < p.size(); ++k) {
    const float f = float(k);
    p[k].lr = 0.05f + 0.01f * f;
    p[k].momentum = k == 1 ? 0.0f : 0.9f - 0.1f * f;
    p[k].nesterov = float(k % 2);
    p[k].weight_decay = k == 0 ? 0.0f : 0.02f * f;
    p[k].beta1 = 0.9f - 0.05f * f;
    p[k].beta2 = 0.999f - 0.01f * f;
    p[k].clip_norm = k == 2 ? 0.5f : 0.0f;
  }
  return p;
}

const i64 lengths[] = {1, 7, 16, 255, 1031};
constexpr int steps = 3;

} // namespace

TEST_CASE("sgd follows its definition over several steps with clipping and a bf16 copy") {
  for (i64 n : lengths)
    for (bool with_low : {false, true}) {
      const i64 members = 4;
      const auto w = slab<float>(members, 1, n, 3).random(1), v = slab<float>(members, 1, n, 5).random(2),
                 g = slab<float>(members, 1, n, 2).random(3);
      const auto params = varied(members);
      conform(
          std::to_string(n) + " weights", members, with_low ? 1.0 / 256 + 1e-5 : 1e-5,
          [&](context& ctx, const members_list& who) {
            const i64 k = i64(who.size());
            placed<float> pw(ctx, w, who), pv(ctx, v, who), pg(ctx, g, who), scratch(ctx, slab<float>(members, 1, 256), who);
            placed<bf16> low(ctx, slab<bf16>(members, 1, n, 1), who);
            placed_structs<member_params> pp(ctx, params, who);
            placed_structs<member_counters> pc(ctx, std::vector<member_counters>(std::size_t(members)), who);
            for (int i = 0; i < steps; ++i) {
              begin_step(ctx, k, pp.get(), pc.get(), nullptr);
              gradient_norm(ctx, k, pg, pp.get(), pc.get(), scratch, nullptr);
              sgd(ctx, k, pw, pv, pg, pp.get(), pc.get(), with_low ? vec<bf16>(low) : vec<bf16>{}, nullptr);
              end_step(ctx, k, pc.get(), nullptr);
            }
            outputs out;
            out.add(pw).add(pv);
            if (with_low)
              out.add(low);
            return out;
          },
          [&](i64 k) {
            const member_params& p = params[std::size_t(k)];
            numbers a = w.values(k), b = v.values(k);
            const numbers d = g.values(k);
            double norm = 0;
            for (double x : d)
              norm += x * x;
            norm = std::sqrt(norm);
            const double scale = p.clip_norm > 0 ? std::min(1.0, double(p.clip_norm) / norm) : 1;
            for (int i = 0; i < steps; ++i)
              for (std::size_t j = 0; j < a.size(); ++j) {
                const double g1 = scale * d[j] + double(p.weight_decay) * a[j];
                b[j] = double(p.momentum) * b[j] + g1;
                a[j] -= double(p.lr) * (p.nesterov != 0 ? g1 + double(p.momentum) * b[j] : b[j]);
              }
            numbers want = a;
            want.insert(want.end(), b.begin(), b.end());
            if (with_low)
              want.insert(want.end(), a.begin(), a.end());
            return want;
          });
    }
}

TEST_CASE("sgd_apply subtracts the velocity at the current rate") {
  for (i64 n : lengths)
    for (bool with_low : {false, true}) {
      const i64 members = 3;
      const auto w = slab<float>(members, 1, n, 3).random(1), v = slab<float>(members, 1, n, 5).random(2);
      std::vector<member_counters> counters(3);
      for (std::size_t k = 0; k < 3; ++k)
        counters[k].lr_now = 0.1f * float(k + 1);
      conform(
          std::to_string(n) + " weights", members, with_low ? 1.0 / 256 + 1e-6 : 1e-6,
          [&](context& ctx, const members_list& who) {
            placed<float> pw(ctx, w, who), pv(ctx, v, who);
            placed<bf16> low(ctx, slab<bf16>(members, 1, n, 1), who);
            placed_structs<member_counters> pc(ctx, counters, who);
            sgd_apply(ctx, i64(who.size()), pw, pv, pc.get(), with_low ? vec<bf16>(low) : vec<bf16>{}, nullptr);
            outputs out;
            out.add(pw);
            if (with_low)
              out.add(low);
            return out;
          },
          [&](i64 k) {
            numbers want;
            for (int copy = 0; copy < (with_low ? 2 : 1); ++copy)
              for (i64 i = 0; i < n; ++i)
                want.push_back(double(w.at(k, 0, i)) -
                               double(counters[std::size_t(k)].lr_now) * double(v.at(k, 0, i)));
            return want;
          });
    }
}

TEST_CASE("adamw follows its definition over several steps") {
  for (i64 n : lengths)
    for (bool with_low : {false, true}) {
      const i64 members = 4;
      const auto w = slab<float>(members, 1, n, 3).random(1), g = slab<float>(members, 1, n, 2).random(3, -1, 1, 0.01);
      const auto zeros = slab<float>(members, 1, n, 4).set([](i64, i64, i64) { return 0; });
      const auto params = varied(members);
      conform(
          std::to_string(n) + " weights", members, with_low ? 1.0 / 256 + 1e-5 : 1e-5,
          [&](context& ctx, const members_list& who) {
            const i64 k = i64(who.size());
            placed<float> pw(ctx, w, who), pm(ctx, zeros, who), pv(ctx, zeros, who), pg(ctx, g, who),
                scratch(ctx, slab<float>(members, 1, 256), who);
            placed<bf16> low(ctx, slab<bf16>(members, 1, n, 1), who);
            placed_structs<member_params> pp(ctx, params, who);
            placed_structs<member_counters> pc(ctx, std::vector<member_counters>(std::size_t(members)), who);
            for (int i = 0; i < steps; ++i) {
              begin_step(ctx, k, pp.get(), pc.get(), nullptr);
              gradient_norm(ctx, k, pg, pp.get(), pc.get(), scratch, nullptr);
              adamw(ctx, k, pw, pm, pv, pg, pp.get(), pc.get(), with_low ? vec<bf16>(low) : vec<bf16>{}, nullptr);
              end_step(ctx, k, pc.get(), nullptr);
            }
            outputs out;
            out.add(pw).add(pm).add(pv);
            if (with_low)
              out.add(low);
            return out;
          },
          [&](i64 k) {
            const member_params& p = params[std::size_t(k)];
            const double b1 = double(p.beta1), b2 = double(p.beta2);
            numbers a = w.values(k), m(a.size()), v(a.size());
            const numbers d = g.values(k);
            double norm = 0;
            for (double x : d)
              norm += x * x;
            const double scale = p.clip_norm > 0 ? std::min(1.0, double(p.clip_norm) / std::sqrt(norm)) : 1;
            for (int t = 1; t <= steps; ++t)
              for (std::size_t j = 0; j < a.size(); ++j) {
                const double g1 = scale * d[j];
                m[j] = b1 * m[j] + (1 - b1) * g1;
                v[j] = b2 * v[j] + (1 - b2) * g1 * g1;
                a[j] *= 1 - double(p.lr) * double(p.weight_decay);
                a[j] -= double(p.lr) * (m[j] / (1 - std::pow(b1, t))) /
                        (std::sqrt(v[j] / (1 - std::pow(b2, t))) + double(p.epsilon));
              }
            numbers want = a;
            want.insert(want.end(), m.begin(), m.end());
            want.insert(want.end(), v.begin(), v.end());
            if (with_low)
              want.insert(want.end(), a.begin(), a.end());
            return want;
          });
    }
}

TEST_CASE("an inactive member does not move") {
  const auto w = slab<float>(3, 1, 40, 3).random(1), g = slab<float>(3, 1, 40).random(2);
  const auto params = varied(3);
  for (device_under_test& d : devices()) {
    CAPTURE(d.name);
    placed<float> pw(*d.ctx, w, everyone(3)), pm(*d.ctx, w, everyone(3)), pv(*d.ctx, w, everyone(3)),
        pg(*d.ctx, g, everyone(3)), scratch(*d.ctx, slab<float>(3, 1, 256), everyone(3));
    placed<bf16> low(*d.ctx, slab<bf16>(3, 1, 40), everyone(3));
    placed_structs<member_params> pp(*d.ctx, params, everyone(3));
    placed_structs<member_counters> pc(*d.ctx, std::vector<member_counters>(3), everyone(3));
    placed_structs<std::uint8_t> active(*d.ctx, {1, 0, 1}, everyone(3));
    begin_step(*d.ctx, 3, pp.get(), pc.get(), active.get());
    gradient_norm(*d.ctx, 3, pg, pp.get(), pc.get(), scratch, active.get());
    sgd(*d.ctx, 3, pw, pm, pg, pp.get(), pc.get(), low, active.get());
    sgd_apply(*d.ctx, 3, pw, pm, pc.get(), low, active.get());
    adamw(*d.ctx, 3, pw, pm, pv, pg, pp.get(), pc.get(), low, active.get());
    end_step(*d.ctx, 3, pc.get(), active.get());
    const auto after = pc.back();
    const member_counters fresh;
    CHECK(after[1].step == fresh.step);
    CHECK(after[1].batch == fresh.batch);
    CHECK(after[1].lr_now == fresh.lr_now);
    CHECK(after[1].bias1 == fresh.bias1);
    CHECK(after[1].grad_norm == fresh.grad_norm);
    CHECK(after[0].step == 1);
    CHECK(after[2].batch == 1);
    CHECK(after[0].updates == 1);
    for (const auto* p : {&pw, &pm})
      CHECK(same(p->back().values(1), w.values(1)));
    CHECK(low.back().values(1) == slab<bf16>(3, 1, 40).values(1));
    CHECK(!same(pw.back().values(0), w.values(0)));
  }
}

TEST_CASE("gradient_norm is the L2 norm and clips only what is larger") {
  for (i64 n : {1, 100, 4096, 20011}) {
    const i64 members = 3;
    const auto g = slab<float>(members, 1, n, 3).random(1);
    std::vector<member_params> params(3);
    params[1].clip_norm = 0.01f;
    params[2].clip_norm = 1e6f;
    conform(
        std::to_string(n) + " gradients", members, 1e-5,
        [&](context& ctx, const members_list& who) {
          placed<float> pg(ctx, g, who), scratch(ctx, slab<float>(members, 1, 256), who);
          placed_structs<member_params> pp(ctx, params, who);
          placed_structs<member_counters> pc(ctx, std::vector<member_counters>(3), who);
          gradient_norm(ctx, i64(who.size()), pg, pp.get(), pc.get(), scratch, nullptr);
          outputs out;
          for (const auto& c : pc.back())
            out.members.push_back({double(c.grad_norm), double(c.grad_scale)});
          return out;
        },
        [&](i64 k) {
          double sum = 0;
          for (double v : g.values(k))
            sum += v * v;
          const double norm = std::sqrt(sum), clip = double(params[std::size_t(k)].clip_norm);
          return numbers{norm, clip > 0 ? std::min(1.0, clip / norm) : 1.0};
        });
  }
}

TEST_CASE("learning rates follow their schedules and are the same on device and host") {
  std::vector<member_params> params(5);
  for (auto& p : params)
    p.lr = 0.4f;
  params[1].schedule = lr_schedule::step, params[1].schedule_a = 10, params[1].schedule_b = 0.5f;
  params[2].schedule = lr_schedule::cosine, params[2].schedule_a = 100, params[2].schedule_b = 0.1f;
  params[3].schedule = lr_schedule::warmup_cosine, params[3].schedule_a = 10, params[3].schedule_b = 110;
  params[4].schedule = lr_schedule::step; // a is 0: no steps
  const double pi = 3.14159265358979323846;
  for (std::uint64_t step : {0, 1, 9, 10, 25, 50, 99, 100, 110, 5000}) {
    const double s = double(step);
    CHECK(lr_at(params[0], step) == 0.4f);
    CHECK(double(lr_at(params[1], step)) == doctest::Approx(double(0.4f) * std::pow(0.5, std::floor(s / 10))));
    CHECK(double(lr_at(params[2], step)) ==
          doctest::Approx(double(0.4f) * (0.1 + 0.45 * (1 + std::cos(pi * std::min(s / 100, 1.0))))));
    const double warm = s < 10 ? (s + 1) / 10 : 0.5 * (1 + std::cos(pi * std::min((s - 10) / 100, 1.0)));
    CHECK(double(lr_at(params[3], step)) == doctest::Approx(double(0.4f) * warm));
    CHECK(lr_at(params[4], step) == 0.4f);
    for (device_under_test& d : devices()) {
      std::vector<member_counters> counters(5);
      for (auto& c : counters) {
        c.step = step;
        c.updates = step + 7; // the optimizer's own count
        c.grad_scale = 0.5f;
      }
      placed_structs<member_params> pp(*d.ctx, params, everyone(5));
      placed_structs<member_counters> pc(*d.ctx, counters, everyone(5));
      begin_step(*d.ctx, 5, pp.get(), pc.get(), nullptr);
      const auto after = pc.back();
      for (std::size_t k = 0; k < 5; ++k) {
        CHECK(after[k].lr_now == lr_at(params[k], step));
        CHECK(after[k].grad_scale == 1.0f);
        CHECK(double(after[k].bias1) == doctest::Approx(1 - std::pow(double(0.9f), s + 8)));
        CHECK(double(after[k].bias2) == doctest::Approx(1 - std::pow(double(0.999f), s + 8)));
      }
    }
  }
}

namespace {

struct images {
  i64 examples, features;
  slab<std::uint8_t> bytes;
  slab<float> floats;
  slab<std::int32_t> labels;

  images(i64 examples, i64 features)
      : examples(examples), features(features), bytes(1, examples, features), floats(1, examples, features),
        labels(1, 1, examples) {
    bytes.set([](i64, i64 r, i64 c) { return (r * 37 + c * 11) % 256; });
    floats.random(9);
    labels.set([](i64, i64, i64 r) { return r; });
  }
};

template <class Out>
void gather_conforms(bool from_bytes, i64 offset) {
  for (const auto& [examples, features, rows] :
       {std::array<i64, 3>{1, 1, 1}, {7, 5, 3}, {33, 17, 16}, {100, 784, 20}, {20, 64, 20}}) {
    const images data(examples, features);
    const i64 members = 3;
    std::vector<member_counters> counters(3);
    for (std::size_t k = 0; k < 3; ++k) {
      counters[k].seed = 99 + k;
      counters[k].batch = k * 4;
    }
    const float scale = from_bytes ? 1.0f / 255 : 2.0f, shift = -0.5f;
    const auto source = [&](i64 k, i64 r) {
      if (offset >= 0)
        return std::min(offset + r, examples - 1);
      const i64 per_epoch = examples / rows, batch = i64(counters[std::size_t(k)].batch);
      return i64(permute(counters[std::size_t(k)].seed, std::uint64_t(batch / per_epoch),
                         std::uint64_t(batch % per_epoch * rows + r), std::uint64_t(examples)));
    };
    conform(
        std::to_string(examples) + " examples", members, std::is_same_v<Out, bf16> ? 1.0 / 256 + 1e-6 : 1e-6,
        [&](context& ctx, const members_list& who) {
          placed<std::uint8_t> bytes(ctx, data.bytes, {0});
          placed<float> floats(ctx, data.floats, {0});
          placed<std::int32_t> labels(ctx, data.labels, {0}), drawn(ctx, slab<std::int32_t>(members, 1, rows, 3), who);
          placed<Out> x(ctx, slab<Out>(members, rows, features, 2), who);
          placed_structs<member_counters> pc(ctx, counters, who);
          const data_source d{from_bytes ? bytes.v().data : nullptr, from_bytes ? nullptr : floats.v().data,
                              labels.v().data, examples, features, scale, shift};
          gather<Out>(ctx, i64(who.size()), d, offset < 0 ? pc.get() : nullptr, offset, x, drawn);
          return outputs().add(x).add(drawn);
        },
        [&](i64 k) {
          numbers want;
          for (i64 r = 0; r < rows; ++r)
            for (i64 c = 0; c < features; ++c) {
              const i64 i = source(k, r);
              const double v = from_bytes ? double(data.bytes.at(0, i, c)) : double(data.floats.at(0, i, c));
              want.push_back(v * double(scale) + double(shift));
            }
          for (i64 r = 0; r < rows; ++r)
            want.push_back(double(source(k, r)));
          return want;
        });
  }
}

} // namespace

TEST_CASE("gather draws permuted bytes as fp32") { gather_conforms<float>(true, -1); }
TEST_CASE("gather draws permuted bytes as bf16") { gather_conforms<bf16>(true, -1); }
TEST_CASE("gather draws permuted floats") { gather_conforms<float>(false, -1); }
TEST_CASE("gather reads in order from an offset and repeats the last example") { gather_conforms<float>(true, 3); }

TEST_CASE("an epoch draws every example once and drops what does not fill a batch") {
  const images data(50, 1);
  for (device_under_test& d : devices()) {
    placed<float> floats(*d.ctx, data.floats, {0}), x(*d.ctx, slab<float>(1, 8, 1), {0});
    placed<std::int32_t> labels(*d.ctx, data.labels, {0}), drawn(*d.ctx, slab<std::int32_t>(1, 1, 8), {0});
    placed_structs<member_counters> pc(*d.ctx, std::vector<member_counters>(1), {0});
    std::vector<std::vector<double>> epochs;
    for (int epoch = 0; epoch < 2; ++epoch) {
      std::set<double> seen;
      epochs.emplace_back();
      for (int batch = 0; batch < 6; ++batch) {
        gather<float>(*d.ctx, 1, {nullptr, floats.v().data, labels.v().data, 50, 1, 1, 0}, pc.get(), -1, x, drawn);
        end_step(*d.ctx, 1, pc.get(), nullptr);
        for (double v : drawn.back().values(0)) {
          seen.insert(v);
          epochs.back().push_back(v);
        }
      }
      CHECK(seen.size() == 48);
    }
    CHECK(epochs[0] != epochs[1]);
  }
}
