#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "gpu/model_support.hpp"
#include "troupe/gpu/slot_worker.hpp"

using namespace troupe;
using namespace troupe::gpu;
using namespace model_test;

namespace {

/// Trainers of one slot, without the actors around them.
class slot_bench {
public:
  explicit slot_bench(std::uint64_t budget = 0, std::uint64_t pinned = 0, unsigned index = 0) : worker_(options(budget, pinned, index)) {}

  static slot_options options(std::uint64_t budget, std::uint64_t pinned, unsigned index) {
    auto o = cpu_slot();
    o.memory_budget = budget;
    o.pinned_budget = pinned;
    o.index = index;
    return o;
  }

  /// What a task threw, or empty.
  std::string on_slot(slot_worker::task work) {
    std::promise<core::result<void>> over;
    worker_.post(std::move(work), [&](core::result<void> r) { over.set_value(std::move(r)); });
    const auto r = over.get_future().get();
    return r ? std::string{} : r.error().text;
  }

  void add(std::uint64_t seed, const nlohmann::json& model = small_mlp()) {
    auto who = std::make_shared<hosted>();
    const auto text = on_slot([&](context& ctx) {
      workload_config cfg{"t" + std::to_string(seed), seed, &model, {{"lr", 0.01 + 0.001 * static_cast<double>(seed)}, {"momentum", 0.9}}};
      auto made = registry_.make(ctx, "mlp", cfg);
      if (!made)
        throw std::runtime_error(made.error().text);
      who->work = std::move(*made);
    });
    REQUIRE_MESSAGE(text.empty(), text);
    trainers_.push_back(std::move(who));
  }

  /// All of them, at once.
  void train(std::uint64_t steps) {
    std::vector<std::promise<run_outcome>> over(trainers_.size());
    for (std::size_t i = 0; i < over.size(); ++i)
      worker_.run(trainers_[i], steps, [&over, i](run_outcome o) { over[i].set_value(std::move(o)); });
    for (auto& p : over) {
      const auto o = p.get_future().get();
      CHECK_MESSAGE(o.failure.text.empty(), o.failure.text);
      CHECK(o.steps == steps);
    }
  }

  struct state {
    std::uint64_t hash = 0;
    double loss = 0, accuracy = 0;
    std::map<std::string, double, std::less<>> numbers;
  };
  std::vector<state> states() {
    std::vector<state> out;
    for (const auto& t : trainers_)
      CHECK(on_slot([&](context& ctx) {
              core::checkpoint saved;
              t->work->save(ctx, saved);
              const auto e = t->work->evaluate(ctx);
              out.push_back({core::content_hash(saved), t->loss_sum, e.accuracy, e.numbers});
            }).empty());
    return out;
  }

  void drop() {
    CHECK(on_slot([&](context&) {
            for (auto& t : trainers_)
              t->work.reset();
          }).empty());
    trainers_.clear();
  }
  /// Trainers that rest from now on, until they are put back.
  std::vector<std::shared_ptr<hosted>> take_all() { return std::exchange(trainers_, {}); }
  void put_back(const std::vector<std::shared_ptr<hosted>>& who) { trainers_.insert(trainers_.begin(), who.begin(), who.end()); }
  slot_worker::counters counters() const { return worker_.snapshot(); }

private:
  workload_registry registry_ = builtin_workloads();
  std::vector<std::shared_ptr<hosted>> trainers_; // before their worker's end
  slot_worker worker_;
};

} // namespace

TEST_CASE("sixty four trainers whose states are four times the budget finish a round with the weights they have without one") {
  auto model = small_mlp(); // large enough that states are what takes the room
  model["hidden"] = {256, 256};
  slot_bench plenty;
  for (std::uint64_t i = 0; i < 64; ++i)
    plenty.add(i, model);
  plenty.train(12);
  const auto expected = plenty.states();

  std::uint64_t budget = 0, state = 0;
  {
    slot_bench few(64 << 20); // with a budget, so that the data counts
    few.add(0, model);
    const auto one = few.counters().memory_used;
    for (std::uint64_t i = 1; i < 9; ++i)
      few.add(i, model);
    budget = few.counters().memory_peak;
    state = (few.counters().memory_used - one) / 8;
  }
  REQUIRE(64 * state >= 4 * budget);
  slot_bench tight(budget);
  for (std::uint64_t i = 0; i < 64; ++i)
    tight.add(i, model);
  for (int round = 0; round < 2; ++round)
    tight.train(6);
  const auto got = tight.states();
  const auto use = tight.counters();
  CHECK(use.memory_peak <= budget);
  CHECK(use.device.memory_reserved <= budget + (64 << 10)); // blocks are whole pages
  CHECK(use.device.swaps_out > 48);
  CHECK(use.device.swaps_in > 48);
  CHECK(use.device.pinned_used >= 64 * state / 2);
  std::size_t tell = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    CHECK(got[i].hash == expected[i].hash);
    CHECK(got[i].loss == expected[i].loss);
    CHECK(got[i].accuracy == expected[i].accuracy);
    tell += got[i].numbers.contains("swaps") && got[i].numbers.at("swapped_bytes") > 0 ? 1 : 0;
    CHECK_FALSE(expected[i].numbers.contains("swaps"));
  }
  CHECK(tell >= 60);
  tight.drop();
  CHECK(tight.counters().memory_used == 0);
  CHECK(tight.counters().device.pinned_held == 0);
}

namespace {

nlohmann::json model_of(std::uint64_t i) {
  auto model = small_mlp();
  model["hidden"] = i % 2 == 0 ? std::vector{256, 256} : std::vector{160, 160, 160};
  return model;
}

} // namespace

TEST_CASE("sixty four trainers of two architectures whose states are three times the budget finish a round with the weights they have without one") {
  slot_bench plenty;
  for (std::uint64_t i = 0; i < 64; ++i)
    plenty.add(i, model_of(i));
  plenty.train(12);
  const auto expected = plenty.states();
  std::uint64_t budget = 0;
  {
    slot_bench few(64 << 20);
    for (std::uint64_t i = 0; i < 14; ++i)
      few.add(i, model_of(i));
    budget = few.counters().memory_peak;
  }
  REQUIRE(plenty.counters().memory_used > 3 * budget);
  slot_bench tight(budget);
  for (std::uint64_t i = 0; i < 64; ++i)
    tight.add(i, model_of(i));
  for (int round = 0; round < 2; ++round)
    tight.train(6);
  const auto got = tight.states();
  const auto use = tight.counters();
  CHECK(use.memory_peak <= budget);
  CHECK(use.device.memory_reserved <= budget + (64 << 10)); // blocks are whole pages
  CHECK(use.device.swaps_in > 48);
  for (std::size_t i = 0; i < got.size(); ++i) {
    CHECK(got[i].hash == expected[i].hash);
    CHECK(got[i].loss == expected[i].loss);
    CHECK(got[i].accuracy == expected[i].accuracy);
  }
  tight.drop();
  CHECK(tight.counters().memory_used == 0);
  CHECK(tight.counters().device.pinned_held == 0);
}

TEST_CASE("trainers that rest make room for those of another architecture and go on later as if nothing had been") {
  slot_bench plenty, roomy(64 << 20);
  for (auto* b : {&plenty, &roomy})
    for (std::uint64_t i = 0; i < 6; ++i)
      b->add(2 * i, model_of(0));
  const auto budget = roomy.counters().memory_peak + (64 << 10);
  slot_bench resting(budget);
  for (std::uint64_t i = 0; i < 6; ++i)
    resting.add(2 * i, model_of(0));
  for (auto* b : {&plenty, &resting}) {
    b->train(3);
    const auto rest = b->take_all();
    for (std::uint64_t i = 0; i < 6; ++i)
      b->add(2 * i + 1, model_of(1));
    b->train(4);
    if (b == &resting)
      CHECK(b->counters().device.swaps_out > 0);
    b->put_back(rest);
    b->train(3);
  }
  const auto expected = plenty.states(), got = resting.states();
  REQUIRE(got.size() == 12);
  for (std::size_t i = 0; i < got.size(); ++i)
    CHECK(got[i].hash == expected[i].hash);
  CHECK(resting.counters().memory_peak <= budget);
}

TEST_CASE("a slice lasts at least fifty times as long as copies to make room for it") {
  context ctx(slot_bench::options(64 << 20, 0, 0));
  const auto registry = builtin_workloads();
  std::vector<std::unique_ptr<workload>> all;
  const auto build = [&](std::uint64_t i) {
    const auto model = model_of(i);
    auto made = registry.make(ctx, "mlp", {"t" + std::to_string(i), i, &model, {{"lr", 0.01}}});
    REQUIRE(made);
    all.push_back(std::move(*made));
  };
  build(0);
  build(2);
  const auto taken = ctx.allocate(ctx.memory_free()); // for good
  const auto at = std::chrono::steady_clock::now() + std::chrono::hours(1);
  ctx.set_yield(nullptr, at);
  CHECK(ctx.deadline() == at);
  const auto now = std::chrono::steady_clock::now();
  ctx.set_yield(nullptr, now);
  all.front()->step(ctx);
  CHECK(ctx.deadline() == now); // all are there
  CHECK(ctx.should_yield());
  const auto before = ctx.snapshot().swapped_bytes;
  build(1);
  all.back()->step(ctx);
  const auto moved = ctx.snapshot().swapped_bytes - before;
  REQUIRE(moved > 0);
  CHECK(ctx.deadline() >= now + std::chrono::nanoseconds(50 * moved / 10)); // 10 bytes a nanosecond
  ctx.set_yield(nullptr, at);
  CHECK(ctx.deadline() == at);
  ctx.set_yield(nullptr, std::chrono::steady_clock::time_point::max());
  all.front()->step(ctx);
  CHECK(ctx.deadline() == std::chrono::steady_clock::time_point::max());
}

TEST_CASE("FAULTS row 25 a slot that asks for more than its budget is told the numbers and the other's losses stay as they are") {
  static constexpr std::uint64_t device = 10 << 20;
  const auto losses = [&](bool greedy) {
    slot_bench one(device / 10 * 4, 0, 0), two(device / 10 * 4, 0, 1);
    one.add(1);
    one.add(2);
    two.add(3);
    std::string text;
    std::thread other([&] {
      two.train(20);
      if (greedy)
        text = two.on_slot([](context& ctx) { (void)ctx.allocate(device / 10 * 6); });
      two.train(20);
    });
    one.train(40);
    other.join();
    if (greedy) {
      CHECK(mentions(text, "slot 1 (cpu): 6291456 bytes were requested"));
      CHECK(mentions(text, "of 4194304 bytes of the slot's memory budget are in use"));
    }
    auto out = one.states();
    out.push_back(two.states().front());
    return out;
  };
  const auto quiet = losses(false), disturbed = losses(true);
  for (std::size_t i = 0; i < quiet.size(); ++i) {
    CHECK(quiet[i].loss == disturbed[i].loss);
    CHECK(quiet[i].hash == disturbed[i].hash);
  }
}

TEST_CASE("FAULTS row 27 a slot's memory is free again each time its trainers have gone") {
  slot_bench b(4 << 20);
  for (std::uint64_t i = 0; i < 20; ++i) {
    b.add(i);
    b.add(i + 100);
    b.train(2);
    CHECK(b.counters().memory_used > 0);
    b.drop();
    CHECK(b.counters().memory_used == 0);
    CHECK(b.counters().device.pinned_held == 0);
  }
}

TEST_CASE("a slot's counters say what it captured and sent and how many calls it made") {
  slot_bench b;
  b.add(1);
  const auto before = b.counters().device.calls;
  b.train(3);
  const auto after = b.counters();
  CHECK(after.device.calls > before + 30);
  CHECK(after.device.strays == 0);
  CHECK(after.device.captures == 0); // a CPU gains nothing by it
  CHECK(after.device.capture_fault.empty());
  CHECK(after.device.staged_bytes == 0);
  CHECK(after.device.swaps_out == 0);
}
