/// Whole runs whose trainers have trained enough before their stop step.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "run_fixture.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

std::string reason_of(const recorder& seen, const std::string& who) {
  for (const auto& e : seen.events("trainer_finished"))
    if (e.details["name"] == who)
      return e.details["reason"];
  return "none";
}

} // namespace

TEST_CASE("FAULTS row 7 no round waits for a trainer that stopped by itself or before its burn-in is over") {
  auto exp = experiment_of(4, 1000, 100);
  for (std::size_t i = 0; i < 3; ++i)
    exp.trainers[i].stop_step = 300 + 200 * i;
  exp.trainers[3].stop.target = core::metric_target{"step", 300, true};
  exp.trainers[3].stop.burn_in_steps = 450;
  set_up s(exp, 2);
  const auto summary = s.run();
  CHECK(summary.outcome == run_outcome_kind::done);
  CHECK(find(summary, "t0").step == 300);
  CHECK(find(summary, "t1").step == 500);
  CHECK(find(summary, "t2").step == 700);
  CHECK(find(summary, "t3").step == 500);
  CHECK(find(summary, "t3").state == trainer_state::stopped);
  CHECK(find(summary, "t3").reason == "reached its target: step 500 >= 300");
  CHECK(reason_of(*s.seen, "t3") == find(summary, "t3").reason);
  CHECK(find(summary, "t0").reason == "");
  CHECK(s.seen->sync_points().size() == 6);
  CHECK(std::isfinite(
      find(summary, "t3").newest->loss)); // of its last steps, though it has made none since it reported
}

TEST_CASE("a plateau stops a trainer and its state is kept as at a stop step") {
  temporary_folder folder;
  auto exp = experiment_of(2, 1000, 100);
  exp.trainers[0].hp.set("lr", 0.0); // it stands still
  exp.trainers[0].stop.plateau = core::stop_rules::plateau_rule{"accuracy", true, 0, 3};
  for (const bool asynchronous : {false, true}) {
    exp.sync.asynchronous = asynchronous;
    if (asynchronous)
      exp.trainers[0].stop_step = 1'000'000; // it trains on while the decision is on its way
    set_up s(exp, 2);
    s.options.directory = folder.path(asynchronous ? "asynchronous" : "rounds");
    const auto summary = s.run();
    CHECK(summary.outcome == run_outcome_kind::done);
    const auto& t0 = find(summary, "t0");
    CHECK(t0.state == trainer_state::stopped);
    if (asynchronous)
      CHECK(t0.step >= 400); // the decision reaches it while it trains on
    else
      CHECK(t0.step == 400);
    CHECK(t0.reason == "is on a plateau: its best accuracy is 1 since 3 sync points");
    CHECK(t0.final_hash != 0);
    CHECK(std::filesystem::exists(s.options.directory + "/final/t0.safetensors"));
    CHECK(find(summary, "t1").state == trainer_state::finished);
  }
}

TEST_CASE("a stop rule that looks at a number which nobody reports is told") {
  auto exp = experiment_of(3, 300, 100);
  exp.trainers[0].stop.target = core::metric_target{"acuracy", 0.5, true};
  exp.trainers[1].stop.plateau = core::stop_rules::plateau_rule{"los", false, 0, 3};
  exp.trainers[2].stop.target = core::metric_target{"accuracy", 7, true}; // out of reach, but there
  exp.stop.target = core::metric_target{"f1", 0.9, true};
  set_up s(exp, 2);
  CHECK(s.run().outcome == run_outcome_kind::done);
  std::vector<std::string> told;
  for (const auto& e : s.seen->events("stop_rule_is_idle"))
    told.push_back(e.details["name"].get<std::string>() + ": " + e.details["reason"].get<std::string>());
  std::sort(told.begin(), told.end());
  REQUIRE(told.size() == 3); // once each, whatever number of sync points
  const auto begins = [](const std::string& x, const std::string& with) { return x.starts_with(with); };
  CHECK(std::count_if(told.begin(), told.end(), [&](const auto& x) {
          return begins(x, "t0: its stop.target never fires: it reports no number \"acuracy\", only accuracy, epoch, ");
        }) == 1);
  CHECK(std::count_if(told.begin(), told.end(), [&](const auto& x) {
          return begins(x, "t1: its stop.plateau never fires: it reports no number \"los\", only accuracy, ");
        }) == 1);
  CHECK(std::count_if(told.begin(), told.end(), [](const auto& x) {
          return x.find("of the experiment, stop.target never fires: it reports no number \"f1\"") != std::string::npos;
        }) == 1);
}

TEST_CASE("the time of a trainer and of a whole run is over whatever they do") {
  auto exp = experiment_of(3, 2'000'000'000, 0);
  exp.trainers[0].stop.seconds = 0.05;
  exp.stop.seconds = 0.15;
  set_up s(exp, 2);
  const auto summary = s.run();
  CHECK(summary.outcome == run_outcome_kind::done);
  CHECK(find(summary, "t0").reason == "its 0.05 s are over");
  CHECK(find(summary, "t1").reason == "the experiment's 0.15 s are over");
  for (const auto& t : summary.trainers) {
    CHECK(t.state == trainer_state::stopped);
    CHECK(t.step > 0);
  }
}

TEST_CASE("a target of the experiment stops everybody and so do its steps") {
  auto exp = experiment_of(3, 1000, 100);
  std::string expected;
  SUBCASE("target") {
    exp.stop.target = core::metric_target{"step", 300, true};
    expected = "the experiment reached its target: t0 has step >= 300";
  }
  SUBCASE("steps") {
    exp.stop.steps = 800;
    expected = "the experiment's 800 steps are done";
  }
  set_up s(exp, 2);
  const auto summary = s.run();
  CHECK(summary.outcome == run_outcome_kind::done);
  for (const auto& t : summary.trainers) {
    CHECK(t.state == trainer_state::stopped);
    CHECK(t.step == 300);
    CHECK(t.reason == expected);
  }
}

TEST_CASE("a plateau counts on when a run is gone on with") {
  temporary_folder folder;
  auto exp = experiment_of(2, 1000, 100);
  exp.trainers[0].hp.set("lr", 0.0);
  exp.trainers[0].stop.plateau = core::stop_rules::plateau_rule{"accuracy", true, 0, 5};
  for (int session = 0; session < 2; ++session) {
    set_up s(exp, 2);
    s.options.directory = folder.path("run");
    s.options.resume = session > 0;
    auto run = s.start();
    if (session == 0) {
      REQUIRE(s.seen->wait_for_sync(3));
      run->control().interrupt();
      CHECK(run->wait().outcome == run_outcome_kind::interrupted);
      continue;
    }
    const auto summary = run->wait();
    CHECK(find(summary, "t0").step == 600);
    CHECK(find(summary, "t0").state == trainer_state::stopped);
  }
}

TEST_CASE("waits at sync points are told of each trainer and of all together with their bound") {
  auto exp = experiment_of(3, 40, 20);
  exp.quantum_ms = 0.001;
  exp.trainers[2].priority = 5;
  exp.trainers[0].priority = -5;
  set_up s(exp, 1);
  const auto summary = s.run();
  CHECK(summary.outcome == run_outcome_kind::done);
  double waits = 0, bounds = 0;
  for (const auto& t : summary.trainers) {
    CHECK(t.barrier_seconds > 0);
    waits += t.barrier_seconds;
    bounds += t.barrier_bound_seconds;
  }
  CHECK(waits == doctest::Approx(summary.barrier_seconds));
  CHECK(bounds == doctest::Approx(summary.barrier_bound_seconds));
}

TEST_CASE("the steps of all trainers together are those reported and not those heard of otherwise") {
  auto what = std::make_shared<mischief>();
  what->hold("t0", 50);
  what->hold("t1", 190);
  auto exp = experiment_of(2, 1000, 100);
  exp.sync.asynchronous = true;
  exp.stop.steps = 250;
  set_up s(exp, 2, what);
  auto run = s.start();
  const auto control = run->control();
  REQUIRE(what->wait_until_held("t1")); // it has reported 100
  auto pausing = control.pause("t1");
  REQUIRE(control.status().get()); // it is on its way
  what->hold("t1", 195);
  const auto paused = pausing.get();
  REQUIRE(paused);
  CHECK(paused->at(0).step == 190);
  what->hold("t0", 150);
  REQUIRE(s.seen->wait_for_sync(2)); // so has t0: 200 together
  (void)control.resume("t1").get();
  what->release();
  const auto summary = run->wait();
  CHECK(summary.outcome == run_outcome_kind::done);
  CHECK(std::max(find(summary, "t0").step, find(summary, "t1").step) >= 200);
}
