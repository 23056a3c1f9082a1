/// Numbers too small to be normal ones: slots have none (FAULTS row 74).
#include "troupe/core/subnormals.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "gpu/group_bench.hpp"
#include "gpu/slot_worker_fixture.hpp"

using namespace group_test;

namespace {

/// By their bits: whoever flushes takes a subnormal number for 0.
std::size_t subnormals_in(const core::checkpoint& x) {
  std::size_t out = 0;
  for (const auto& t : x.tensors())
    if (t.type == core::dtype::f32)
      for (const auto bits : t.as<std::uint32_t>())
        out += (bits & 0x7f800000u) == 0 && (bits & 0x007fffffu) != 0 ? 1 : 0;
  return out;
}

/// The units of the first layer die, and what momentum they have is small: of a few steps it is normal, of many not.
core::checkpoint dying(const core::checkpoint& from) {
  core::checkpoint out;
  for (const auto& [key, text] : from.texts())
    out.set_text(key, text);
  for (auto t : from.tensors()) {
    const std::span<float> numbers{reinterpret_cast<float*>(t.bytes.data()), t.bytes.size() / sizeof(float)};
    if (t.name == "weights.dense0.bias")
      for (float& v : numbers)
        v = -1000;
    else if (t.name.starts_with("mom"))
      for (float& v : numbers)
        v = 1e-36F;
    out.add(std::move(t));
  }
  return out;
}

struct variant {
  optimizer_kind optimizer;
  bool decays; ///< so that products go to a gradient of their own
  precision_kind precision;
};

/// How many subnormal numbers two members' states have, trained as one with dead units on a thread that flushes or not.
std::size_t left_after_training(const variant& v, bool emulated, bool flush, capture_mode capture) {
  auto spec = dense();
  spec.precision = v.precision;
  group_bench b(spec, v.optimizer, small_data(), 1, emulated, 0, 0, capture);
  const core::subnormals_scope here(flush);
  auto& g = *b.group;
  for (const std::int64_t k : {0, 1}) {
    g.join(static_cast<std::uint64_t>(k));
    member_params p;
    p.lr = 0.01F;
    p.momentum = 0.9F;
    p.weight_decay = v.decays ? 1e-3F : 0;
    g.set_params(k, p);
  }
  g.set_active(std::vector<std::int64_t>{0, 1});
  g.step();
  for (const std::int64_t k : {0, 1})
    g.load(k, dying(b.saved(k)), true);
  for (int i = 0; i < 80; ++i)
    g.step();
  return subnormals_in(b.saved(0)) + subnormals_in(b.saved(1));
}

} // namespace

TEST_CASE("FAULTS row 74 after training with dead units no state holds a subnormal number and without flushing it would") {
  const variant variants[] = {{optimizer_kind::sgd, false, precision_kind::fp32},
                              {optimizer_kind::sgd, true, precision_kind::fp32},
                              {optimizer_kind::sgd, false, precision_kind::bf16},
                              {optimizer_kind::adamw, false, precision_kind::fp32}};
  for (const auto& v : variants)
    for (const bool emulated : {false, true}) {
      if (emulated && !cuda_emulation::available)
        continue;
      CAPTURE(emulated);
      CAPTURE(v.decays);
      CAPTURE(static_cast<int>(v.optimizer));
      CAPTURE(static_cast<int>(v.precision));
      if (core::can_flush_subnormals)
        for (const auto capture : {capture_mode::never, capture_mode::always})
          CHECK(left_after_training(v, emulated, true, capture) == 0);
      if (!emulated && !v.decays) // decay has weights in the gradient, so no unit's is 0
        CHECK(left_after_training(v, false, false, capture_mode::never) > 0);
    }
}

TEST_CASE("whatever computes on a slot's thread flushes subnormal numbers") {
  const auto o = model_test::cpu_slot();
  std::vector<bool> seen; // before the slot, whose thread writes to it
  {
    slot_worker w(o);
    REQUIRE(test::start(w, [&](context&) { seen.push_back(core::flushes_subnormals()); }).get());
    const auto ran = test::start(w, test::host([&](context&, std::uint64_t) {
                                   seen.push_back(core::flushes_subnormals());
                                   return 0.0;
                                 }),
                                 2).get();
    CHECK(ran.failure.text == "");
  }
  CHECK(seen == std::vector<bool>(3, core::can_flush_subnormals));
}

TEST_CASE("whoever binds a context flushes subnormal numbers from then on") {
  std::unique_ptr<context> ctx;
  std::thread([&] {
    ctx = std::make_unique<context>(model_test::cpu_slot());
    CHECK(core::flushes_subnormals() == core::can_flush_subnormals);
  }).join();
  std::thread([&] {
    const core::subnormals_scope off(false);
    ctx->bind();
    CHECK(core::flushes_subnormals() == core::can_flush_subnormals);
    ctx.reset();
  }).join();
}
