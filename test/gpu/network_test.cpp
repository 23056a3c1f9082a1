#include "troupe/gpu/network.hpp"

#include <cmath>
#include <numeric>
#include <optional>

#include <doctest/doctest.h>

#include "gpu/cuda_emulation.hpp"
#include "gpu/model_support.hpp"
#include "kernel_table.hpp"
#include "network_layout.hpp"

using namespace troupe;
using namespace troupe::gpu;
using namespace model_test;

namespace {

/// K networks on generated data with one loaded batch, whose loss is a function of the weights.
struct probe {
  context& ctx;
  dataset_ptr data;
  resident_data resident;
  network net;
  std::int64_t members, size;
  buffer weights, low, statistics, params, counters, gradient;
  member_state state;
  network::pass pass;

  probe(context& c, network_spec spec, std::int64_t k, const nlohmann::json& data_options, float dropout = 0)
    : ctx(c), data(make(data_options)), resident(ctx, data), net(ctx, complete(std::move(spec), *data), k, rows), members(k),
      size(net.layout().size) {
    params = ctx.allocate_of<member_params>(static_cast<std::size_t>(k));
    counters = ctx.allocate_of<member_counters>(static_cast<std::size_t>(k));
    const auto n = static_cast<std::size_t>(k * size);
    weights = ctx.allocate_of<float>(n);
    low = ctx.allocate_of<bf16>(n);
    statistics = ctx.allocate_of<float>(n);
    gradient = ctx.allocate_of<float>(n);
    const bool half = net.layout().precision == precision_kind::bf16;
    state = {weights.as<float>(), statistics.as<float>(), size, half ? low.as<bf16>() : nullptr, size};
    member_params p;
    p.dropout = dropout;
    p.label_smoothing = 0.1F;
    for (std::int64_t i = 0; i < k; ++i) {
      ctx.upload(params.as<member_params>() + i, &p, sizeof p);
      initialise(i, 100 + static_cast<std::uint64_t>(i));
    }
    net.select(state, k);
    pass.rows = rows;
    pass.dropout = dropout > 0;
    pass.move_statistics = false;
    pass.params = params.as<member_params>();
    pass.counters = counters.as<member_counters>();
    reset_counters();
    net.load_input(resident.train(), pass.counters, -1, rows);
  }

  static constexpr std::int64_t rows = 12;

  static dataset_ptr make(const nlohmann::json& options) {
    std::vector<core::error> faults;
    return std::make_shared<const dataset>(make_synthetic(data_spec::from_json(options, "", faults)));
  }
  static network_spec complete(network_spec s, const dataset& d) {
    s.features = d.features;
    s.classes = d.classes;
    s.height = d.height;
    s.width = d.width;
    s.channels = d.channels;
    return s;
  }

  void initialise(std::int64_t member, std::uint64_t seed) {
    std::vector<float> w(static_cast<std::size_t>(size));
    auto fresh = ctx.allocate_of<float>(w.size());
    auto* s = statistics.as<float>() + member * size;
    ctx.zero(fresh.data(), fresh.size());
    ctx.zero(s, fresh.size());
    net.initialise(fresh.as<float>(), s, seed);
    ctx.download(w.data(), fresh.data(), fresh.size());
    set_weights(member, w);
  }

  void reset_counters() {
    for (std::int64_t i = 0; i < members; ++i) {
      member_counters c;
      c.seed = 7 + static_cast<std::uint64_t>(i);
      ctx.upload(counters.as<member_counters>() + i, &c, sizeof c);
    }
  }

  double loss(std::int64_t member) {
    reset_counters();
    net.forward(pass);
    net.loss(pass);
    member_counters c;
    ctx.download(&c, counters.as<member_counters>() + member, sizeof c);
    CHECK(c.not_finite == 0);
    return static_cast<double>(c.loss_sum);
  }

  std::vector<float> gradient_of(std::int64_t member) {
    reset_counters();
    ctx.zero(gradient.data(), gradient.size());
    net.forward(pass);
    net.backward(pass, {gradient.as<float>(), size, 0, gradient.as<float>(), size});
    std::vector<float> out(static_cast<std::size_t>(size));
    ctx.download(out.data(), gradient.as<float>() + member * size, out.size() * sizeof(float));
    return out;
  }

  std::vector<float> weights_of(std::int64_t member) {
    std::vector<float> out(static_cast<std::size_t>(size));
    ctx.download(out.data(), weights.as<float>() + member * size, out.size() * sizeof(float));
    return out;
  }
  void set_weights(std::int64_t member, const std::vector<float>& w) {
    ctx.upload(weights.as<float>() + member * size, std::span<const float>(w));
    to_bf16(ctx, members, {weights.as<float>(), size, size}, {low.as<bf16>(), size, size});
  }
};

double norm(const float* x, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i)
    sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return std::sqrt(sum);
}

/// For every array of weights: the loss's slope along its gradient is the gradient's length.
void check_against_finite_differences(network_spec spec, const nlohmann::json& data, double tolerance, float dropout = 0) {
  context ctx(cpu_slot());
  probe p(ctx, std::move(spec), 2, data, dropout);
  const std::int64_t member = 1;
  const auto g = p.gradient_of(member);
  const auto w = p.weights_of(member);
  for (const auto& array : p.net.layout().weights) {
    const auto* slope = g.data() + array.offset;
    const auto length = norm(slope, array.size);
    CAPTURE(array.name);
    REQUIRE(length > 1e-4);
    // Kinks allow small steps only, smooth functions large ones, at which rounding does not matter.
    const double step = p.net.spec().act == activation::relu ? 2e-3 : 2e-2;
    auto moved = [&](double by) {
      auto x = w;
      for (std::int64_t i = 0; i < array.size; ++i)
        x[static_cast<std::size_t>(array.offset + i)] += static_cast<float>(by * static_cast<double>(slope[i]) / length);
      p.set_weights(member, x);
      return p.loss(member);
    };
    const double found = (8 * (moved(step) - moved(-step)) - (moved(2 * step) - moved(-2 * step))) / (12 * step);
    p.set_weights(member, w);
    CHECK(found == doctest::Approx(length).epsilon(tolerance));
  }
}

network_spec mlp(activation act, norm_kind norm = norm_kind::none) {
  network_spec s;
  s.hidden = {20, 12};
  s.act = act;
  s.norm = norm;
  return s;
}

network_spec cnn(activation act, norm_kind norm = norm_kind::none) {
  network_spec s;
  s.conv = {{6, 3, 1, 1, 2}, {5, 3, 2, 1, 1}};
  s.hidden = {10};
  s.act = act;
  s.norm = norm;
  return s;
}

} // namespace

TEST_CASE("gradients of dense networks agree with finite differences") {
  check_against_finite_differences(mlp(activation::none), small_data(), 2e-3);
  for (auto norm : {norm_kind::none, norm_kind::layer, norm_kind::batch}) {
    CAPTURE(to_string(norm));
    check_against_finite_differences(mlp(activation::gelu, norm), small_data(), 2e-3);
    check_against_finite_differences(mlp(activation::relu, norm), small_data(), 3e-2);
  }
}

TEST_CASE("gradients with dropout agree with finite differences under the same mask") {
  check_against_finite_differences(mlp(activation::gelu), small_data(), 2e-3, 0.3F);
  check_against_finite_differences(mlp(activation::relu, norm_kind::layer), small_data(), 3e-2, 0.3F);
}

TEST_CASE("gradients of convolutional networks agree with finite differences") {
  for (auto norm : {norm_kind::none, norm_kind::batch}) {
    CAPTURE(to_string(norm));
    check_against_finite_differences(cnn(activation::gelu, norm), small_images(), 1e-2);
    check_against_finite_differences(cnn(activation::relu, norm), small_images(), 3e-2);
  }
}

TEST_CASE("a member of a group computes what it computes alone") {
  for (auto precision : {precision_kind::fp32, precision_kind::bf16}) {
    auto spec = cnn(activation::relu, norm_kind::batch);
    spec.precision = precision;
    context ctx(cpu_slot());
    probe group(ctx, spec, 3, small_images());
    const auto in_group = group.gradient_of(2);
    const auto weights = group.weights_of(2);
    probe alone(ctx, spec, 1, small_images());
    alone.set_weights(0, weights);
    // The same batch: the seeds of members differ, so the lone one takes the third member's.
    member_counters c;
    c.seed = 9;
    ctx.upload(alone.counters.as<member_counters>(), &c, sizeof c);
    alone.net.load_input(alone.resident.train(), alone.pass.counters, -1, probe::rows);
    CHECK(alone.gradient_of(0) == in_group);
  }
}

TEST_CASE("bf16 products stay near fp32 products") {
  for (const bool images : {false, true}) {
    auto spec = images ? cnn(activation::relu) : mlp(activation::relu);
    const auto data = images ? small_images() : small_data();
    context ctx(cpu_slot());
    probe full(ctx, spec, 1, data);
    spec.precision = precision_kind::bf16;
    probe half(ctx, spec, 1, data);
    CHECK(half.loss(0) == doctest::Approx(full.loss(0)).epsilon(0.01));
    const auto a = full.gradient_of(0), b = half.gradient_of(0);
    std::vector<float> difference(a.size());
    for (std::size_t i = 0; i < a.size(); ++i)
      difference[i] = a[i] - b[i];
    const auto n = static_cast<std::int64_t>(a.size());
    CHECK(norm(difference.data(), n) > 0);
    CHECK(norm(difference.data(), n) < 0.05 * norm(a.data(), n));
  }
}

TEST_CASE("products add to the scaled contents of their target") {
  for (const bool images : {false, true}) {
    context ctx(cpu_slot());
    probe p(ctx, images ? cnn(activation::relu) : mlp(activation::relu), 1, images ? small_images() : small_data());
    const auto g = p.gradient_of(0);
    std::vector<float> ones(g.size(), 1.0F);
    ctx.upload(p.gradient.data(), std::span<const float>(ones));
    auto vectors = ctx.allocate_of<float>(g.size());
    p.net.forward(p.pass);
    p.net.backward(p.pass, {p.gradient.as<float>(), p.size, 0.5F, vectors.as<float>(), p.size});
    std::vector<float> sum(g.size());
    ctx.download(sum.data(), p.gradient.data(), sum.size() * sizeof(float));
    for (const auto& array : p.net.layout().weights) {
      const auto i = static_cast<std::size_t>(array.offset + array.size / 2);
      if (array.offset < p.net.layout().matrix_size)
        CHECK(sum[i] == doctest::Approx(g[i] + 0.5F).epsilon(1e-5));
      else
        CHECK(sum[i] == 1.0F); // vectors have a place of their own
    }
  }
}

TEST_CASE("weights start uniform within the bound of their fan-in and depend on the seed alone") {
  context ctx(cpu_slot());
  probe p(ctx, mlp(activation::relu), 2, small_data());
  p.initialise(0, 5);
  p.initialise(1, 5);
  CHECK(p.weights_of(0) == p.weights_of(1));
  p.initialise(1, 6);
  CHECK(p.weights_of(0) != p.weights_of(1));
  const auto w = p.weights_of(0);
  for (const auto& array : p.net.layout().weights) {
    const auto bound = 1 / std::sqrt(static_cast<float>(array.fan_in));
    const auto* x = w.data() + array.offset;
    const auto [low, high] = std::minmax_element(x, x + array.size);
    CHECK(*low >= -bound);
    CHECK(*high < bound);
    if (array.size > 100) {
      CHECK(*high > 0.9F * bound);
      CHECK(norm(x, array.size) == doctest::Approx(bound * std::sqrt(static_cast<double>(array.size) / 3)).epsilon(0.1));
    }
  }
}

TEST_CASE("batch normalisation's running statistics serve passes that do not train") {
  context ctx(cpu_slot());
  probe p(ctx, mlp(activation::relu, norm_kind::batch), 1, small_data());
  const auto before = p.loss(0);
  p.pass.training = false;
  const auto untrained = p.loss(0);
  CHECK(untrained != before); // running mean 0 and variance 1 so far
  p.pass.training = p.pass.move_statistics = true;
  for (int i = 0; i < 200; ++i)
    p.net.forward(p.pass);
  p.pass.training = false;
  // After so many passes over one batch they are that batch's, but for the variance's n / (n - 1).
  CHECK(p.loss(0) == doctest::Approx(before).epsilon(0.05));
}

TEST_CASE("specs that make no network are refused with the reason") {
  context ctx(cpu_slot());
  auto refused = [&](const network_spec& s) {
    return thrown_text([&] { network(ctx, s, 1, 4); });
  };
  network_spec s;
  CHECK(mentions(refused(s), "at least 1 feature and 2 classes"));
  s.features = 64;
  s.classes = 3;
  CHECK(refused(s).empty());
  s.conv = {{}};
  CHECK(mentions(refused(s), "convolutions need images"));
  s.height = s.width = 8;
  s.channels = 1;
  CHECK(refused(s).empty());
  s.conv = {{4, 11, 1, 1, 1}};
  CHECK(mentions(refused(s), "conv0 has a kernel of 11, larger than its image of 8 x 8"));
  s.conv = {{4, 3, 1, 3, 1}};
  CHECK(mentions(refused(s), "padding of 3"));
  s.conv = {{4, 3, 1, 1, 4}, {4, 3, 1, 1, 4}};
  CHECK(mentions(refused(s), "conv1 pools 4 x 4 pixels of an image of 2 x 2"));
  s.conv = {{}};
  s.norm = norm_kind::layer;
  CHECK(mentions(refused(s), "layer normalisation"));
  CHECK(mentions(thrown_text([&] { network(ctx, mlp(activation::relu), 1, 4); }), "at least 1 feature"));
}

TEST_CASE("the work of a step is counted in products") {
  context ctx(cpu_slot());
  network_spec s;
  s.features = 784;
  s.classes = 10;
  s.hidden = {256, 256};
  const network net(ctx, s, 1, 128);
  // 155.1 MFLOP for a batch of 128, as a hand count gives.
  CHECK(net.flops_per_example() * 128 == doctest::Approx(155.1e6).epsilon(1e-3));
  CHECK(net.layout().size >= 269322);
  CHECK(net.memory_bytes() <= ctx.memory_used());
}

namespace {

/// What a network of two convolutions on Fashion-MNIST's images takes for so many lanes.
std::uint64_t bytes_of_lanes(std::int64_t lanes, bool emulated) {
  context ctx(cpu_slot());
  if (emulated)
    internal::kernel_override::use(ctx, cuda_emulation::table());
  network_spec s;
  s.height = s.width = 28;
  s.channels = 1;
  s.features = 784;
  s.classes = 10;
  s.conv = {{16, 3, 1, 1, 2}, {32, 3, 1, 1, 2}};
  s.hidden = {128};
  const network net(ctx, s, lanes, 256);
  return ctx.memory_used();
}

} // namespace

TEST_CASE("on a GPU the columns of convolutions are bounded for all lanes together and on the CPU they are a lane's own") {
  CHECK(internal::column_budget(true, 1) == std::int64_t{64} << 20);
  CHECK(64 * internal::column_budget(true, 64) == std::int64_t{64} << 20);
  CHECK(internal::column_budget(false, 64) == internal::column_budget(false, 1));
  // Of one lane columns, their errors and a tile are most of it.
  CHECK(bytes_of_lanes(8, true) < 8 * bytes_of_lanes(1, true) / 2);
  CHECK(bytes_of_lanes(8, false) == 8 * bytes_of_lanes(1, false));
}
