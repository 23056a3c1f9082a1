/// Whole runs in one process: sync points, weights that move, trainers that fail.
#include <doctest/doctest.h>

#include <cmath>

#include "run_fixture.hpp"
#include "troupe/actors/slot_json.hpp"
#include "troupe/core/run_reader.hpp"

using namespace troupe;
using namespace troupe::test;

TEST_CASE("FAULTS row 2 three trainers on two slots meet twice and go on with what was decided") {
  set_up s(experiment_of(3, 3000, 1000), 2, nullptr, [](const core::policy_input& in, core::random_stream&) {
    std::map<core::trainer_id, core::decision> out;
    for (const auto& m : in.reports)
      out[m.trainer].changes.set("lr", 0.1 * (m.trainer + 1) + in.index);
    return out;
  });
  const auto summary = s.run();
  CHECK(summary.outcome == run_outcome_kind::done);
  CHECK(summary.rounds == 2);
  const auto points = s.seen->sync_points();
  REQUIRE(points.size() == 2);
  for (core::sync_index k = 0; k < 2; ++k) {
    CHECK(points[k].index == k);
    REQUIRE(points[k].reports.size() == 3);
    for (core::trainer_id t = 0; t < 3; ++t) {
      const auto& m = points[k].reports[t];
      CHECK(m.trainer == t);
      CHECK(m.name == "t" + std::to_string(t));
      CHECK(m.step == 1000 * (k + 1));
      CHECK(std::isfinite(m.loss));
      // What was decided at the first holds at the second.
      CHECK(m.numbers.at("lr") == doctest::Approx(k == 0 ? 0.1 : 0.1 * (t + 1)));
    }
  }
  for (const auto& t : summary.trainers) {
    CHECK(t.state == trainer_state::finished);
    CHECK(t.step == 3000);
    CHECK(t.hp == core::hyperparameters{{"lr", 0.1 * (t.id + 1) + 1}});
    CHECK(t.final_hash != 0);
    REQUIRE(t.newest);
    CHECK(t.newest->step == 3000);
  }
  CHECK(s.seen->started());
}

TEST_CASE("FAULTS row 3 a barrier over a hundred trainers completes on one slot") {
  set_up s(experiment_of(100, 30, 10), 1);
  const auto summary = s.run();
  CHECK(summary.outcome == run_outcome_kind::done);
  const auto points = s.seen->sync_points();
  REQUIRE(points.size() == 2);
  for (const auto& p : points)
    CHECK(p.reports.size() == 100);
}

TEST_CASE("the same experiment gives the same weights on one slot and on three") {
  std::map<std::string, std::uint64_t> first;
  for (const unsigned slots : {1u, 3u}) {
    set_up s(experiment_of(8, 400, 100), slots, nullptr,
             [](const core::policy_input& in, core::random_stream& rng) {
               std::map<core::trainer_id, core::decision> out;
               for (const auto& m : in.reports)
                 out[m.trainer].changes.set("lr", rng.uniform(0.01, 1));
               out[0].copy_from = 3;
               out[2].average_of = {1, 2, 5};
               return out;
             });
    const auto got = hashes(s.run());
    if (first.empty())
      first = got;
    CHECK(got == first);
  }
}

TEST_CASE("a copy takes the donor as it was parked and an average is the mean") {
  // Without steps in between, the reports at the next sync point show what was taken over: learning rate 0
  // stands still.
  set_up s(experiment_of(4, 60, 20), 2, nullptr, [](const core::policy_input& in, core::random_stream&) {
    std::map<core::trainer_id, core::decision> out;
    if (in.index == 0) {
      for (core::trainer_id t = 0; t < 4; ++t)
        out[t].changes.set("lr", 0.0);
      out[0].copy_from = 1;
      out[1].copy_from = 0; // an exchange: each gets what the other had
      out[2].average_of = {3};
    }
    return out;
  });
  const auto summary = s.run();
  CHECK(summary.outcome == run_outcome_kind::done);
  const auto points = s.seen->sync_points();
  REQUIRE(points.size() == 2);
  const auto accuracy = [&](std::size_t k, core::trainer_id t) { return points[k].reports[t].accuracy; };
  CHECK(accuracy(1, 0) == accuracy(0, 1));
  CHECK(accuracy(1, 1) == accuracy(0, 0));
  CHECK(accuracy(1, 2) == accuracy(0, 3));
  CHECK(accuracy(1, 3) == accuracy(0, 3));
  for (const auto& m : points[1].reports)
    CHECK(m.step == 40);
}

TEST_CASE("a trainer that fails once restarts and its weights do not show it") {
  const auto undisturbed = hashes(set_up(experiment_of(3, 300, 100)).run());
  auto what = std::make_shared<mischief>();
  SUBCASE("before the first sync point") { what->fail("t1", 50, 1); }
  SUBCASE("between two") { what->fail("t1", 150, 1); }
  SUBCASE("at the very first step after one") { what->fail("t1", 201, 1); }
  SUBCASE("while it is built") { what->fail_build("t1", 1); }
  set_up s(experiment_of(3, 300, 100), 2, what);
  const auto summary = s.run();
  CHECK(summary.outcome == run_outcome_kind::done);
  CHECK(hashes(summary) == undisturbed);
  CHECK(find(summary, "t1").incarnation == 1);
  CHECK(find(summary, "t1").restarts == 1);
  const auto points = s.seen->sync_points();
  REQUIRE(points.size() == 2);
  for (const auto& p : points)
    CHECK(p.reports.size() == 3);
  CHECK(s.seen->events("trainer_failed").size() == 1);
}

TEST_CASE("a trainer that restarts from before a sync point gets again what was decided there") {
  const auto decide = [](const core::policy_input& in, core::random_stream&) {
    std::map<core::trainer_id, core::decision> out;
    for (const auto& m : in.reports)
      out[m.trainer].changes.set("lr", 0.2 + 0.1 * in.index);
    return out;
  };
  auto exp = experiment_of(2, 500, 100);
  exp.checkpoints.every_syncs = 0; // its new life begins at step 0
  const auto undisturbed = hashes(set_up(exp, 2, nullptr, decide).run());
  auto what = std::make_shared<mischief>();
  what->fail("t0", 350, 1);
  set_up s(exp, 2, what, decide);
  const auto summary = s.run();
  CHECK(find(summary, "t0").restarts == 1);
  CHECK(hashes(summary) == undisturbed);
}

TEST_CASE("FAULTS row 6 one of six that fails for good leaves the others their rounds") {
  auto what = std::make_shared<mischief>();
  what->fail("t4", 170);
  auto exp = experiment_of(6, 700, 100);
  exp.failures.max_restarts = 1;
  set_up s(exp, 2, what);
  const auto summary = s.run();
  CHECK(summary.outcome == run_outcome_kind::failed);
  CHECK(find(summary, "t4").state == trainer_state::failed);
  CHECK(find(summary, "t4").failure.text.find("step 170 of t4 failed") != std::string::npos);
  CHECK(summary.error.text.empty());
  const auto points = s.seen->sync_points();
  REQUIRE(points.size() == 6);
  CHECK(points[0].reports.size() == 6);
  for (std::size_t k = 1; k < 6; ++k)
    CHECK(points[k].reports.size() == 5);
  for (const auto& t : summary.trainers)
    if (t.name != "t4")
      CHECK(t.state == trainer_state::finished);
}

TEST_CASE("FAULTS row 7 no round waits for a trainer that has finished") {
  auto exp = experiment_of(3, 200, 0);
  exp.sync.schedule.at_steps = {150, 200, 250, 300, 350};
  exp.trainers[1].stop_step = 300;
  exp.trainers[2].stop_step = 400;
  set_up s(exp);
  CHECK(s.run().outcome == run_outcome_kind::done);
  std::vector<std::size_t> sizes;
  for (const auto& p : s.seen->sync_points())
    sizes.push_back(p.reports.size());
  CHECK(sizes == std::vector<std::size_t>{3, 2, 2, 1, 1});
}

TEST_CASE("a loss that is not finite fails that trainer alone") {
  auto what = std::make_shared<mischief>();
  what->spoil("t1", 120);
  auto exp = experiment_of(3, 300, 100);
  exp.failures.max_restarts = 1;
  const auto undisturbed = hashes(set_up(exp).run());
  set_up s(exp, 2, what);
  const auto summary = s.run();
  CHECK(find(summary, "t1").state == trainer_state::failed);
  CHECK(find(summary, "t1").failure.text.find("loss") != std::string::npos);
  CHECK(hashes(summary).at("t0") == undisturbed.at("t0"));
  CHECK(hashes(summary).at("t2") == undisturbed.at("t2"));
}

TEST_CASE("FAULTS row 12 a donor that was never saved gives its weights and the taker keeps its step") {
  auto exp = experiment_of(2, 300, 100);
  exp.checkpoints.every_syncs = 0;
  set_up s(exp, 1, nullptr, [](const core::policy_input& in, core::random_stream&) {
    std::map<core::trainer_id, core::decision> out;
    if (in.index == 0)
      out[1].copy_from = 0;
    return out;
  });
  const auto summary = s.run();
  CHECK(summary.outcome == run_outcome_kind::done);
  const auto points = s.seen->sync_points();
  REQUIRE(points.size() == 2);
  CHECK(points[1].reports[1].step == 200);
}

TEST_CASE("weights of another architecture are refused with the reason") {
  auto exp = experiment_of(2, 300, 100);
  exp.trainers[1].workload_options = R"({"size":8})";
  set_up s(exp, 2, nullptr, [](const core::policy_input&, core::random_stream&) {
    std::map<core::trainer_id, core::decision> out;
    out[1].copy_from = 0;
    return out;
  });
  const auto summary = s.run();
  CHECK(summary.outcome == run_outcome_kind::done);
  const auto points = s.seen->sync_points();
  REQUIRE(points.size() == 2);
  CHECK_FALSE(points[0].decisions.at(1).copy_from);
  CHECK_FALSE(points[0].decisions.at(1).reason.empty());
}

TEST_CASE("a policy that throws changes nothing and is named") {
  const auto undisturbed = hashes(set_up(experiment_of(2, 200, 100)).run());
  set_up s(experiment_of(2, 200, 100), 2, nullptr,
           [](const core::policy_input&, core::random_stream&) -> std::map<core::trainer_id, core::decision> {
             throw std::runtime_error("no idea");
           });
  CHECK(hashes(s.run()) == undisturbed);
  REQUIRE(s.seen->events("policy_failed").size() == 1);
  CHECK(s.seen->events("policy_failed")[0].details.at("reason") == "no idea");
}

TEST_CASE("a decision to stop ends that trainer and nobody waits for it") {
  set_up s(experiment_of(3, 400, 100), 2, nullptr, [](const core::policy_input& in, core::random_stream&) {
    std::map<core::trainer_id, core::decision> out;
    if (in.index == 1)
      out[0].act = core::decision::action::stop;
    return out;
  });
  const auto summary = s.run();
  CHECK(summary.outcome == run_outcome_kind::done);
  CHECK(find(summary, "t0").state == trainer_state::stopped);
  CHECK(find(summary, "t0").step == 200);
  const auto points = s.seen->sync_points();
  REQUIRE(points.size() == 3);
  CHECK(points[2].reports.size() == 2);
}

TEST_CASE("FAULTS row 4 a trainer that does not report is named at the deadline and treated as the "
          "experiment says") {
  auto what = std::make_shared<mischief>();
  what->hold("t2", 50);
  auto exp = experiment_of(3, 300, 100);
  exp.sync.deadline_seconds = 0.5; // the others make it, on a loaded machine too
  SUBCASE("wait") {
    set_up s(exp, 3, what);
    auto run = s.start();
    REQUIRE(s.seen->wait_for_event("sync_note", 2));
    CHECK(s.seen->sync_points().empty());
    CHECK(s.seen->events("sync_note")[0].details.at("trainers") == nlohmann::json({"t2"}));
    what->release();
    CHECK(run->wait().outcome == run_outcome_kind::done);
    CHECK(s.seen->sync_points()[0].reports.size() == 3);
  }
  SUBCASE("go on without") {
    exp.sync.stragglers = core::straggler_treatment::go_on_without;
    set_up s(exp, 3, what);
    auto run = s.start();
    REQUIRE(s.seen->wait_for_sync(1));
    CHECK(s.seen->sync_points()[0].reports.size() == 2);
    REQUIRE(s.seen->wait_for_event("sync_note"));
    CHECK(s.seen->events("sync_note")[0].details.at("trainers") == nlohmann::json({"t2"}));
    what->release();
    const auto summary = run->wait();
    CHECK(summary.outcome == run_outcome_kind::done);
    CHECK(find(summary, "t2").step == 300);
  }
  SUBCASE("stop") {
    exp.sync.stragglers = core::straggler_treatment::stop;
    set_up s(exp, 3, what);
    auto run = s.start();
    REQUIRE(s.seen->wait_for_sync(1));
    what->release();
    const auto summary = run->wait();
    CHECK(summary.outcome == run_outcome_kind::done);
    CHECK(find(summary, "t2").state == trainer_state::stopped);
    CHECK(find(summary, "t2").step < 300);
    CHECK(find(summary, "t0").step == 300);
  }
}

TEST_CASE("FAULTS row 21 a population of five and twenty rounds leave exactly a hundred reports") {
  set_up s(experiment_of(5, 210, 10));
  CHECK(s.run().outcome == run_outcome_kind::done);
  std::size_t reports = 0;
  for (const auto& p : s.seen->sync_points())
    reports += p.reports.size();
  CHECK(reports == 100);
}

TEST_CASE("FAULTS row 20 a population that loses members is filled up again") {
  auto what = std::make_shared<mischief>();
  for (const auto* who : {"t1", "t3", "t6"})
    what->fail(who, 130);
  auto exp = experiment_of(10, 500, 100);
  exp.failures.max_restarts = 0;
  exp.failures.refill = true;
  auto space =
      core::search_space::from_json({{"lr", {{"type", "uniform"}, {"low", 0.01}, {"high", 0.5}}}}, "");
  exp.space = std::get<core::search_space>(space);
  set_up s(exp, 2, what);
  const auto summary = s.run();
  CHECK(summary.trainers.size() == 13);
  std::size_t finished = 0;
  for (const auto& t : summary.trainers)
    finished += t.state == trainer_state::finished;
  CHECK(finished == 10);
  CHECK(s.seen->sync_points().back().reports.size() == 10);
  CHECK(s.seen->events("trainer_refilled").size() == 3);
}

TEST_CASE("the place of a trainer that was to stop stays empty and so does one in which everything fails") {
  auto what = std::make_shared<mischief>();
  auto exp = experiment_of(1, 500, 100);
  exp.failures.max_restarts = 0;
  exp.failures.refill = true;
  exp.space = std::get<core::search_space>(
      core::search_space::from_json({{"lr", {{"type", "uniform"}, {"low", 0.01}, {"high", 0.5}}}}, ""));
  SUBCASE("it was to stop") {
    what->hold("t0", 50);
    what->fail("t0", 50);
    set_up s(exp, 1, what);
    auto run = s.start();
    REQUIRE(what->wait_until_held("t0")); // or it would be stopped before it fails
    auto stopping = run->control().stop();
    REQUIRE(run->control().status().get()); // it is on its way
    what->release();
    CHECK(stopping.get());
    CHECK(run->wait().trainers.size() == 1);
  }
  SUBCASE("everything fails") {
    what->fail("t0", 130);
    for (unsigned i = 1; i <= 30; ++i)
      what->fail("t0-again" + std::to_string(i), i == 3 ? 230 : 130);
    set_up s(exp, 1, what);
    const auto summary = s.run();
    CHECK(summary.outcome == run_outcome_kind::failed);
    // The third came further than those before it: ten more after that.
    CHECK(summary.trainers.size() == 1 + 3 + 10);
    const auto left = s.seen->events("place_left_empty");
    REQUIRE(left.size() == 1);
    CHECK(left[0].details["name"] == "t0-again13");
    CHECK(left[0].details["reason"] == "10 in a row came no further than step 229");
    for (const auto& x : s.seen->events("trainer_failed")) // the steps before the failing one, however they were divided
      CHECK(x.details["step"] == (x.details["name"] == "t0-again3" ? 229 : 129));
  }
}

TEST_CASE("FAULTS row 38 in step the spread is nothing at a sync point") {
  // One slot has twice the trainers of the other's; still everybody is at the same step.
  auto exp = experiment_of(3, 400, 100);
  exp.trainers[0].slot = "0";
  exp.trainers[1].slot = "1";
  exp.trainers[2].slot = "1";
  set_up s(exp, 2);
  CHECK(s.run().outcome == run_outcome_kind::done);
  for (const auto& p : s.seen->sync_points())
    for (const auto& m : p.reports)
      CHECK(m.step == 100 * (p.index + 1));
}

TEST_CASE("an asynchronous experiment waits for nobody and decides for one at a time") {
  auto what = std::make_shared<mischief>();
  what->hold("t0", 50);
  auto exp = experiment_of(2, 300, 100);
  exp.sync.asynchronous = true;
  set_up s(exp, 2, what, [](const core::policy_input& in, core::random_stream&) {
    std::map<core::trainer_id, core::decision> out;
    out[in.only.value()].changes.set("lr", 0.3);
    return out;
  });
  auto run = s.start();
  REQUIRE(s.seen->wait_for_event("trainer_finished")); // t1 passes both while t0 stands
  REQUIRE(s.seen->wait_for_sync(2));
  what->hold("t0", 250);
  REQUIRE(s.seen->wait_for_sync(4));
  REQUIRE(run->control().status().get()); // the decision is on its way
  what->release();
  const auto summary = run->wait();
  CHECK(summary.outcome == run_outcome_kind::done);
  CHECK(s.seen->sync_points().size() == 4);
  CHECK(find(summary, "t0").hp == core::hyperparameters{{"lr", 0.3}});
}

TEST_CASE("sync points by the clock take everybody who is there") {
  auto exp = experiment_of(3, 2'000'000'000, 0);
  exp.sync.schedule.every_seconds = 0.01;
  set_up s(exp);
  auto run = s.start();
  REQUIRE(s.seen->wait_for_sync(3));
  REQUIRE(run->control().stop().get());
  CHECK(run->wait().outcome == run_outcome_kind::done);
  const auto points = s.seen->sync_points();
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(points[i].reports.size() == 3);
    if (i > 0)
      CHECK(points[i].index > points[i - 1].index);
  }
}

TEST_CASE("fail fast ends the run with the first trainer that fails for good") {
  auto what = std::make_shared<mischief>();
  what->fail("t1", 150);
  auto exp = experiment_of(3, 2'000'000'000, 100);
  exp.failures.max_restarts = 0;
  exp.failures.fail_fast = true;
  set_up s(exp, 2, what);
  const auto summary = s.run();
  CHECK(summary.outcome == run_outcome_kind::failed);
  CHECK(summary.error.text.find("trainer t1 failed") != std::string::npos);
  CHECK(find(summary, "t1").state == trainer_state::failed);
  CHECK(find(summary, "t0").state == trainer_state::interrupted);
}

TEST_CASE("what cannot run is refused at once with the reason") {
  set_up s(experiment_of(1, 10, 5));
  const auto refusal = [&] {
    auto run = run_session::start(s.options);
    REQUIRE_FALSE(run);
    return run.error().text;
  };
  SUBCASE("no slots") {
    s.options.slots.clear();
    CHECK(refusal().find("no slots") != std::string::npos);
  }
  SUBCASE("no trainers") {
    s.options.exp.trainers.clear();
    CHECK(refusal().find("no trainers") != std::string::npos);
  }
  SUBCASE("an unknown policy") {
    s.options.exp.policy_type = "guess";
    CHECK(refusal().find("guess") != std::string::npos);
  }
  SUBCASE("nothing to go on with") {
    s.options.resume = true;
    CHECK(refusal().find("directory") != std::string::npos);
  }
}

TEST_CASE("a pin that matches no slot fails that trainer with the slots there are") {
  auto exp = experiment_of(2, 20, 10);
  exp.trainers[1].slot = "GPU-none";
  const auto summary = set_up(exp, 1).run();
  CHECK(find(summary, "t0").state == trainer_state::finished);
  CHECK(find(summary, "t1").state == trainer_state::failed);
  CHECK(find(summary, "t1").failure.text.find("GPU-none") != std::string::npos);
}

TEST_CASE("a run that was cut off has kept what its slots were as it began and one that ended what they did") {
  temporary_folder folder;
  const auto exp = experiment_of(2, 2'000'000'000, 0);
  {
    set_up s(exp, 2);
    s.options.directory = folder.path("run");
    auto run = s.start();
    const auto enough = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!core::read_slots(folder.path("run"))) {
      REQUIRE(std::chrono::steady_clock::now() < enough);
      REQUIRE(run->control().status().get());
    }
  } // as a crash would end it
  const auto begun = core::read_slots(folder.path("run"));
  REQUIRE(begun);
  CHECK((*begun)["at_end"] == false);
  CHECK((*begun)["slots"].size() == 2);
  set_up s(exp, 2);
  s.options.directory = folder.path("run");
  s.options.resume = true;
  auto run = s.start();
  REQUIRE(s.seen->wait([](const recorder& r) { return r.started(); }));
  CHECK(run->control().stop().get());
  const auto summary = run->wait();
  REQUIRE(summary.outcome == run_outcome_kind::done);
  const auto ended = core::read_slots(folder.path("run"));
  REQUIRE(ended);
  CHECK((*ended)["at_end"] == true);
  std::uint64_t steps = 0;
  for (const auto& x : (*ended)["slots"]) {
    const auto slot = slot_from_json(x);
    CHECK(slot.answered);
    CHECK(slot.device == "cpu");
    steps += slot.steps;
  }
  CHECK(steps == summary.trainers[0].step + summary.trainers[1].step);
}
