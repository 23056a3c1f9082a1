/// What sets of checkpoints hold while something else is going on, and what a new life begins from.
#include <doctest/doctest.h>

#include <thread>

#include "run_fixture.hpp"
#include "troupe/core/checkpoint.hpp"
#include "troupe/core/checkpoint_set.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr std::uint64_t endless = 2'000'000'000;

trainer_info status_of(const run_control& c, std::size_t trainer) {
  const auto x = c.status().get();
  return x ? x->trainers[trainer] : trainer_info{};
}

void wait_until_running(const run_control& c, std::size_t trainer) {
  while (status_of(c, trainer).state != trainer_state::running)
    std::this_thread::yield();
}

} // namespace

TEST_CASE("a trainer in an endless step does not keep the others sets from being complete") {
  temporary_folder folder;
  auto what = std::make_shared<mischief>();
  what->hold("t0", 15);
  auto exp = experiment_of(3, 200, 10);
  exp.sync.quorum = 0.6;
  exp.sync.stragglers = core::straggler_treatment::go_on_without;
  set_up s(exp, 3, what);
  s.options.directory = folder.path("run");
  auto run = s.start();
  REQUIRE(s.seen->wait_for_event("trainer_finished", 2));
  CHECK(s.seen->events("checkpoints_written").size() >= 5);
  what->release();
  const auto summary = run->wait();
  CHECK(summary.outcome == run_outcome_kind::done);
  CHECK(find(summary, "t0").step == 200);
}

TEST_CASE("a trainer that a policy stopped stays stopped when the run goes on") {
  for (const bool interrupted : {false, true}) {
    CAPTURE(interrupted);
    temporary_folder folder;
    auto what = std::make_shared<mischief>();
    what->hold("t0", 150);
    auto exp = experiment_of(2, endless, 0);
    exp.sync.schedule.at_steps = {100};
    const auto stop_one = [what](const core::policy_input&, core::random_stream&) {
      what->hold_evaluations("t1"); // its last one
      std::map<core::trainer_id, core::decision> out;
      out[1].act = core::decision::action::stop;
      out[1].reason = "enough of it";
      return out;
    };
    {
      set_up s(exp, 2, what, stop_one);
      s.options.directory = folder.path("run");
      auto run = s.start();
      const auto c = run->control();
      REQUIRE(what->wait_until_evaluating("t1"));
      wait_until_running(c, 0);
      if (interrupted) {
        c.interrupt();
        (void)c.status().get(); // it was heard
      }
      what->release_evaluations();
      if (interrupted) {
        what->release();
        CHECK(run->wait().outcome == run_outcome_kind::interrupted);
      } else {
        REQUIRE(s.seen->wait_for_event("checkpoints_written"));
        what->release(); // and it is as if the process had died
      }
    }
    set_up s(exp, 2, std::make_shared<mischief>(), stop_one);
    s.options.directory = folder.path("run");
    s.options.resume = true;
    auto run = s.start();
    REQUIRE(s.seen->wait([](const recorder& r) { return r.started(); }));
    const auto t1 = status_of(run->control(), 1);
    CHECK(t1.state == trainer_state::stopped);
    CHECK(t1.reason == "enough of it");
    CHECK(t1.step == 100);
    CHECK(run->control().stop().get());
    CHECK(run->wait().outcome == run_outcome_kind::done);
  }
}

TEST_CASE("an asynchronous set is of after the decisions of its sync point") {
  temporary_folder folder;
  auto exp = experiment_of(3, endless, 0);
  exp.sync.schedule.at_steps = {100};
  exp.sync.asynchronous = true;
  set_up s(exp, 2, nullptr, [](const core::policy_input& in, core::random_stream&) {
    std::map<core::trainer_id, core::decision> out;
    out[in.only.value()].changes.set("lr", 0.3);
    return out;
  });
  s.options.directory = folder.path("run");
  auto run = s.start();
  REQUIRE(s.seen->wait_for_event("checkpoints_written"));
  CHECK(run->control().stop().get());
  CHECK(run->wait().outcome == run_outcome_kind::done);
  const auto number = s.seen->events("checkpoints_written")[0].details["set"].get<std::uint32_t>();
  for (const auto* name : {"t0", "t1", "t2"}) {
    CAPTURE(name);
    const auto state = core::read_checkpoint(s.options.directory + "/" + core::checkpoint_file(number, name));
    REQUIRE(state);
    REQUIRE(state->text("troupe.hyperparameters") != nullptr);
    CHECK(*state->text("troupe.hyperparameters") == R"({"lr":0.3})");
  }
}

TEST_CASE("what was pushed after a decision holds after it in a new life too") {
  auto what = std::make_shared<mischief>();
  what->hold("t0", 250);
  what->fail("t0", 280, 1);
  auto exp = experiment_of(1, 400, 100);
  exp.checkpoints.every_syncs = 0;
  set_up s(exp, 1, what, [](const core::policy_input& in, core::random_stream&) {
    std::map<core::trainer_id, core::decision> out;
    if (in.index < 2)
      out[0].changes.set("lr", 0.2);
    return out;
  });
  auto run = s.start();
  REQUIRE(s.seen->wait_for_sync(2));
  auto pushing = run->control().push("t0", {{"lr", 0.7}});
  REQUIRE(run->control().status().get()); // it is on its way
  what->hold("t0", 270);
  const auto pushed = pushing.get();
  REQUIRE(pushed);
  CHECK(pushed->at(0).step >= 200);
  what->release();
  const auto summary = run->wait();
  CHECK(find(summary, "t0").restarts == 1);
  CHECK(find(summary, "t0").hp == core::hyperparameters{{"lr", 0.7}});
}

TEST_CASE("what was pushed before a decision does not come back over it in a new life") {
  temporary_folder folder;
  auto what = std::make_shared<mischief>();
  what->hold("t0", 50);
  auto exp = experiment_of(1, endless, 0);
  exp.sync.schedule.at_steps = {100};
  exp.sync.asynchronous = true;
  set_up s(exp, 1, what, [](const core::policy_input&, core::random_stream&) {
    std::map<core::trainer_id, core::decision> out;
    out[0].changes.set("lr", 0.3);
    return out;
  });
  s.options.directory = folder.path("run");
  auto run = s.start();
  const auto c = run->control();
  REQUIRE(what->wait_until_held("t0"));
  auto pushing = c.push("t0", {{"lr", 0.7}});
  REQUIRE(c.status().get()); // it is on its way
  what->release();
  REQUIRE(pushing.get());
  REQUIRE(s.seen->wait_for_event("checkpoints_written"));
  const auto paused = c.pause().get();
  REQUIRE(paused);
  what->fail("t0", paused->at(0).step + 1, 1);
  CHECK(c.resume().get());
  REQUIRE(s.seen->wait_for_event("trainer_started", 2));
  CHECK(c.stop().get());
  const auto summary = run->wait();
  CHECK(find(summary, "t0").restarts == 1);
  CHECK(find(summary, "t0").step >= 100); // just that where the stop comes before its first slice
  CHECK(find(summary, "t0").hp == core::hyperparameters{{"lr", 0.3}});
}
