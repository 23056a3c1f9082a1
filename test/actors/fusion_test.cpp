/// Trainers of equal models that share a slot: as one, and as if each were alone.
#include <doctest/doctest.h>

#include "run_fixture.hpp"
#include "troupe/actors/slot.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

core::experiment networks(unsigned trainers, std::uint64_t steps, std::uint64_t every, bool fusion) {
  auto e = experiment_of(trainers, steps, every);
  e.name = "networks";
  for (unsigned i = 0; i < trainers; ++i) {
    auto& t = e.trainers[i];
    t.workload_type = "mlp";
    t.workload_options = R"({"data": {"type": "synthetic", "classes": 4, "features": 16, "train": 256, "test": 64, "noise": 0.5},
                             "hidden": [12], "batch": 16})";
    t.hp = {{"lr", 0.01 * (1 + i % 5)}, {"momentum", i % 4 == 1 ? 0.5 : 0.9}, {"dropout", i % 3 == 0 ? 0.1 : 0.0}};
  }
  e.fusion = fusion;
  return e;
}

set_up on_one_slot(core::experiment exp) {
  set_up s(std::move(exp), 1);
  s.options.workloads = std::make_shared<gpu::workload_registry>(gpu::builtin_workloads());
  return s;
}

} // namespace

TEST_CASE("a population that copies and changes itself is the same whether its steps run as one or not") {
  std::map<std::string, std::uint64_t> seen[2];
  for (const bool fusion : {false, true}) {
    auto exp = networks(12, 160, 20, fusion);
    exp.trainers[4].stop_step = 90;
    const auto domain = nlohmann::json::parse(R"({"lr": {"type": "log_uniform", "low": 0.001, "high": 0.1}})");
    exp.space = std::get<core::search_space>(core::search_space::from_json(domain, "/search_space"));
    exp.policy_type = "pbt";
    exp.policy_options = R"({"metric": "accuracy"})";
    auto s = on_one_slot(exp);
    auto run = s.start();
    for (int i = 0; i < 5; ++i) // whoever pauses, wherever it is
      if (run->control().pause("t3").get())
        (void)run->control().resume("t3").get();
    const auto summary = run->wait();
    CHECK(summary.outcome == run_outcome_kind::done);
    CHECK(s.seen->sync_points().size() == 7);
    seen[fusion ? 1 : 0] = hashes(summary);
  }
  CHECK(seen[0].size() == 12);
  CHECK(seen[0] == seen[1]);
}

TEST_CASE("of trainers that run as one some pause and stop and join and fail and the others do not notice") {
  const auto undisturbed = hashes(on_one_slot(networks(6, 3000, 1000, false)).run());
  auto exp = networks(8, 3000, 1000, true);
  exp.trainers[6].stop_step = 2'000'000'000; // is stopped
  exp.trainers[7].hp.set("lr", 1e6);         // its loss is not finite
  exp.failures.max_restarts = 1;
  auto s = on_one_slot(exp);
  auto run = s.start();
  const auto c = run->control();
  REQUIRE(c.add_trainer(R"({"name": "late", "stop_step": 500, "hyperparameters": {"lr": 0.02},
    "workload": {"type": "mlp", "hidden": [12], "batch": 16,
                 "data": {"type": "synthetic", "classes": 4, "features": 16, "train": 256, "test": 64, "noise": 0.5}}})")
            .get());
  if (c.pause("t1").get())
    (void)c.resume("t1").get();
  const auto pushed = c.push("t6", {{"lr", 0.001}}).get();
  REQUIRE(pushed);
  REQUIRE(c.stop("t6").get());
  const auto summary = run->wait();
  auto now = hashes(summary);
  CHECK(find(summary, "t6").hp.number("lr", 0).value() == 0.001);
  CHECK(find(summary, "t7").failure.text.find("not finite") != std::string::npos);
  CHECK(find(summary, "late").failure.text.empty());
  for (const auto& [name, hash] : undisturbed)
    CHECK(now.at(name) == hash);
}

TEST_CASE("an experiment of two architectures whose states are beyond the budget finishes with the weights it has without one") {
  const auto mixed = [](std::uint64_t budget) {
    auto exp = networks(12, 12, 4, true);
    for (std::size_t i = 0; i < exp.trainers.size(); ++i) {
      auto options = nlohmann::json::parse(exp.trainers[i].workload_options);
      options["hidden"] = i % 2 == 0 ? std::vector{256, 256} : std::vector{160, 160, 160};
      exp.trainers[i].workload_options = options.dump();
    }
    auto s = on_one_slot(std::move(exp));
    s.options.slots[0].memory_budget = budget;
    return s;
  };
  auto plenty = mixed(0), tight = mixed(3u << 20); // the states take 6 million bytes
  const auto expected = plenty.run();
  const auto got = tight.run();
  CHECK(got.outcome == run_outcome_kind::done);
  CHECK(hashes(got) == hashes(expected));
  CHECK(tight.seen->sync_points().size() == plenty.seen->sync_points().size());
  std::set<std::size_t> swapped;
  for (std::size_t i = 0; i < 12; ++i)
    CHECK(find(got, "t" + std::to_string(i)).failure.text.empty());
  for (const auto& at : tight.seen->sync_points())
    for (std::size_t i = 0; i < at.reports.size(); ++i)
      if (at.reports[i].numbers.contains("swaps"))
        swapped.insert(i % 2);
  CHECK(swapped.size() == 2); // of both
}
