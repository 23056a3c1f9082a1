#include "troupe/gpu/basic_workload.hpp"

#include <cmath>

#include <doctest/doctest.h>

#include "gpu/model_support.hpp"
#include "troupe/core/random.hpp"

using namespace troupe;
using namespace troupe::gpu;
using namespace model_test;

namespace {

// The whole of a user's workload: logistic regression on points of the plane, drawn as they are needed.
class logistic final : public basic_workload {
public:
  logistic(context&, const workload_config& cfg) : basic_workload("logistic", cfg), w_(3, 0.0F) {
    batch_ = static_cast<int>(integer_option("batch", 32, 1, 4096));
    weights("w", w_);
    counter("steps", steps_);
    tunable("lr", lr_, 0, 10);
  }

  double step(context&) override {
    core::random_stream points(seed(), "batch", steps_++);
    double loss = 0, g[3] = {0, 0, 0};
    for (int i = 0; i < batch_; ++i) {
      const auto p = draw(points);
      const double error = predict(p) - p.label;
      loss -= std::log(p.label == 1 ? predict(p) : 1 - predict(p));
      g[0] += error * p.x;
      g[1] += error * p.y;
      g[2] += error;
    }
    for (std::size_t i = 0; i < 3; ++i)
      w_[i] -= static_cast<float>(lr_ * g[i] / batch_);
    return loss / batch_;
  }

  evaluation evaluate(context&) override {
    core::random_stream points(1, "held out");
    evaluation out;
    int right = 0;
    for (int i = 0; i < 500; ++i) {
      const auto p = draw(points);
      right += (predict(p) > 0.5) == (p.label == 1);
    }
    out.accuracy = right / 500.0;
    out.samples = steps_ * static_cast<std::uint64_t>(batch_);
    return out;
  }

private:
  struct point { double x, y, label; };
  static point draw(core::random_stream& rng) {
    const double x = rng.normal(), y = rng.normal();
    return {x, y, 2 * x - y > 0.3 ? 1.0 : 0.0};
  }
  double predict(const point& p) const { return 1 / (1 + std::exp(-(w_[0] * p.x + w_[1] * p.y + w_[2]))); }

  std::vector<float> w_;
  std::uint64_t steps_ = 0;
  double lr_ = 1;
  int batch_ = 32;
};

/// State on the device.
class on_device final : public basic_workload {
public:
  on_device(context& ctx, const workload_config& cfg) : basic_workload("on device", cfg), w_(ctx.allocate_of<float>(6)) {
    const std::vector<float> start{1, 2, 3, 4, 5, 6};
    ctx.upload(w_.data(), std::span<const float>(start));
    weights("w", w_, {2, 3});
    state("v", v_);
    tunable("rate", rate_, 0, 1);
  }
  double step(context&) override { return w_.as<float>()[0] += static_cast<float>(rate_); }
  evaluation evaluate(context&) override { return {}; }

private:
  buffer w_;
  std::vector<float> v_ = {7, 8};
  double rate_ = 0.5;
};

/// Shares something with others of its kind.
class sharing final : public basic_workload {
public:
  sharing(context&, const workload_config& cfg, std::shared_ptr<int> made) : basic_workload("sharing", cfg) { ++*made; }
  double step(context&) override { return 0; }
  evaluation evaluate(context&) override { return {}; }
};

workload_registry registry() {
  workload_registry r;
  r.add("logistic", basic_workload::factory<logistic>());
  r.add("on device", basic_workload::factory<on_device>());
  return r;
}

} // namespace

TEST_CASE("a workload of a few lines trains and saves and resumes exactly") {
  const nlohmann::json options = {{"batch", 64}};
  bench a(registry(), "logistic", options, {{"lr", 2.0}});
  a.run(100);
  CHECK(a.work->evaluate(a.ctx).accuracy > 0.95);
  const auto state = a.saved();
  a.run(50);
  bench b(registry(), "logistic", options, {{"lr", 2.0}});
  b.work->load(b.ctx, state, workload::load_mode::everything);
  b.run(50);
  CHECK(a.hash() == b.hash());
  CHECK(b.work->evaluate(b.ctx).samples == 150u * 64u);
}

TEST_CASE("loading a model leaves the counters of a short workload alone") {
  const nlohmann::json options = nlohmann::json::object();
  bench a(registry(), "logistic", options), b(registry(), "logistic", options);
  a.run(10);
  b.run(3);
  b.work->load(b.ctx, a.saved(), workload::load_mode::model);
  CHECK(b.saved().find("weights.w")->bytes == a.saved().find("weights.w")->bytes);
  CHECK(b.saved().find("counters.steps")->as<std::uint64_t>()[0] == 3);
  CHECK(b.work->is_weight("weights.w"));
  CHECK_FALSE(b.work->is_weight("counters.steps"));
}

TEST_CASE("hyperparameters of a short workload are checked by name and range") {
  const nlohmann::json options = nlohmann::json::object();
  CHECK(mentions(thrown_text([&] { bench(registry(), "logistic", options, {{"lr", 11.0}}); }),
                 "/hyperparameters/lr: must be a number from 0 to 10"));
  CHECK(mentions(thrown_text([&] { bench(registry(), "logistic", options, {{"momentum", 0.9}}); }),
                 "/hyperparameters/momentum: is no hyperparameter of logistic; known are lr"));
  bench a(registry(), "logistic", options);
  CHECK(a.work->check({{"lr", std::int64_t{3}}}));
  const auto bad = a.work->check({{"lr", std::string("fast")}, {"rate", 1.0}});
  REQUIRE_FALSE(bad);
  CHECK(mentions(bad.error().text, "lr: must be"));
  CHECK(mentions(bad.error().text, "rate: is no hyperparameter"));
  const auto before = a.hash();
  a.work->set(a.ctx, {{"lr", 0.0}});
  a.run(5);
  CHECK(a.saved().find("weights.w")->bytes == std::vector<std::byte>(12));
  CHECK(a.hash() != before); // the counter went on
  CHECK_THROWS_AS(a.work->set(a.ctx, {{"lr", 99.0}}), std::invalid_argument);
}

TEST_CASE("state on the device is saved and loaded like state on the host") {
  const nlohmann::json options = nlohmann::json::object();
  bench a(registry(), "on device", options), b(registry(), "on device", options);
  a.run(2);
  const auto state = a.saved();
  CHECK(state.find("weights.w")->shape == std::vector<std::int64_t>{2, 3});
  CHECK(state.find("weights.w")->as<float>()[0] == 2.0F);
  CHECK(state.find("state.v")->as<float>()[1] == 8.0F);
  b.work->load(b.ctx, state, workload::load_mode::everything);
  CHECK(b.hash() == a.hash());
  CHECK(a.work->signature() == "on device weights.w 2x3 state.v 2");
  CHECK(a.work->memory_bytes() == 32);
  bench other(registry(), "logistic", options);
  CHECK(mentions(thrown_text([&] { a.work->load(a.ctx, other.saved(), workload::load_mode::model); }), "weights.w"));
  CHECK(a.hash() == b.hash());
}

TEST_CASE("options of a short workload are checked by name and range") {
  CHECK(mentions(thrown_text([&] { bench(registry(), "logistic", {{"batch", 0}}); }), "/workload/batch: "));
  CHECK(mentions(thrown_text([&] { bench(registry(), "logistic", {{"bach", 8}}); }),
                 "/workload/bach: is no option of logistic; known are batch"));
  CHECK(mentions(thrown_text([&] { bench(registry(), "on device", {{"batch", 8}}); }), "it has none"));
}

TEST_CASE("a short workload's checker finds what is wrong before anything starts") {
  auto r = registry();
  r.add("logistic", basic_workload::factory<logistic>(), basic_workload::checker<logistic>());
  std::vector<core::error> faults;
  r.check("logistic", {{"batch", 8}}, {{"lr", 1.0}}, "/trainers/1", faults);
  CHECK(faults.empty());
  r.check("logistic", {{"batch", "many"}}, {}, "/trainers/1", faults);
  r.check("logistic", nlohmann::json::object(), {{"rate", 1.0}}, "/trainers/2", faults);
  REQUIRE(faults.size() == 2);
  CHECK(faults[0].text.starts_with("/trainers/1/workload/batch: "));
  CHECK(faults[1].text.starts_with("/trainers/2/hyperparameters/rate: is no hyperparameter of logistic"));
}

TEST_CASE("all faults of a short workload's configuration are told together") {
  auto r = registry();
  r.add("logistic", basic_workload::factory<logistic>(), basic_workload::checker<logistic>());
  const nlohmann::json options = {{"batch", "many"}, {"bacth", 8}};
  const core::hyperparameters hp = {{"lr", 11.0}, {"rate", 1.0}};
  std::vector<core::error> faults;
  r.check("logistic", options, hp, "/trainers/3", faults);
  REQUIRE(faults.size() == 4);
  CHECK(faults[0].text.starts_with("/trainers/3/workload/batch: "));
  CHECK(faults[1].text.starts_with("/trainers/3/hyperparameters/lr: "));
  CHECK(faults[2].text.starts_with("/trainers/3/workload/bacth: is no option of logistic"));
  CHECK(faults[3].text.starts_with("/trainers/3/hyperparameters/rate: "));
  const auto text = thrown_text([&] { bench(r, "logistic", options, hp); });
  CHECK(mentions(text, "/workload/batch: "));
  CHECK(mentions(text, "; /hyperparameters/rate: "));
}

TEST_CASE("a short workload that no factory made is not used with what was refused") {
  context ctx{slot_options{}};
  workload_config cfg;
  cfg.hp = {{"lr", 11.0}};
  logistic made(ctx, cfg);
  CHECK(mentions(thrown_text([&] { static_cast<void>(made.signature()); }), "/hyperparameters/lr: must be a number from 0 to 10"));
}

TEST_CASE("a factory hands what was given to it to every short workload") {
  auto made = std::make_shared<int>(0);
  workload_registry r;
  r.add("sharing", basic_workload::factory<sharing>(made), basic_workload::checker<sharing>(made));
  bench a(r, "sharing", nlohmann::json::object()), b(r, "sharing", nlohmann::json::object());
  CHECK(*made == 2);
}
