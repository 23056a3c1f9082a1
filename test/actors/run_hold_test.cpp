/// Whole runs whose policy holds trainers and lets them go on.
#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "run_fixture.hpp"
#include "troupe/core/random.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

/// Nine trainers, the best first, with rungs at steps 1 and 3.
set_up ladder(const std::string& policy, unsigned slots = 1, std::shared_ptr<mischief> what = nullptr) {
  auto exp = experiment_of(9, 9, 0);
  exp.sync.schedule.at_steps = {1, 3};
  exp.sync.asynchronous = policy == "asha";
  exp.policy_type = policy;
  for (std::size_t i = 0; i < exp.trainers.size(); ++i) {
    exp.trainers[i].seed = 5; // the same walk, so that a smaller stride is better
    exp.trainers[i].hp.set("lr", 0.1 * static_cast<double>(i + 1));
  }
  set_up s(exp, slots, std::move(what));
  s.options.policies = std::make_shared<core::policy_registry>(core::builtin_policies());
  return s;
}

std::uint64_t total_steps(const run_summary& x) {
  std::uint64_t n = 0;
  for (const auto& t : x.trainers)
    n += t.step;
  return n;
}

std::size_t count(const run_summary& x, trainer_state state) {
  std::size_t n = 0;
  for (const auto& t : x.trainers)
    n += t.state == state;
  return n;
}

/// A run that is left twice, each time after `least` to `most` sync points, by an interrupt or as if it had died; then to its end.
run_summary cut_off_twice(const std::string& policy, const std::string& directory, std::uint64_t seed, std::uint64_t least,
                          std::uint64_t most) {
  core::random_stream rng(seed, "cut off");
  for (int session = 0;; ++session) {
    auto s = ladder(policy, 2);
    s.options.directory = directory;
    s.options.resume = session > 0;
    const auto run = s.start();
    if (session == 2)
      return run->wait();
    const auto syncs = static_cast<std::size_t>(least + rng.below(most - least + 1));
    s.seen->wait([&](const recorder& r) {
      return (r.started() && r.sync_points().size() >= syncs) || !r.events("run_ended").empty();
    });
    if (rng.below(2) == 0) {
      run->control().interrupt();
      run->wait();
    }
  }
}

} // namespace

TEST_CASE("FAULTS row 9 nine trainers on one slot are halved twice") {
  auto s = ladder("halving");
  const auto summary = s.run();
  CHECK(summary.outcome == run_outcome_kind::done);
  CHECK(total_steps(summary) == 21);
  CHECK(count(summary, trainer_state::finished) == 1);
  CHECK(count(summary, trainer_state::stopped) == 8);
  CHECK(find(summary, "t0").state == trainer_state::finished);
  CHECK(find(summary, "t2").step == 3);
  CHECK(find(summary, "t3").step == 1);
}

TEST_CASE("FAULTS row 9 with asha no more go on than can ever have been among the best") {
  auto s = ladder("asha");
  const auto summary = s.run();
  CHECK(summary.outcome == run_outcome_kind::done);
  CHECK(find(summary, "t0").state == trainer_state::finished);
  CHECK(count(summary, trainer_state::finished) + count(summary, trainer_state::stopped) == 9);
  // Exactly 21 where reports arrive in the trainers' order, which messages of nine actors need not keep.
  CHECK(total_steps(summary) >= 21);
  CHECK(total_steps(summary) <= 9 + 2 * 7 + 6 * 5);
  std::size_t reports = 0;
  for (const auto& p : s.seen->sync_points())
    reports += p.reports.size();
  CHECK(reports >= 12);
}

TEST_CASE("the place of one that fails for good is taken by one that was held") {
  auto what = std::make_shared<mischief>();
  what->fail("t1", 2);
  auto s = ladder("halving", 2, what);
  s.options.exp.failures.max_restarts = 1;
  const auto summary = s.run();
  CHECK(summary.outcome == run_outcome_kind::failed);
  CHECK(find(summary, "t1").state == trainer_state::failed);
  CHECK(find(summary, "t3").step == 3);
  CHECK(find(summary, "t0").state == trainer_state::finished);
  CHECK(find(summary, "t1").step == 1);
  CHECK(total_steps(summary) == 21);
}

TEST_CASE("halving that is cut off or interrupted anywhere ends as if it had not been") {
  const auto undisturbed = ladder("halving", 2).run();
  temporary_folder folder;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    CAPTURE(seed);
    const auto summary = cut_off_twice("halving", folder.path("run" + std::to_string(seed)), seed, 0, 2);
    CHECK(summary.outcome == run_outcome_kind::done);
    CHECK(total_steps(summary) == 21);
    for (const auto& t : summary.trainers) {
      CHECK(t.state == find(undisturbed, t.name).state);
      CHECK(t.step == find(undisturbed, t.name).step);
      if (t.final_hash != 0)
        CHECK(t.final_hash == find(undisturbed, t.name).final_hash);
    }
  }
}

TEST_CASE("asha that is cut off or interrupted goes on with those that were held") {
  temporary_folder folder;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    CAPTURE(seed);
    const auto summary = cut_off_twice("asha", folder.path("run" + std::to_string(seed)), seed, 1, 11);
    CHECK(summary.outcome == run_outcome_kind::done);
    CHECK(find(summary, "t0").state == trainer_state::finished);
    CHECK(count(summary, trainer_state::finished) + count(summary, trainer_state::stopped) == 9);
    CHECK(total_steps(summary) <= 9 + 2 * 7 + 6 * 5);
  }
}

TEST_CASE("one that is held can be seen and paused and pushed to and stopped") {
  auto what = std::make_shared<mischief>();
  what->hold("t0", 150);
  auto exp = experiment_of(3, 300, 100);
  set_up s(exp, 3, what, [](const core::policy_input& in, core::random_stream&) {
    std::map<core::trainer_id, core::decision> out;
    if (in.index == 0 && !in.last_call)
      for (const core::trainer_id t : {1u, 2u})
        out[t].act = core::decision::action::hold;
    if (in.index == 1 && in.standing[1] == core::trainer_standing::held)
      out[1].changes.set("lr", 0.7);
    return out;
  });
  auto run = s.start();
  REQUIRE(s.seen->wait_for_sync(1));
  auto control = run->control();
  const auto held = [&] {
    const auto x = control.status().get();
    return x && x->trainers[1].state == trainer_state::held && x->trainers[2].state == trainer_state::held;
  };
  while (!held())
    std::this_thread::yield();
  CHECK(control.status().get()->trainers[1].step == 100);
  const auto paused = control.pause("t1").get();
  REQUIRE(paused);
  CHECK(paused->at(0).step == 100);
  CHECK(control.resume("t1").get());
  CHECK(control.push("t1", {{"lr", 0.5}}).get());
  CHECK(control.stop("t2", "enough").get());
  what->release();
  const auto summary = run->wait();
  CHECK(summary.outcome == run_outcome_kind::done);
  CHECK(find(summary, "t0").state == trainer_state::finished);
  CHECK(find(summary, "t1").state == trainer_state::finished);
  CHECK(find(summary, "t1").hp == core::hyperparameters{{"lr", 0.7}});
  CHECK(find(summary, "t2").state == trainer_state::stopped);
  CHECK(find(summary, "t2").step == 100);
}

TEST_CASE("whom nobody lets go on any more is stopped with that as the reason") {
  set_up s(experiment_of(2, 300, 100), 1, nullptr, [](const core::policy_input& in, core::random_stream&) {
    std::map<core::trainer_id, core::decision> out;
    out[1].act = core::decision::action::hold;
    CHECK(in.last_call == in.reports.empty());
    return out;
  });
  const auto summary = s.run();
  CHECK(summary.outcome == run_outcome_kind::done);
  CHECK(find(summary, "t0").state == trainer_state::finished);
  CHECK(find(summary, "t1").state == trainer_state::stopped);
  const auto ends = s.seen->events("trainer_finished");
  REQUIRE(ends.size() == 2);
  CHECK(ends[1].details["reason"] == "stopped by policy: nothing can let it go on any more");
}

TEST_CASE("one that is held takes the mean of those at a later sync point and goes on from where it was") {
  set_up s(experiment_of(3, 300, 100), 2, nullptr, [](const core::policy_input& in, core::random_stream&) {
    std::map<core::trainer_id, core::decision> out;
    if (in.index == 0)
      out[1].act = core::decision::action::hold;
    if (in.index == 1 && in.standing[1] == core::trainer_standing::held)
      out[1].average_of = {0, 2};
    return out;
  });
  auto run = s.start();
  REQUIRE(run->wait_for(std::chrono::seconds(60)));
  const auto summary = run->wait();
  CHECK(summary.outcome == run_outcome_kind::done);
  CHECK(find(summary, "t1").state == trainer_state::finished);
  CHECK(find(summary, "t1").step == 300);
  CHECK(s.seen->events("average_failed").empty());
}

TEST_CASE("those that are held are not given up while one that was added is on its way") {
  auto what = std::make_shared<mischief>();
  what->hold("t0", 250);
  what->hold_builds("late");
  std::atomic<int> last_calls = 0;
  set_up s(experiment_of(2, 300, 100), 3, what, [&](const core::policy_input& in, core::random_stream&) {
    std::map<core::trainer_id, core::decision> out;
    last_calls += in.last_call;
    if (in.index == 0)
      out[1].act = core::decision::action::hold;
    if (in.index == 2 && in.standing[1] == core::trainer_standing::held)
      out[1] = {};
    return out;
  });
  auto run = s.start();
  REQUIRE(s.seen->wait_for_sync(2));
  const auto control = run->control();
  REQUIRE(control.add_trainer(R"({"name": "late", "stop_step": 500, "workload": {"type": "walk", "size": 4}})").get());
  what->release();
  REQUIRE(s.seen->wait_for_event("trainer_finished"));
  REQUIRE(control.status().get());
  what->release_builds();
  const auto summary = run->wait();
  CHECK(summary.outcome == run_outcome_kind::done);
  CHECK(last_calls == 0);
  CHECK(find(summary, "t1").state == trainer_state::finished);
  CHECK(find(summary, "late").step == 500);
}

TEST_CASE("an asynchronous policy that does not say that it holds trainers holds none and that is told") {
  auto exp = experiment_of(1, 300, 100);
  exp.sync.asynchronous = true;
  set_up s(exp, 1, nullptr, [](const core::policy_input&, core::random_stream&) {
    std::map<core::trainer_id, core::decision> out;
    out[0].act = core::decision::action::hold;
    return out;
  });
  const auto summary = s.run();
  CHECK(find(summary, "t0").state == trainer_state::finished);
  const auto refused = s.seen->events("decision_refused");
  REQUIRE(refused.size() == 2);
  CHECK(refused[0].details["reason"].get<std::string>().find("does not say that it holds") != std::string::npos);
}
