#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "slots_under_test.hpp"
#include "troupe/gpu/context.hpp"
#include "troupe/gpu/ops.hpp"

using namespace troupe::gpu;

namespace {

bf16 to_bf16_bits(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  return static_cast<bf16>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
float value_of(float x) { return x; }
float value_of(bf16 x) { return std::bit_cast<float>(std::uint32_t(x) << 16); }

template <class T>
struct problem {
  std::int64_t members, m, n, k, pad;
  bool ta, tb;
  std::vector<T> a, b;
  std::vector<float> c;
  std::int64_t ar, ac, br, bc;

  problem(std::int64_t members_, std::int64_t m_, std::int64_t n_, std::int64_t k_, bool ta_, bool tb_,
          std::int64_t pad_, unsigned seed)
      : members(members_), m(m_), n(n_), k(k_), pad(pad_), ta(ta_), tb(tb_) {
    ar = ta ? k : m, ac = ta ? m : k, br = tb ? n : k, bc = tb ? k : n;
    std::mt19937 rng(seed);
    std::normal_distribution<float> u;
    const auto draw = [&](auto& v, std::int64_t rows, std::int64_t cols) {
      v.resize(static_cast<std::size_t>(members * (rows * (cols + pad) + 5)));
      for (auto& x : v)
        if constexpr (sizeof(x) == 2)
          x = to_bf16_bits(u(rng));
        else
          x = u(rng);
    };
    draw(a, ar, ac);
    draw(b, br, bc);
    draw(c, m, n);
  }
  template <class U>
  mat<U> view(U* p, std::int64_t rows, std::int64_t cols) const {
    return {p, rows, cols, cols + pad, rows * (cols + pad) + 5};
  }
  std::vector<float> run(context& ctx, float alpha, float beta) const {
    auto da = ctx.allocate_of<T>(a.size()), db = ctx.allocate_of<T>(b.size());
    auto dc = ctx.allocate_of<float>(c.size());
    ctx.upload(da.data(), std::span<const T>(a));
    ctx.upload(db.data(), std::span<const T>(b));
    ctx.upload(dc.data(), std::span<const float>(c));
    gemm(ctx, members, ta, tb, alpha, mat<const T>(view(da.template as<T>(), ar, ac)),
         mat<const T>(view(db.template as<T>(), br, bc)), beta, view(dc.template as<float>(), m, n));
    std::vector<float> out(c.size());
    ctx.download(out.data(), dc.data(), dc.size());
    return out;
  }
  /// Against a product in double; the bound is the usual one of a sum of k terms.
  void check(context& ctx, float alpha, float beta) const {
    const auto out = run(ctx, alpha, beta);
    const auto va = view(a.data(), ar, ac), vb = view(b.data(), br, bc);
    const auto vc = view(c.data(), m, n);
    std::int64_t wrong = 0;
    auto expected_untouched = c;
    for (std::int64_t s = 0; s < members; ++s)
      for (std::int64_t i = 0; i < m; ++i)
        for (std::int64_t j = 0; j < n; ++j) {
          double sum = 0, size = 0;
          for (std::int64_t l = 0; l < k; ++l) {
            const double x = value_of(a[s * va.stride + (ta ? l * va.ld + i : i * va.ld + l)]);
            const double y = value_of(b[s * vb.stride + (tb ? j * vb.ld + l : l * vb.ld + j)]);
            sum += x * y;
            size += std::abs(x * y);
          }
          const auto at = s * vc.stride + i * vc.ld + j;
          const double want = alpha * sum + (beta == 0 ? 0 : beta * c[at]);
          const double bound =
              1e-6 * (std::abs(alpha) * size + std::abs(beta * (beta == 0 ? 0 : c[at])) + 1e-6);
          wrong += !(std::abs(out[at] - want) <= bound);
          expected_untouched[at] = out[at];
        }
    CHECK(wrong == 0);
    CHECK((out.empty() ||
           std::memcmp(out.data(), expected_untouched.data(), out.size() * 4) == 0)); // nothing outside C
  }
};

} // namespace

TEST_CASE("products agree with a naive double sum over transposes and leading dimensions") {
  for (const auto& o : slots_under_test()) {
    CAPTURE(o.device.name);
    context ctx(o);
    for (bool ta : {false, true})
      for (bool tb : {false, true})
        for (auto [m, n, k] :
             {std::array{1, 1, 1}, {7, 5, 3}, {32, 10, 64}, {33, 17, 129}, {128, 10, 256}, {1, 40, 100}}) {
          CAPTURE(ta);
          CAPTURE(tb);
          CAPTURE(m);
          problem<float>(2, m, n, k, ta, tb, 3, 1).check(ctx, 1, 0);
          problem<float>(1, m, n, k, ta, tb, 0, 2).check(ctx, 0.5f, 0.9f);
          problem<bf16>(2, m, n, k, ta, tb, 3, 3).check(ctx, 1, 0);
          problem<bf16>(1, m, n, k, ta, tb, 0, 4).check(ctx, 0.5f, 0.9f);
        }
  }
}

TEST_CASE("with beta 0 what C held does not matter") {
  for (const auto& o : slots_under_test()) {
    CAPTURE(o.device.name);
    context ctx(o);
    problem<float> p(2, 20, 30, 40, false, false, 0, 5);
    for (auto& x : p.c)
      x = NAN;
    for (auto [rows, out] = std::pair{p.m, p.run(ctx, 1, 0)}; rows > 0; --rows)
      for (std::int64_t j = 0; j < p.n; ++j)
        CHECK(std::isfinite(out[(rows - 1) * p.n + j]));
  }
}

TEST_CASE("an empty sum scales C and an empty C is left alone") {
  for (const auto& o : slots_under_test()) {
    CAPTURE(o.device.name);
    context ctx(o);
    problem<float> p(2, 4, 5, 0, false, false, 2, 6);
    p.check(ctx, 1, 0.5f);
    p.check(ctx, 1, 0);
    problem<float>(2, 0, 5, 3, false, false, 2, 6).check(ctx, 1, 0.5f);
    problem<float>(0, 4, 5, 3, false, false, 2, 6).check(ctx, 1, 0.5f);
  }
}

TEST_CASE("shapes that do not fit are refused with the shapes") {
  context ctx(cpu_slot());
  auto x = ctx.allocate_of<float>(100);
  auto* p = x.as<float>();
  try {
    gemm(ctx, 1, false, true, 1, mat<const float>(mat<float>::dense(p, 2, 3)),
         mat<const float>(mat<float>::dense(p, 3, 4)), 0, mat<float>::dense(p, 2, 4));
    FAIL("no exception");
  } catch (const std::invalid_argument& e) {
    CHECK(std::string(e.what()).find("B^T: 3 x 4") != std::string::npos);
  }
}
