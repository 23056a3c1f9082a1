#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "gpu/cuda_emulation.hpp"
#include "gpu/model_support.hpp"
#include "kernel_table.hpp"
#include "troupe/gpu/dataset.hpp"
#include "troupe/gpu/network.hpp"
#include "troupe/gpu/training_group.hpp"

using namespace troupe;
using namespace troupe::gpu;
using namespace model_test;

#if !defined(__SANITIZE_THREAD__) // which knows no coroutines
namespace {

/// A slot of an emulated GPU, with two members of a group.
struct slot {
  std::optional<context> ctx;
  std::unique_ptr<training_group> group;
  std::int64_t a = 0, b = 0;

  explicit slot(optimizer_kind optimizer = optimizer_kind::sgd, precision_kind precision = precision_kind::fp32, bool emulated = true,
                std::uint64_t budget = 0) {
    auto o = cpu_slot();
    o.memory_budget = budget;
    ctx.emplace(o);
    if (emulated)
      internal::kernel_override::use(*ctx, cuda_emulation::table());
    std::vector<core::error> faults;
    const auto host = std::make_shared<const dataset>(make_synthetic(data_spec::from_json(small_data(), "", faults)));
    network_spec net;
    net.features = host->features;
    net.classes = host->classes;
    net.hidden = {24, 16};
    net.precision = precision;
    group = std::make_unique<training_group>(
      *ctx, group_options{network::factory(net), optimizer, 16, std::make_shared<const resident_data>(*ctx, host)});
    a = group->join(1);
    b = group->join(2);
  }
  void steps(std::int64_t member, int n) {
    group->set_active({&member, 1});
    for (int i = 0; i < n; ++i)
      group->step();
  }
  core::checkpoint saved(std::int64_t member) {
    core::checkpoint out;
    group->save(member, out);
    return out;
  }
  core::checkpoint kept(std::int64_t member) {
    auto out = saved(member);
    out.attach(group->keep_on_device(member));
    return out;
  }
  std::uint64_t copies() const { return ctx->snapshot().slot_copies; }
};

bool is_model(const std::string& name) { return name != "counters"; }

/// Weights, statistics and optimizer state.
void check_equal(const core::checkpoint& x, const core::checkpoint& y) {
  REQUIRE(x.tensors().size() == y.tensors().size());
  for (const auto& t : x.tensors())
    if (is_model(t.name)) {
      INFO(t.name);
      CHECK(*y.find(t.name) == t);
    }
}

/// The same checkpoint whose host tensors say nothing: who gets the right weights has them from the device.
core::checkpoint hollow(const core::checkpoint& x, std::shared_ptr<const core::checkpoint::attachment> near) {
  core::checkpoint out;
  for (auto t : x.tensors()) {
    if (is_model(t.name) && t.name != "optimizer.updates")
      t.bytes.assign(t.bytes.size(), std::byte{0});
    out.add(std::move(t));
  }
  out.attach(std::move(near));
  return out;
}

} // namespace

TEST_CASE("a state kept on the device goes to another slot or another member without the host") {
  for (const auto optimizer : {optimizer_kind::sgd, optimizer_kind::adamw})
    for (const auto precision : {precision_kind::fp32, precision_kind::bf16}) {
      slot from(optimizer, precision), to(optimizer, precision);
      from.steps(from.a, 5);
      const auto state = from.saved(from.a);
      const auto near = from.group->keep_on_device(from.a);
      REQUIRE(near);
      from.steps(from.a, 3); // it goes on meanwhile
      to.steps(to.a, 2);
      for (auto* taker : {&to, &from}) {
        taker->group->load(taker->b, hollow(state, near), false);
        check_equal(state, taker->saved(taker->b));
        CHECK(taker->copies() == 1);
      }
      // Trained on, it is what one is that took the host's tensors.
      slot by_host(optimizer, precision);
      by_host.group->load(by_host.b, state, false);
      by_host.steps(by_host.b, 4);
      to.steps(to.b, 4);
      CHECK(core::content_hash(to.saved(to.b)) == core::content_hash(by_host.saved(by_host.b)));
      CHECK(by_host.copies() == 0);
    }
}

TEST_CASE("a moved trainer takes its whole state from the device too") {
  slot from, to;
  from.steps(from.a, 5);
  const auto state = from.kept(from.a);
  to.group->load(to.a, state, true);
  CHECK(to.copies() == 1);
  from.steps(from.a, 4);
  to.steps(to.a, 4);
  CHECK(core::content_hash(from.saved(from.a)) == core::content_hash(to.saved(to.a)));
}

TEST_CASE("a state kept on the device outlives its member and its slot") {
  slot to;
  core::checkpoint state;
  {
    slot from;
    from.steps(from.a, 5);
    state = from.kept(from.a);
    from.group->leave(from.a);
  }
  to.group->load(to.a, state, false);
  CHECK(to.copies() == 1);
  check_equal(state, to.saved(to.a));
}

TEST_CASE("a record of another layout is left alone and the tensors are taken") {
  slot low(optimizer_kind::sgd, precision_kind::bf16), to;
  low.steps(low.a, 5);
  const auto state = low.kept(low.a);
  REQUIRE(state.attached() != nullptr);
  to.group->load(to.a, state, false);
  CHECK(to.copies() == 0);
  check_equal(state, to.saved(to.a));
}

TEST_CASE("a tensor changed after the fact takes the copy with it") {
  slot from;
  auto state = from.kept(from.a);
  REQUIRE(state.attached() != nullptr);
  auto copy = state;
  CHECK(copy == state);
  copy.attach(nullptr);
  CHECK(copy == state); // no part of the value
  auto t = *state.find("optimizer.updates");
  state.add(t);
  CHECK(state.attached() == nullptr);
}

TEST_CASE("no copy is kept on a CPU or where it would take more than half of what is free") {
  slot cpu(optimizer_kind::sgd, precision_kind::fp32, false);
  CHECK(cpu.group->keep_on_device(cpu.a) == nullptr);

  slot tight(optimizer_kind::sgd, precision_kind::fp32, true, 8 << 20);
  const auto before = tight.ctx->memory_used();
  auto kept = tight.group->keep_on_device(tight.a);
  REQUIRE(kept);
  const auto bytes = tight.ctx->memory_used() - before;
  CHECK(bytes > 0);
  kept.reset();
  CHECK(tight.ctx->memory_used() == before);
  const auto rest = tight.ctx->allocate(tight.ctx->memory_free() - 2 * bytes + 256);
  CHECK(tight.group->keep_on_device(tight.a) == nullptr);
}
#endif
