/// An idle slot takes over a trainer of another slot of its process.
///
/// That a move is worth it depends on measured time; here the trainers that could move have work for hours, so that it always is,
/// and none waits for a moment.
#include <algorithm>

#include <doctest/doctest.h>

#include "run_fixture.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr std::uint64_t for_hours = 400'000'000'000;

/// t0 and t2 share slot 0; t1 on slot 1 is soon at its end. All meet once.
core::experiment uneven(bool rebalance = true) {
  auto e = experiment_of(3, for_hours, 0);
  e.sync.schedule.at_steps = {40};
  e.trainers[1].stop_step = 60;
  e.rebalance = rebalance;
  return e;
}

core::experiment uneven_networks(bool rebalance, bool fusion) {
  auto e = uneven(rebalance);
  for (auto& t : e.trainers) {
    t.workload_type = "mlp";
    t.workload_options = R"({"data": {"type": "synthetic", "classes": 4, "features": 16, "train": 256, "test": 64, "noise": 0.5},
                             "hidden": [12], "batch": 16})";
    t.hp = {{"lr", 0.01}, {"momentum", 0.9}, {"dropout", 0.1}};
  }
  e.fusion = fusion;
  return e;
}

set_up with_networks(core::experiment e) {
  set_up s(std::move(e));
  s.options.workloads = std::make_shared<gpu::workload_registry>(gpu::builtin_workloads());
  return s;
}

/// The same trainers up to where `x` came with them, each on its slot.
core::experiment up_to(core::experiment e, const run_summary& x) {
  e.rebalance = false;
  for (auto& t : e.trainers)
    t.stop_step = find(x, t.name).step;
  return e;
}

const trainer_info& info(const run_status& x, const std::string& name) {
  return *std::find_if(x.trainers.begin(), x.trainers.end(), [&](const auto& t) { return t.name == name; });
}

} // namespace

TEST_CASE("a trainer that moved to an idle slot has the same weights as if it had stayed") {
  for (const bool fusion : {false, true}) {
    auto s = with_networks(uneven_networks(true, fusion));
    auto run = s.start();
    REQUIRE(s.seen->wait_for_event("moved"));
    const auto moved = s.seen->events("moved").front().details;
    const auto name = moved.at("name").get<std::string>();
    CHECK(name != "t1");
    CHECK(moved.at("from") == "0/0");
    CHECK(moved.at("to") == "0/1");
    const auto now = run->control().status().get();
    REQUIRE(now);
    CHECK(info(*now, name).slot == "0/1");
    CHECK(info(*now, name == "t0" ? "t2" : "t0").slot == "0/0");
    const auto step_now = [&] {
      const auto x = run->control().status().get();
      REQUIRE(x);
      return info(*x, name).step;
    };
    while (step_now() <= moved.at("step").get<std::uint64_t>()) { // it trains on there
    }
    REQUIRE(run->control().stop().get());
    const auto summary = run->wait();
    CHECK(summary.outcome == run_outcome_kind::done);
    CHECK(find(summary, name).step > moved.at("step").get<std::uint64_t>());
    CHECK(find(summary, name).slot == "0/1");
    CHECK(find(summary, name).incarnation == 0);
    CHECK(s.seen->events("trainer_failed").empty());

    auto apart = with_networks(up_to(uneven_networks(false, false), summary));
    CHECK(hashes(apart.run()) == hashes(summary));
    CHECK(apart.seen->events("moved").empty());
  }
}

TEST_CASE("a trainer that another slot cannot take stays where it is and that is told once") {
  auto e = uneven();
  for (const auto i : {0u, 2u})
    e.trainers[i].workload_options = R"({"size":4,"bytes":4096})";
  set_up s(e);
  s.options.slots[1].memory_budget = 2048;
  auto run = s.start();
  REQUIRE(s.seen->wait_for_event("move_failed", 2)); // each of the two
  REQUIRE(run->control().pause().get());
  REQUIRE(run->control().resume().get());
  REQUIRE(run->control().stop().get());
  const auto summary = run->wait();
  CHECK(summary.outcome == run_outcome_kind::done);
  const auto told = s.seen->events("move_failed");
  REQUIRE(told.size() == 2);
  CHECK(told[0].details.at("name") != told[1].details.at("name"));
  CHECK(told[0].details.at("reason").get<std::string>().find("4096 bytes were requested") != std::string::npos);
  CHECK(s.seen->events("moved").empty());
  for (const auto* name : {"t0", "t2"}) {
    CHECK(find(summary, name).slot == "0/0");
    CHECK(find(summary, name).restarts == 0);
    CHECK(find(summary, name).incarnation == 0);
  }
  CHECK(hashes(set_up(up_to(uneven(), summary)).run()) == hashes(summary));
}

TEST_CASE("what comes while a trainer moves is done after it and a trainer with a slot of its own stays there") {
  auto what = std::make_shared<mischief>();
  auto e = uneven();
  e.sync.schedule.at_steps.clear(); // so that nothing else is saved
  e.trainers[0].slot = "0/0";
  what->hold_saves("t2");
  set_up s(e, 2, what);
  auto run = s.start();
  REQUIRE(what->wait_until_saving("t2"));
  const auto c = run->control();
  auto paused = c.pause("t2");
  auto pushed = c.push("t2", {{"lr", 0.25}});
  REQUIRE(c.status().get()); // t2 answers this after it has heard of both
  what->release_saves();
  const auto p = paused.get();
  REQUIRE(p);
  const auto q = pushed.get();
  REQUIRE(q);
  REQUIRE(s.seen->wait_for_event("moved"));
  const auto moved = s.seen->events("moved").front().details;
  CHECK(moved.at("name") == "t2");
  CHECK(moved.at("step") == p->front().step);
  CHECK(moved.at("step") == q->front().step);
  REQUIRE(c.resume("t2").get());
  REQUIRE(c.stop().get());
  const auto summary = run->wait();
  CHECK(summary.outcome == run_outcome_kind::done);
  CHECK(find(summary, "t2").hp.number("lr", 0).value() == 0.25);
  CHECK(find(summary, "t2").slot == "0/1");
  CHECK(find(summary, "t0").slot == "0/0");
}

TEST_CASE("a trainer is stopped and a run is left while a trainer moves") {
  for (const bool stop : {true, false}) {
    auto what = std::make_shared<mischief>();
    auto e = uneven();
    e.trainers[0].slot = "0/0";
    e.sync.schedule.at_steps.clear(); // a barrier would leave a slot idle
    set_up s(e, 2, what);
    what->hold("t1", 50);
    what->hold("t2", 1); // it can't have moved before
    auto run = s.start();
    REQUIRE(what->wait_until_held("t1"));
    REQUIRE(what->wait_until_held("t2"));
    what->hold_builds("t2");
    what->release();
    REQUIRE(what->wait_until_building("t2"));
    auto stopped = run->control().stop("t2");
    if (stop) {
      what->release_builds();
      REQUIRE(stopped.get());
      REQUIRE(run->control().stop().get());
      CHECK(run->wait().outcome == run_outcome_kind::done);
    } else {
      what->release_builds();
      run.reset();
      CHECK_NOTHROW(stopped.get());
    }
  }
}

TEST_CASE("a trainer that moved is restarted like any other") {
  auto what = std::make_shared<mischief>();
  auto e = uneven();
  e.trainers[0].slot = "0/0";
  set_up s(e, 2, what);
  auto run = s.start();
  REQUIRE(s.seen->wait_for_event("moved"));
  const auto c = run->control();
  REQUIRE(c.pause("t2").get());
  const auto at = c.status().get();
  REQUIRE(at);
  what->fail("t2", info(*at, "t2").step + 1, 1);
  REQUIRE(c.resume("t2").get());
  REQUIRE(s.seen->wait_for_event("trainer_failed"));
  REQUIRE(s.seen->wait_for_event("trainer_started", 4));
  REQUIRE(c.stop().get());
  const auto summary = run->wait();
  CHECK(summary.outcome == run_outcome_kind::done);
  CHECK(find(summary, "t2").restarts == 1);
  CHECK(find(summary, "t0").restarts == 0);
}
