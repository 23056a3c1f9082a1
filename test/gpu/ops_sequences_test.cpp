#include "gpu/ops_fixture.hpp"
#include "gpu/ops_reference.hpp"

#include <algorithm>

#include "troupe/gpu/counter_random.hpp"

using namespace ops_test;
using ops_reference::numbers;
using ops_reference::numeric_gradient;

namespace {

std::size_t at(i64 i) { return static_cast<std::size_t>(i); }

void append(numbers& to, const numbers& from) { to.insert(to.end(), from.begin(), from.end()); }

/// Texts of t tokens, dim numbers a token.
struct texts {
  i64 members, n, t, dim, pad;
  std::string text() const {
    return std::to_string(members) + " members, " + std::to_string(n) + " texts of " + std::to_string(t) + " tokens, "
           + std::to_string(dim) + " numbers each, padding " + std::to_string(pad);
  }
};
std::vector<texts> awkward_texts() { return {{1, 1, 1, 1, 0}, {2, 3, 5, 7, 2}, {1, 17, 3, 33, 0}, {3, 4, 19, 16, 1}, {2, 2, 2, 300, 0}}; }

slab<std::int32_t> random_lengths(const texts& s, i64 least = 1) {
  troupe::core::random_stream rng(5, "lengths");
  slab<std::int32_t> out(s.members, 1, s.n, s.pad);
  return out.set([&](i64, i64, i64) { return least + i64(rng.below(std::uint64_t(s.t - least + 1))); });
}

slab<std::int32_t> random_tokens(const texts& s, i64 vocabulary) {
  troupe::core::random_stream rng(6, "tokens");
  slab<std::int32_t> out(s.members, s.n, s.t, s.pad);
  return out.set([&](i64, i64, i64) { return i64(rng.below(std::uint64_t(vocabulary))); });
}

/// Matrices of the grid lie side by side in one matrix of outer * rows lines, as heads do, with `gap` numbers between.
struct interleaved {
  i64 outer, inner, rows, cols, gap;
  i64 lines() const { return outer * rows; }
  i64 width() const { return inner * (cols + gap); }
  template <class T>
  mat_grid<T> grid(const mat<T>& m) const {
    return {m.data, rows, cols, m.ld, cols + gap, rows * m.ld, m.stride};
  }
  template <class T>
  numbers values(const slab<T>& s, i64 k, i64 i, i64 h) const {
    numbers out;
    for (i64 r = 0; r < rows; ++r)
      for (i64 c = 0; c < cols; ++c)
        out.push_back(double(s.at(k, i * rows + r, h * (cols + gap) + c)));
    return out;
  }
};

} // namespace

TEST_CASE("gemm_grid multiplies every matrix of its grid") {
  struct shape3 {
    i64 m, n, k;
  };
  for (const shape3& s : {shape3{1, 1, 1}, {5, 3, 7}, {16, 16, 16}, {13, 29, 5}, {9, 17, 33}, {2, 20, 0}, {3, 5, 300}})
    for (int trans = 0; trans < 4; ++trans) {
      const bool ta = trans & 1, tb = trans & 2;
      const i64 members = 2, outer = 3, inner = 2;
      const interleaved a{outer, inner, ta ? s.k : s.m, ta ? s.m : s.k, 1}, b{outer, inner, tb ? s.n : s.k, tb ? s.k : s.n, 0},
          c{outer, inner, s.m, s.n, 0};
      const auto sa = slab<float>(members, a.lines(), a.width(), 1).random(1), sb = slab<float>(members, b.lines(), b.width()).random(2);
      conform(
          std::to_string(s.m) + " x " + std::to_string(s.n) + " x " + std::to_string(s.k) + ", transposed " + std::to_string(trans),
          members, 1e-5,
          [&](context& ctx, const members_list& who) {
            placed<float> pa(ctx, sa, who), pb(ctx, sb, who), pc(ctx, slab<float>(members, c.lines(), c.width(), 3), who);
            gemm_grid(ctx, i64(who.size()), outer, inner, ta, tb, 0.5f, a.grid(mat<const float>(pa)), b.grid(mat<const float>(pb)),
                      c.grid(pc.m()));
            return outputs().add(pc);
          },
          [&](i64 k) {
            numbers y(at(c.lines() * c.width()));
            for (i64 i = 0; i < outer; ++i)
              for (i64 h = 0; h < inner; ++h) {
                const auto x = a.values(sa, k, i, h), w = b.values(sb, k, i, h);
                for (i64 r = 0; r < s.m; ++r)
                  for (i64 j = 0; j < s.n; ++j) {
                    double sum = 0;
                    for (i64 l = 0; l < s.k; ++l)
                      sum += x[at(ta ? l * s.m + r : r * s.k + l)] * w[at(tb ? j * s.k + l : l * s.n + j)];
                    y[at((i * s.m + r) * c.width() + h * s.n + j)] = 0.5 * sum;
                  }
              }
            return y;
          });
    }
}

TEST_CASE("embed looks tokens up and a token without a row is seen") {
  for (const texts& s : awkward_texts()) {
    const i64 vocabulary = 6;
    auto tokens = random_tokens(s, vocabulary);
    const auto table = slab<float>(s.members, vocabulary, s.dim, s.pad).random(1), places = slab<float>(s.members, s.t, s.dim, s.pad).random(2);
    const bool broken = s.n > 3;
    if (broken) {
      tokens.at(0, 1, 0) = vocabulary;
      tokens.at(0, 2, 1) = -1;
    }
    conform(
        s.text(), s.members, 1e-6,
        [&](context& ctx, const members_list& who) {
          placed<std::int32_t> pt(ctx, tokens, who);
          placed<float> pw(ctx, table, who), pp(ctx, places, who), py(ctx, slab<float>(s.members, s.n * s.t, s.dim, s.pad), who);
          embed(ctx, i64(who.size()), pt, pw, pp, py);
          return outputs().add(py);
        },
        [&](i64 k) {
          numbers y;
          for (i64 i = 0; i < s.n; ++i)
            for (i64 j = 0; j < s.t; ++j)
              for (i64 c = 0; c < s.dim; ++c) {
                const i64 token = tokens.at(k, i, j);
                const bool known = token >= 0 && token < vocabulary;
                y.push_back(known ? double(table.at(k, token, c)) + double(places.at(k, j, c)) : NAN);
              }
          return y;
        });
  }
}

TEST_CASE("embed_backward adds up by token and by position") {
  for (const texts& s : awkward_texts()) {
    const i64 vocabulary = 6; // some of it never occurs
    const auto tokens = random_tokens(s, vocabulary - 1);
    const auto dy = slab<float>(s.members, s.n * s.t, s.dim).random(3);
    conform(
        s.text(), s.members, 1e-5,
        [&](context& ctx, const members_list& who) {
          placed<std::int32_t> pt(ctx, tokens, who);
          placed<float> pdy(ctx, dy, who), pw(ctx, slab<float>(s.members, vocabulary, s.dim, s.pad), who),
              pp(ctx, slab<float>(s.members, s.t, s.dim, s.pad), who);
          embed_backward(ctx, i64(who.size()), pt, pdy, pw, pp);
          return outputs().add(pw).add(pp);
        },
        [&](i64 k) {
          numbers table(at(vocabulary * s.dim)), places(at(s.t * s.dim));
          for (i64 i = 0; i < s.n; ++i)
            for (i64 j = 0; j < s.t; ++j)
              for (i64 c = 0; c < s.dim; ++c) {
                const double v = double(dy.at(k, i * s.t + j, c));
                table[at(tokens.at(k, i, j) * s.dim + c)] += v;
                places[at(j * s.dim + c)] += v;
              }
          append(table, places);
          return table;
        });
  }
}

namespace {

numbers softmax_reference(const numbers& x, i64 cols, double scale, const std::vector<i64>& lengths) {
  numbers y(x.size());
  const i64 rows = i64(x.size()) / cols;
  for (i64 r = 0; r < rows; ++r) {
    const i64 n = lengths.empty() ? cols : lengths[at(r / (rows / i64(lengths.size())))];
    double top = -1e300, sum = 0;
    for (i64 c = 0; c < n; ++c)
      top = std::max(top, scale * x[at(r * cols + c)]);
    for (i64 c = 0; c < n; ++c)
      sum += std::exp(scale * x[at(r * cols + c)] - top);
    for (i64 c = 0; c < n; ++c)
      y[at(r * cols + c)] = std::exp(scale * x[at(r * cols + c)] - top) / sum;
  }
  return y;
}

std::vector<i64> member_lengths(const slab<std::int32_t>& lengths, i64 k) {
  std::vector<i64> out;
  for (double v : lengths.values(k))
    out.push_back(i64(v));
  return out;
}

} // namespace

TEST_CASE("softmax leaves padding out and its gradient agrees with finite differences") {
  const float scale = 0.7f;
  const i64 heads = 2;
  for (const texts& s : awkward_texts())
    for (const bool masked : {false, true}) {
      if (s.dim > 100)
        continue;
      const i64 rows = s.n * heads * 3;
      const auto lengths = random_lengths(s, masked ? 0 : 1);
      const auto x = slab<float>(s.members, rows, s.t, s.pad).random(1, -5, 5), dy = slab<float>(s.members, rows, s.t, s.pad).random(2);
      conform(
          s.text() + (masked ? ", masked" : ""), s.members, 2e-5,
          [&](context& ctx, const members_list& who) {
            placed<std::int32_t> pl(ctx, lengths, who);
            placed<float> px(ctx, x, who), pdy(ctx, dy, who);
            const auto n = i64(who.size());
            softmax(ctx, n, scale, px, masked ? vec<const std::int32_t>(pl) : vec<const std::int32_t>{}, px);
            softmax_backward(ctx, n, scale, pdy, px, pdy);
            return outputs().add(px).add(pdy);
          },
          [&](i64 k) {
            const auto who = masked ? member_lengths(lengths, k) : std::vector<i64>{};
            const auto f = [&](const numbers& v) { return softmax_reference(v, s.t, double(scale), who); };
            auto y = f(x.values(k));
            append(y, numeric_gradient(f, x.values(k), dy.values(k)));
            return y;
          });
    }
}

TEST_CASE("mean_tokens averages what is no padding and its gradient goes back there alone") {
  for (const texts& s : awkward_texts()) {
    const auto lengths = random_lengths(s);
    auto x = slab<float>(s.members, s.n * s.t, s.dim, s.pad).random(1);
    const auto dy = slab<float>(s.members, s.n, s.dim, s.pad).random(2);
    if (lengths.at(0, 0, 0) < s.t)
      x.at(0, s.t - 1, 0) = NAN; // padding may hold anything
    conform(
        s.text(), s.members, 1e-5,
        [&](context& ctx, const members_list& who) {
          placed<std::int32_t> pl(ctx, lengths, who);
          placed<float> px(ctx, x, who), pdy(ctx, dy, who), py(ctx, slab<float>(s.members, s.n, s.dim, s.pad), who);
          const auto n = i64(who.size());
          mean_tokens(ctx, n, px, pl, py);
          mean_tokens_backward(ctx, n, pdy, pl, px);
          return outputs().add(py).add(px);
        },
        [&](i64 k) {
          numbers y, dx;
          for (i64 i = 0; i < s.n; ++i)
            for (i64 c = 0; c < s.dim; ++c) {
              double sum = 0;
              for (i64 j = 0; j < lengths.at(k, 0, i); ++j)
                sum += double(x.at(k, i * s.t + j, c));
              y.push_back(sum / lengths.at(k, 0, i));
            }
          for (i64 i = 0; i < s.n; ++i)
            for (i64 j = 0; j < s.t; ++j)
              for (i64 c = 0; c < s.dim; ++c)
                dx.push_back(j < lengths.at(k, 0, i) ? double(dy.at(k, i, c)) / lengths.at(k, 0, i) : 0.0);
          append(y, dx);
          return y;
        });
  }
}

TEST_CASE("add_residual adds with and without a bias") {
  for (const shape& s : awkward_shapes())
    for (const int form : {0, 1, 2, 3}) {
      const bool biased = form & 1, in_place = form & 2;
      const auto x = slab<float>(s.members, s.rows, s.cols, s.pad).random(1), y = slab<float>(s.members, s.rows, s.cols, s.pad).random(2);
      const auto bias = slab<float>(s.members, 1, s.cols, s.pad).random(3);
      conform(
          s.text(), s.members, 1e-6,
          [&](context& ctx, const members_list& who) {
            placed<float> px(ctx, x, who), py(ctx, y, who), pb(ctx, bias, who),
                pz(ctx, slab<float>(s.members, s.rows, s.cols, s.pad), who);
            placed<float>& to = in_place ? py : pz;
            add_residual(ctx, i64(who.size()), px, biased ? vec<const float>(pb) : vec<const float>{}, py, to);
            return outputs().add(to);
          },
          [&](i64 k) {
            numbers out;
            for (i64 r = 0; r < s.rows; ++r)
              for (i64 c = 0; c < s.cols; ++c)
                out.push_back(double(y.at(k, r, c)) + (double(x.at(k, r, c)) + (biased ? double(bias.at(k, 0, c)) : 0.0)));
            return out;
          });
    }
}

TEST_CASE("gather_tokens draws the batch that gather draws and counts what is no padding") {
  const i64 examples = 23, features = 9, rows = 5, members = 3;
  std::vector<std::uint16_t> words(at(examples * features));
  std::vector<std::int32_t> labels(at(examples));
  troupe::core::random_stream rng(4, "words");
  for (i64 i = 0; i < examples; ++i) {
    labels[at(i)] = std::int32_t(i % 4);
    const i64 length = i64(rng.below(std::uint64_t(features + 1)));
    for (i64 j = 0; j < length; ++j)
      words[at(i * features + j)] = std::uint16_t(j + 1 == length || j % 3 != 1 ? 1 + rng.below(65535) : 0);
  }
  std::vector<member_counters> counters(at(members));
  for (i64 k = 0; k < members; ++k) {
    counters[at(k)].seed = 77 + std::uint64_t(k);
    counters[at(k)].batch = std::uint64_t(3 * k + 2);
  }
  for (const i64 offset : {-1, 20})
    conform(
        "offset " + std::to_string(offset), members, 0,
        [&](context& ctx, const members_list& who) {
          auto pw = ctx.allocate_of<std::uint16_t>(words.size());
          auto pl = ctx.allocate_of<std::int32_t>(labels.size());
          ctx.upload(pw.data(), words.data(), words.size() * 2);
          ctx.upload(pl.data(), labels.data(), labels.size() * 4);
          data_source data;
          data.tokens = pw.as<std::uint16_t>();
          data.labels = pl.as<std::int32_t>();
          data.examples = examples;
          data.features = features;
          placed_structs<member_counters> pc(ctx, counters, who);
          placed<std::int32_t> tokens(ctx, slab<std::int32_t>(members, rows, features, 2), who),
              lengths(ctx, slab<std::int32_t>(members, 1, rows, 1), who), drawn(ctx, slab<std::int32_t>(members, 1, rows, 1), who);
          gather_tokens(ctx, i64(who.size()), data, pc.get(), offset, tokens, lengths, drawn);
          return outputs().add(tokens).add(lengths).add(drawn);
        },
        [&](i64 k) {
          numbers tokens, lengths, drawn;
          const auto& c = counters[at(k)];
          const auto per_epoch = std::uint64_t(examples / rows);
          for (i64 r = 0; r < rows; ++r) {
            const i64 source = offset >= 0
                                 ? std::min(offset + r, examples - 1)
                                 : i64(permute(c.seed, c.batch / per_epoch, c.batch % per_epoch * std::uint64_t(rows) + std::uint64_t(r),
                                               std::uint64_t(examples)));
            i64 length = 1;
            for (i64 j = 0; j < features; ++j) {
              const auto w = words[at(source * features + j)];
              tokens.push_back(w);
              if (w != 0)
                length = j + 1;
            }
            lengths.push_back(double(length));
            drawn.push_back(labels[at(source)]);
          }
          append(tokens, lengths);
          append(tokens, drawn);
          return tokens;
        });
}

TEST_CASE("operations on texts name what does not fit") {
  slot_options o;
  o.device = find_devices().devices.front();
  context ctx(o);
  const buffer memory = ctx.allocate(1 << 16);
  auto* f = memory.as<float>();
  auto* i = memory.as<std::int32_t>();
  const auto m = [&](i64 rows, i64 cols) { return mat<float>::dense(f, rows, cols); };
  const auto t = [&](i64 rows, i64 cols) { return mat<std::int32_t>::dense(i, rows, cols); };
  const auto refused = [](const auto& call, const std::string& text) {
    try {
      call();
      FAIL_CHECK("wrong arguments were accepted; expected: " << text);
    } catch (const std::invalid_argument& e) {
      CHECK_MESSAGE(std::string(e.what()).find(text) != std::string::npos, e.what());
    }
  };
  const mat_grid<float> g{f, 4, 8, 16, 8, 64, 128};
  refused([&] { gemm_grid(ctx, 1, 2, 2, false, false, 1, g, g, g); }, "gemm_grid: op(A) is 4 x 8, op(B) 4 x 8, C 4 x 8");
  mat_grid<float> c{f, 4, 4, 4, 16, 32, 64};
  gemm_grid(ctx, 2, 2, 2, false, true, 1, g, g, c);
  c.inner_stride = 15;
  refused([&] { gemm_grid(ctx, 1, 2, 2, false, true, 1, g, g, c); }, "C's matrices overlap");
  c.inner_stride = 16, c.outer_stride = 31;
  refused([&] { gemm_grid(ctx, 1, 2, 2, false, true, 1, g, g, c); }, "C's groups overlap: each takes 32, but they are 31 apart");
  c.outer_stride = 32, c.stride = 63;
  refused([&] { gemm_grid(ctx, 2, 2, 2, false, true, 1, g, g, c); }, "its 2 members overlap");
  refused([&] { embed(ctx, 1, t(2, 3), m(5, 4), m(2, 4), m(6, 4)); }, "embed: positions is 2 x 4");
  refused([&] { embed(ctx, 1, t(2, 3), m(5, 4), m(3, 4), m(5, 4)); }, "embed: y is 5 x 4");
  refused([&] { embed(ctx, 1, t(2, 3), m(0, 4), m(3, 4), m(6, 4)); }, "embed: table has no rows");
  refused([&] { embed_backward(ctx, 1, t(2, 3), {f, 6, 4, 5, 30}, m(5, 4), m(3, 4)); }, "embed_backward: dy's rows must be dense");
  refused([&] { softmax(ctx, 1, 1, m(5, 4), {i, 2, 2}, m(5, 4)); }, "softmax: x has 5 rows, which 2 texts do not share evenly");
  refused([&] { softmax_backward(ctx, 1, 1, m(4, 4), m(5, 4), m(5, 4)); }, "softmax_backward: dy is 4 x 4");
  refused([&] { mean_tokens(ctx, 1, m(6, 4), {i, 2, 2}, m(3, 4)); }, "mean_tokens: y is 3 x 4");
  refused([&] { mean_tokens_backward(ctx, 1, m(2, 4), {i, 2, 2}, m(5, 4)); }, "mean_tokens_backward: dx has 5 rows");
  refused([&] { add_residual(ctx, 1, m(2, 4), {f, 3, 3}, m(2, 4), m(2, 4)); }, "add_residual: bias is 1 x 3");
  data_source data;
  data.examples = 4, data.features = 3;
  refused([&] { gather_tokens(ctx, 1, data, nullptr, 0, t(2, 3), {i, 2, 2}, {}); }, "gather_tokens: the data source's tokens is null");
  data.tokens = memory.as<std::uint16_t>();
  refused([&] { gather_tokens(ctx, 1, data, nullptr, 0, t(2, 4), {i, 2, 2}, {}); }, "tokens has 4 columns, but an example has 3 tokens");
  refused([&] { gather_tokens(ctx, 1, data, nullptr, -1, t(2, 3), {i, 2, 2}, {}); }, "counters is null");
}
