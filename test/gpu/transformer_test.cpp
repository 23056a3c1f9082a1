#include "troupe/gpu/transformer.hpp"

#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>

#include "gpu/model_support.hpp"
#include "gpu/ops_reference.hpp"
#include "troupe/core/random.hpp"
#include "troupe/gpu/counter_random.hpp"
#include "troupe/gpu/dataset.hpp"

using namespace troupe;
using namespace troupe::gpu;
using namespace model_test;
using ops_reference::numbers;

namespace {

using i64 = std::int64_t;

std::size_t at(i64 i) { return static_cast<std::size_t>(i); }

constexpr float rate = 0.3F, smoothing = 0.1F;

data_spec small_texts() {
  std::vector<core::error> faults;
  return data_spec::from_json(
    {{"type", "synthetic_text"}, {"classes", 3}, {"vocabulary", 7}, {"length", 5}, {"train", 64}, {"test", 16}}, "", faults);
}

transformer_spec small_model(precision_kind precision = precision_kind::fp32) {
  transformer_spec s;
  s.vocabulary = 7;
  s.length = 5;
  s.classes = 3;
  s.width = 8;
  s.heads = 2;
  s.layers = 2;
  s.hidden = 12;
  s.precision = precision;
  return s;
}

/// Members of one transformer, with a loaded batch.
struct probe {
  static constexpr i64 texts = 4;

  context& ctx;
  std::shared_ptr<const dataset> data;
  resident_data resident;
  transformer net;
  i64 members, stride;
  buffer weights, low, params, counters, products, vectors;
  model::pass pass;
  std::vector<std::uint64_t> seeds;

  probe(context& c, transformer_spec spec, std::vector<std::uint64_t> member_seeds, bool drop, bool training = true)
    : ctx(c), data(std::make_shared<const dataset>(make_synthetic_text(small_texts()))), resident(ctx, data),
      net(ctx, spec, i64(member_seeds.size()), texts), members(i64(member_seeds.size())), stride(net.layout().size + 16),
      seeds(std::move(member_seeds)) {
    weights = ctx.allocate_of<float>(at(members * stride));
    low = ctx.allocate_of<bf16>(at(members * stride));
    products = ctx.allocate_of<float>(at(members * stride));
    vectors = ctx.allocate_of<float>(at(members * stride));
    params = ctx.allocate_of<member_params>(at(members));
    counters = ctx.allocate_of<member_counters>(at(members));
    for (i64 k = 0; k < members; ++k) {
      std::vector<float> w(at(net.layout().size));
      auto fresh = ctx.allocate_of<float>(w.size());
      ctx.zero(fresh.data(), fresh.size());
      net.initialise(fresh.as<float>(), nullptr, seeds[at(k)]);
      ctx.download(w.data(), fresh.data(), fresh.size());
      // Vectors that begin at 0 or 1 would hide faults.
      core::random_stream rng(seeds[at(k)], "shake");
      for (auto& x : w)
        x += static_cast<float>(rng.uniform(-0.1, 0.1));
      set_weights(k, w);
      member_params p;
      p.dropout = drop ? rate : 0;
      p.label_smoothing = smoothing;
      ctx.upload(params.as<member_params>() + k, &p, sizeof p);
    }
    pass.rows = texts;
    pass.training = training;
    pass.dropout = drop;
    pass.params = params.as<member_params>();
    pass.counters = counters.as<member_counters>();
    rewind();
  }

  void set_weights(i64 k, const std::vector<float>& w) {
    ctx.upload(weights.as<float>() + k * stride, std::span<const float>(w));
    to_bf16(ctx, 1, {weights.as<float>() + k * stride, stride, stride}, {low.as<bf16>() + k * stride, stride, stride});
  }
  std::vector<float> weights_of(i64 k) {
    std::vector<float> w(at(net.layout().size));
    ctx.download(w.data(), weights.as<float>() + k * stride, w.size() * sizeof(float));
    return w;
  }
  void rewind() {
    for (i64 k = 0; k < members; ++k) {
      member_counters c;
      c.seed = seeds[at(k)];
      c.step = 3;
      ctx.upload(counters.as<member_counters>() + k, &c, sizeof c);
    }
    const bool half = net.spec().precision == precision_kind::bf16;
    net.select({weights.as<float>(), nullptr, stride, half ? low.as<bf16>() : nullptr, stride}, members);
    net.load_input(resident.train(), pass.counters, -1, texts);
  }
  double loss(i64 k) {
    rewind();
    net.forward(pass);
    net.loss(pass);
    return summed(k);
  }
  double summed(i64 k) {
    member_counters c;
    ctx.download(&c, counters.as<member_counters>() + k, sizeof c);
    CHECK(c.not_finite == 0);
    CHECK(c.loss_count == 1);
    return double(c.loss_sum);
  }
  std::vector<float> gradient(i64 k) {
    rewind();
    ctx.zero(products.data(), products.size());
    net.forward(pass);
    net.backward(pass, {products.as<float>(), stride, 0, products.as<float>(), stride});
    std::vector<float> g(at(net.layout().size));
    ctx.download(g.data(), products.as<float>() + k * stride, g.size() * sizeof(float));
    return g;
  }
  const parameter& named(const std::string& name) const {
    for (const auto& p : net.layout().weights)
      if (p.name == "weights." + name)
        return p;
    throw std::runtime_error("no parameter " + name);
  }
};

/// The same model as its definition reads, in doubles.
struct reference {
  probe& p;
  i64 member;
  i64 n = probe::texts, t, d, heads, hidden;
  std::vector<i64> tokens, lengths, labels;
  numbers w;

  reference(probe& from, i64 k)
    : p(from), member(k), t(from.net.spec().length), d(from.net.spec().width), heads(from.net.spec().heads),
      hidden(from.net.spec().hidden) {
    for (float x : p.weights_of(k))
      w.push_back(double(x));
    const auto& train = p.data->train;
    for (i64 r = 0; r < n; ++r) {
      const auto source = i64(permute(p.seeds[at(k)], 0, std::uint64_t(r), std::uint64_t(train.size())));
      labels.push_back(train.labels[at(source)]);
      lengths.push_back(1);
      for (i64 j = 0; j < t; ++j) {
        tokens.push_back(train.tokens[at(source * t + j)]);
        if (tokens.back() != 0)
          lengths.back() = j + 1;
      }
    }
  }

  numbers array(const std::string& name) const {
    const auto& a = p.named(name);
    return {w.begin() + a.offset, w.begin() + a.offset + a.size};
  }
  numbers linear(const numbers& x, const std::string& name, i64 in, i64 out) const {
    const auto m = array(name + ".weight"), b = array(name + ".bias");
    const i64 rows = i64(x.size()) / in;
    numbers y(at(rows * out));
    for (i64 r = 0; r < rows; ++r)
      for (i64 j = 0; j < out; ++j) {
        double sum = b[at(j)];
        for (i64 i = 0; i < in; ++i)
          sum += x[at(r * in + i)] * m[at(i * out + j)];
        y[at(r * out + j)] = sum;
      }
    return y;
  }
  numbers norm(const numbers& x, const std::string& name) const {
    return ops_reference::layer_norm(x, i64(x.size()) / d, d, array(name + ".gain"), array(name + ".shift"), double(1e-5F));
  }
  void drop(numbers& x, std::uint32_t site) const {
    if (!p.pass.dropout || !p.pass.training)
      return;
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = double(dropout_bits(p.seeds[at(member)], 3, site, i)) >= double(rate) * 4294967296.0 ? x[i] / (1 - double(rate)) : 0;
  }
  void add(numbers& x, const numbers& y) const {
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] += y[i];
  }
  numbers attend(const numbers& qkv) const {
    const i64 head = d / heads;
    numbers y(at(n * t * d));
    for (i64 i = 0; i < n; ++i)
      for (i64 h = 0; h < heads; ++h)
        for (i64 q = 0; q < t; ++q) {
          const auto of = [&](i64 token, i64 part, i64 c) { return qkv[at((i * t + token) * 3 * d + part * d + h * head + c)]; };
          numbers share(at(lengths[at(i)]));
          double sum = 0;
          for (i64 key = 0; key < lengths[at(i)]; ++key) {
            double dot = 0;
            for (i64 c = 0; c < head; ++c)
              dot += of(q, 0, c) * of(key, 1, c);
            sum += share[at(key)] = std::exp(dot / std::sqrt(double(head)));
          }
          for (i64 key = 0; key < lengths[at(i)]; ++key)
            for (i64 c = 0; c < head; ++c)
              y[at((i * t + q) * d + h * head + c)] += share[at(key)] / sum * of(key, 2, c);
        }
    return y;
  }
  double loss() const {
    const auto table = array("tokens.weight"), places = array("positions.weight");
    numbers x;
    for (i64 r = 0; r < n * t; ++r)
      for (i64 c = 0; c < d; ++c)
        x.push_back(table[at(tokens[at(r)] * d + c)] + places[at(r % t * d + c)]);
    drop(x, 0);
    for (i64 l = 0; l < p.net.spec().layers; ++l) {
      const auto name = "layer" + std::to_string(l);
      auto part = linear(attend(linear(norm(x, name + ".norm1"), name + ".qkv", d, 3 * d)), name + ".projection", d, d);
      drop(part, std::uint32_t(1 + 2 * l));
      add(x, part);
      part = linear(norm(x, name + ".norm2"), name + ".up", d, hidden);
      for (auto& v : part)
        v = ops_reference::gelu(v);
      part = linear(part, name + ".down", hidden, d);
      drop(part, std::uint32_t(2 + 2 * l));
      add(x, part);
    }
    x = norm(x, "norm");
    numbers pooled(at(n * d));
    for (i64 i = 0; i < n; ++i)
      for (i64 j = 0; j < lengths[at(i)]; ++j)
        for (i64 c = 0; c < d; ++c)
          pooled[at(i * d + c)] += x[at((i * t + j) * d + c)] / double(lengths[at(i)]);
    return ops_reference::cross_entropy(linear(pooled, "output", d, p.net.spec().classes), n, p.net.spec().classes, labels,
                                        double(smoothing));
  }
};

} // namespace

TEST_CASE("a transformer computes what its definition says and its gradients are those of finite differences in doubles") {
  context ctx(cpu_slot());
  for (const bool drop : {false, true}) {
    CAPTURE(drop);
    probe p(ctx, small_model(), {11, 12}, drop);
    for (i64 k = 0; k < 2; ++k) {
      reference exact(p, k);
      CHECK(std::any_of(exact.lengths.begin(), exact.lengths.end(), [&](i64 n) { return n < exact.t; }));
      const double want = exact.loss();
      CHECK(p.loss(k) == doctest::Approx(want).epsilon(1e-5));
      const auto g = p.gradient(k);
      CHECK(p.summed(k) == doctest::Approx(want).epsilon(1e-5));
      for (const auto& a : p.net.layout().weights) {
        CAPTURE(a.name);
        double largest = 0, worst = 0;
        for (i64 i = 0; i < a.size; ++i) {
          auto& x = exact.w[at(a.offset + i)];
          const double kept = x, h = 1e-5;
          x = kept + h;
          const double above = exact.loss();
          x = kept - h;
          const double slope = (above - exact.loss()) / (2 * h);
          x = kept;
          largest = std::max(largest, std::abs(slope));
          worst = std::max(worst, std::abs(slope - double(g[at(a.offset + i)])));
        }
        CHECK(largest > 1e-5); // something to compare
        CHECK(worst < 1e-5 + 1e-4 * largest);
      }
    }
  }
}

TEST_CASE("dropout takes no part in a pass that does not train") {
  context ctx(cpu_slot());
  probe p(ctx, small_model(), {11}, true, false);
  CHECK(p.loss(0) == doctest::Approx(reference(p, 0).loss()).epsilon(1e-5));
}

TEST_CASE("a transformer's member computes what it computes alone bit for bit") {
  context ctx(cpu_slot());
  for (auto precision : {precision_kind::fp32, precision_kind::bf16}) {
    probe together(ctx, small_model(precision), {5, 6, 7}, true);
    const auto g = together.gradient(2);
    const auto loss = together.loss(2);
    probe alone(ctx, small_model(precision), {7}, true);
    CHECK(alone.gradient(0) == g);
    CHECK(alone.loss(0) == loss);
  }
}

TEST_CASE("a transformer's bf16 products stay near fp32 products") {
  context ctx(cpu_slot());
  probe full(ctx, small_model(), {5}, false), half(ctx, small_model(precision_kind::bf16), {5}, false);
  CHECK(half.loss(0) == doctest::Approx(full.loss(0)).epsilon(0.02));
  const auto a = full.gradient(0), b = half.gradient(0);
  double difference = 0, length = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(double(a[i]) - double(b[i]), 2);
    length += std::pow(double(a[i]), 2);
  }
  CHECK(difference > 0);
  CHECK(difference < 0.05 * 0.05 * length);
}

TEST_CASE("a transformer adds products to their target and overwrites the rest") {
  context ctx(cpu_slot());
  probe p(ctx, small_model(), {5}, false);
  const auto g = p.gradient(0);
  std::vector<float> ones(at(p.members * p.stride), 1.0F);
  ctx.upload(p.products.data(), std::span<const float>(ones));
  ctx.upload(p.vectors.data(), std::span<const float>(ones));
  p.rewind();
  p.net.forward(p.pass);
  p.net.backward(p.pass, {p.products.as<float>(), p.stride, 0.5F, p.vectors.as<float>(), p.stride});
  std::vector<float> products(at(p.stride)), vectors(at(p.stride));
  ctx.download(products.data(), p.products.data(), products.size() * sizeof(float));
  ctx.download(vectors.data(), p.vectors.data(), vectors.size() * sizeof(float));
  for (const auto& a : p.net.layout().weights)
    for (i64 i = a.offset; i < a.offset + a.size; ++i)
      if (a.offset < p.net.layout().matrix_size)
        CHECK(products[at(i)] == doctest::Approx(g[at(i)] + 0.5F).epsilon(1e-5));
      else
        CHECK(vectors[at(i)] == g[at(i)]);
}

TEST_CASE("specs that make no transformer are refused with the reason") {
  context ctx(cpu_slot());
  const auto refused = [&](auto change) {
    auto s = small_model();
    change(s);
    return thrown_text([&] { transformer(ctx, s, 1, 4); });
  };
  CHECK(refused([](transformer_spec&) {}).empty());
  CHECK(mentions(refused([](transformer_spec& s) { s.vocabulary = 1; }), "at least 2 tokens"));
  CHECK(mentions(refused([](transformer_spec& s) { s.layers = 0; }), "layers"));
  CHECK(mentions(refused([](transformer_spec& s) { s.heads = 3; }), "width of 8 cannot be shared evenly by 3 heads"));
  transformer net(ctx, small_model(), 1, 4);
  data_source other;
  other.features = 5;
  CHECK(mentions(thrown_text([&] { net.load_input(other, nullptr, 0, 4); }), "no texts of 5 tokens"));
}
