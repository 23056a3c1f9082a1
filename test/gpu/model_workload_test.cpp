#include <cmath>

#include <doctest/doctest.h>

#include "gpu/model_support.hpp"

using namespace troupe;
using namespace troupe::gpu;
using namespace model_test;

namespace {

using nlohmann::json;

json with(json base, const json& changes) {
  base.update(changes);
  return base;
}

/// Ways of training that differ in their arithmetic.
struct variant {
  std::string name;
  std::string type;
  json options;
  core::hyperparameters hp;
  double accuracy = 0.93; ///< at least so much after 120 steps
};

std::vector<variant> variants() {
  return {
    {"momentum in products", "mlp", small_mlp(), {{"lr", 0.05}}},
    {"all of SGD", "mlp", small_mlp(), {{"lr", 0.02}, {"nesterov", true}, {"weight_decay", 1e-3}, {"clip_norm", 0.5}}},
    {"AdamW with a schedule", "mlp", with(small_mlp(), {{"optimizer", "adamw"}, {"activation", "gelu"}}),
     {{"lr", 0.01}, {"schedule", std::string("warmup_cosine")}, {"schedule_warmup", std::int64_t{5}}, {"schedule_steps", std::int64_t{60}}}},
    {"dropout and layer normalisation", "mlp", with(small_mlp(), {{"norm", "layer"}}), {{"lr", 0.05}, {"dropout", 0.2}}},
    {"batch normalisation", "mlp", with(small_mlp(), {{"norm", "batch"}}), {{"lr", 0.05}, {"label_smoothing", 0.1}}},
    {"bf16", "mlp", with(small_mlp(), {{"precision", "bf16"}}), {{"lr", 0.05}}},
    {"images", "cnn", small_cnn(), {{"lr", 0.05}}},
    {"images in bf16 with batch normalisation", "cnn", with(small_cnn(), {{"norm", "batch"}, {"precision", "bf16"}}), {{"lr", 0.02}}},
    {"texts", "transformer", small_transformer(), {{"lr", 0.01}}, 0.75},
    {"texts in bf16 with SGD and dropout", "transformer", with(small_transformer(), {{"optimizer", "sgd"}, {"precision", "bf16"}}),
     {{"lr", 0.1}, {"dropout", 0.05}}, 0.75},
  };
}

/// Gives way after every step.
std::atomic<bool> always{true};

} // namespace

TEST_CASE("networks learn to tell the classes of generated data apart") {
  const auto registry = builtin_workloads();
  for (const auto& v : variants()) {
    CAPTURE(v.name);
    bench b(registry, v.type, v.options, v.hp);
    const auto before = b.work->evaluate(b.ctx);
    CHECK(before.accuracy < 0.6);
    const auto report = b.run(120);
    CHECK(report.steps == 120);
    const auto after = b.work->evaluate(b.ctx);
    CHECK(after.accuracy > v.accuracy);
    CHECK(after.numbers.at("eval_loss") < 0.6 * before.numbers.at("eval_loss"));
    CHECK(after.samples == 120u * 16u);
    CHECK(after.epoch == doctest::Approx(7.5));
    CHECK(report.loss_sum / 120 < before.numbers.at("eval_loss"));
  }
}

TEST_CASE("training does not depend on how steps are grouped nor on evaluation") {
  const auto registry = builtin_workloads();
  for (const auto& v : variants()) {
    CAPTURE(v.name);
    bench whole(registry, v.type, v.options, v.hp), parts(registry, v.type, v.options, v.hp);
    const auto loss = whole.run(37).loss_sum;
    double parts_loss = 0;
    for (std::uint64_t n : {1u, 2u, 16u, 5u}) {
      parts_loss += parts.run(n).loss_sum;
      parts.work->evaluate(parts.ctx);
      parts.saved();
    }
    for (int i = 0; i < 3; ++i)
      parts_loss += parts.work->step(parts.ctx);
    // Giving way after every step.
    parts.ctx.set_yield(&always, std::chrono::steady_clock::time_point::max());
    for (std::uint64_t left = 10; left > 0;) {
      const auto r = parts.run(left);
      CHECK(r.steps == 1);
      parts_loss += r.loss_sum;
      left -= r.steps;
    }
    CHECK(parts_loss == loss);
    CHECK(parts.hash() == whole.hash());
  }
}

TEST_CASE("two trainings that take turns on a context are as two alone") {
  const auto registry = builtin_workloads();
  const auto options = small_mlp();
  bench a(registry, "mlp", options, {{"lr", 0.1}}, 1), b(registry, "mlp", options, {{"lr", 0.02}}, 2);
  a.run(20);
  b.run(20);
  bench shared(registry, "mlp", options, {{"lr", 0.1}}, 1);
  const workload_config cfg{"second", 2, &options, {{"lr", 0.02}}};
  auto second = *registry.make(shared.ctx, "mlp", cfg);
  for (int i = 0; i < 10; ++i) {
    shared.run(2);
    gpu::run_report done;
    second->run(shared.ctx, 2, done);
  }
  core::checkpoint saved;
  second->save(shared.ctx, saved);
  CHECK(shared.hash() == a.hash());
  CHECK(core::content_hash(saved) == b.hash());
  CHECK(a.hash() != b.hash());
}

TEST_CASE("training that was saved and loaded equals uninterrupted training") {
  const auto registry = builtin_workloads();
  for (const auto& v : variants()) {
    CAPTURE(v.name);
    bench straight(registry, v.type, v.options, v.hp);
    straight.run(13);
    const auto state = core::decode_safetensors(core::encode_safetensors(straight.saved()));
    REQUIRE(state);
    const core::hyperparameters push{{"lr", 0.007}};
    straight.work->set(straight.ctx, push);
    straight.run(14);
    bench resumed(registry, v.type, v.options, v.hp, 999);
    resumed.run(3);
    resumed.work->load(resumed.ctx, *state, workload::load_mode::everything);
    resumed.work->set(resumed.ctx, push);
    resumed.run(14);
    CHECK(resumed.hash() == straight.hash());
    const auto a = straight.work->evaluate(straight.ctx), b = resumed.work->evaluate(resumed.ctx);
    CHECK(a.accuracy == b.accuracy);
    CHECK(a.grad_norm == b.grad_norm);
    CHECK(a.numbers == b.numbers);
    CHECK(a.samples == b.samples);
  }
}

TEST_CASE("loading a model takes weights and optimizer state but neither seed nor place") {
  const auto registry = builtin_workloads();
  for (const auto* optimizer : {"sgd", "adamw"}) {
    const auto options = with(small_mlp(), {{"optimizer", optimizer}});
    bench donor(registry, "mlp", options, {}, 1), taker(registry, "mlp", options, {}, 2);
    donor.run(20);
    taker.run(10);
    const auto own = taker.saved(), given = donor.saved();
    taker.work->load(taker.ctx, given, workload::load_mode::model);
    const auto now = taker.saved();
    for (const auto& t : given.tensors())
      if (t.name != "counters")
        CHECK(*now.find(t.name) == t);
    CHECK(*now.find("counters") == *own.find("counters"));
    CHECK(taker.work->evaluate(taker.ctx).accuracy == donor.work->evaluate(donor.ctx).accuracy);
  }
}

TEST_CASE("a checkpoint that does not fit is refused by name and changes nothing") {
  const auto registry = builtin_workloads();
  bench b(registry, "mlp", small_mlp());
  b.run(3);
  const auto before = b.hash();
  bench wider(registry, "mlp", with(small_mlp(), {{"hidden", {24, 17}}}));
  auto refused = [&](const core::checkpoint& in) {
    const auto text = thrown_text([&] { b.work->load(b.ctx, in, workload::load_mode::model); });
    CHECK(b.hash() == before);
    return text;
  };
  CHECK(mentions(refused(wider.saved()), "weights.dense1.weight"));
  CHECK(mentions(refused({}), "weights.dense0.weight"));
  core::checkpoint partial;
  const auto whole = b.saved();
  for (const auto& t : whole.tensors())
    if (t.name != "momentum.output.bias")
      partial.add(t);
  CHECK(mentions(refused(partial), "momentum.output.bias"));
}

TEST_CASE("signatures are equal exactly where weights mean the same") {
  const auto registry = builtin_workloads();
  auto signature = [&](const char* type, const json& options) {
    return bench(registry, type, options).work->signature();
  };
  const auto base = signature("mlp", small_mlp());
  CHECK(base == signature("mlp", with(small_mlp(), {{"batch", 8}})));
  CHECK(base == signature("mlp", with(small_mlp(), {{"precision", "bf16"}})));
  for (const json& change : {json{{"hidden", {16, 24}}}, json{{"activation", "gelu"}}, json{{"norm", "layer"}},
                             json{{"optimizer", "adamw"}}, json{{"data", {{"type", "synthetic"}, {"classes", 4}}}}})
    CHECK(base != signature("mlp", with(small_mlp(), change)));
  CHECK(signature("cnn", small_cnn()) != base);
  const auto batch_norm = bench(registry, "mlp", with(small_mlp(), {{"norm", "batch"}}));
  CHECK(batch_norm.work->is_weight("weights.dense0.weight"));
  CHECK(batch_norm.work->is_weight("statistics.dense0.mean"));
  CHECK_FALSE(batch_norm.work->is_weight("momentum.dense0.weight"));
  CHECK_FALSE(batch_norm.work->is_weight("counters"));
}

TEST_CASE("a batch can be learned by heart") {
  auto options = small_mlp();
  options["data"]["train"] = 16;
  options["data"]["noise"] = 3.0; // classes overlap: only memory helps
  bench b(builtin_workloads(), "mlp", options, {{"lr", 0.1}});
  b.run(299);
  CHECK(b.work->step(b.ctx) < 0.01);
}

TEST_CASE("pushed hyperparameters take effect at the next step and bad ones are refused whole") {
  const auto registry = builtin_workloads();
  bench b(registry, "mlp", small_mlp(), {{"lr", 0.1}});
  b.run(5);
  b.work->set(b.ctx, {{"lr", 0.0}, {"momentum", 0.0}});
  const auto frozen = b.saved();
  b.run(5);
  const auto later = b.saved();
  CHECK(*frozen.find("weights.dense0.weight") == *later.find("weights.dense0.weight"));
  const auto bad = b.work->check({{"lr", 0.5}, {"momentum", 1.5}, {"speed", 3.0}});
  REQUIRE_FALSE(bad);
  CHECK(mentions(bad.error().text, "momentum: must be a number from 0 to below 1, not 1.5"));
  CHECK(mentions(bad.error().text, "speed: is no hyperparameter"));
  CHECK_FALSE(mentions(bad.error().text, "lr:"));
  CHECK_THROWS_AS(b.work->set(b.ctx, {{"lr", 0.5}, {"momentum", 1.5}}), std::invalid_argument);
  b.run(1);
  CHECK(*b.saved().find("weights.dense0.weight") == *frozen.find("weights.dense0.weight"));
  // A change that is wrong only together with what is in effect.
  CHECK(b.work->check({{"schedule", std::string("warmup_cosine")}}));
  b.work->set(b.ctx, {{"schedule_warmup", std::int64_t{2000}}, {"schedule_steps", std::int64_t{500}}});
  CHECK_FALSE(b.work->check({{"schedule", std::string("warmup_cosine")}}));
}

TEST_CASE("SGD through the momentum's product is SGD") {
  // A weight decay too small to change a float makes the workload take the long way.
  const auto registry = builtin_workloads();
  bench fast(registry, "mlp", small_mlp(), {{"lr", 0.05}});
  bench slow(registry, "mlp", small_mlp(), {{"lr", 0.05}, {"weight_decay", 1e-30}});
  fast.run(10);
  slow.run(10);
  const auto a = fast.saved(), b = slow.saved();
  for (const auto* name : {"weights.dense0.weight", "momentum.dense0.weight", "weights.output.bias"}) {
    const auto x = a.find(name)->as<float>(), y = b.find(name)->as<float>();
    for (std::size_t i = 0; i < x.size(); i += 7)
      CHECK(x[i] == doctest::Approx(y[i]).epsilon(1e-3).scale(0.01));
  }
}

TEST_CASE("a clipped step is as long as its bound says") {
  bench b(builtin_workloads(), "mlp", small_mlp(), {{"lr", 1.0}, {"momentum", 0.0}, {"clip_norm", 0.125}});
  const auto before = b.saved();
  b.run(1);
  const auto after = b.saved();
  double squares = 0;
  for (const auto& t : before.tensors()) {
    if (!t.name.starts_with("weights."))
      continue;
    const auto x = t.as<float>(), y = after.find(t.name)->as<float>();
    for (std::size_t i = 0; i < x.size(); ++i)
      squares += std::pow(static_cast<double>(x[i]) - static_cast<double>(y[i]), 2);
  }
  CHECK(std::sqrt(squares) == doctest::Approx(0.125).epsilon(1e-4));
}

TEST_CASE("a loss that is not finite fails the training with its step") {
  bench b(builtin_workloads(), "mlp", small_mlp(), {{"lr", 1e6}});
  const auto text = thrown_text([&] { b.run(100); });
  CHECK(mentions(text, "the loss is not finite at step "));
  bench again(builtin_workloads(), "mlp", small_mlp(), {{"lr", 1e6}});
  CHECK_THROWS_AS(again.run(100), not_finite);
}

TEST_CASE("steps take no memory and what is held is told") {
  for (const auto& v : variants()) {
    CAPTURE(v.name);
    bench b(builtin_workloads(), v.type, v.options, v.hp);
    const auto used = b.ctx.memory_used(), peak = b.ctx.memory_peak();
    b.run(3);
    b.work->evaluate(b.ctx);
    CHECK(b.ctx.memory_used() == used);
    CHECK(b.ctx.memory_peak() == peak);
    CHECK(b.work->memory_bytes() <= used);
    CHECK(b.work->memory_bytes() > used * 9 / 10);
    b.work.reset();
    CHECK(b.ctx.memory_used() == 0);
  }
}

TEST_CASE("a memory budget that a network exceeds is refused") {
  auto slot = cpu_slot();
  slot.memory_budget = 64 << 10;
  context ctx(slot);
  const auto options = small_mlp();
  const auto made = builtin_workloads().make(ctx, "mlp", {"big", 1, &options, {}});
  REQUIRE_FALSE(made);
  CHECK(ctx.memory_used() == 0);
}

TEST_CASE("idle workloads count steps and report a loss that policies can use") {
  const json options = {{"weights", 4}};
  bench b(builtin_workloads(), "idle", options, {{"lr", 0.5}});
  CHECK(b.run(1000).steps == 1000);
  CHECK(b.work->evaluate(b.ctx).accuracy == doctest::Approx(1 - 1.0 / 501));
  bench other(builtin_workloads(), "idle", options, {{"lr", 0.25}});
  other.work->load(other.ctx, b.saved(), workload::load_mode::everything);
  CHECK(other.hash() == b.hash());
  CHECK(other.work->evaluate(other.ctx).samples == 1000);
  CHECK_FALSE(b.work->check({{"lr", -1.0}}));
}
