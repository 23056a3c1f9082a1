/// Steering a run while it goes on.
#include <doctest/doctest.h>

#include <future>
#include <thread>

#include "run_fixture.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr std::uint64_t endless = 2'000'000'000;

} // namespace

TEST_CASE("FAULTS row 1 an endless trainer hears every pause and its weights do not show them") {
  const auto undisturbed = hashes(set_up(experiment_of(2, 4000, 1000)).run());
  set_up s(experiment_of(2, 4000, 1000));
  auto run = s.start();
  const auto c = run->control();
  std::uint64_t before = 0;
  for (int i = 0; i < 30; ++i) {
    const auto paused = c.pause().get();
    if (!paused)
      break; // both have finished
    for (const auto& a : *paused) {
      CHECK(a.step <= 4000);
      if (a.trainer == 0) {
        CHECK(a.step >= before);
        before = a.step;
      }
    }
    const auto resumed = c.resume().get();
    if (!resumed)
      break;
  }
  CHECK(hashes(run->wait()) == undisturbed);
}

TEST_CASE("a trainer that was not paused answers a resume with the step it has come to") {
  set_up s(experiment_of(1, 1'000'000'000, 0), 1);
  auto run = s.start();
  const auto control = run->control();
  std::uint64_t seen = 0;
  while (seen == 0) {
    const auto status = control.status().get();
    REQUIRE(status);
    seen = status->trainers.front().step;
  }
  const auto answer = control.resume("t0").get();
  REQUIRE(answer);
  CHECK(answer->front().step >= seen);
}

TEST_CASE("a status tells of every slot what lives there and what it has done") {
  set_up s(experiment_of(3, endless, 100), 2);
  s.options.exp.rebalance = false;
  s.options.slots[1].memory_budget = 1u << 20;
  auto run = s.start();
  REQUIRE(s.seen->wait_for_sync(1));
  const auto state = good(run->control().status());
  REQUIRE(state.slots.size() == 2);
  const auto &first = state.slots[0], &second = state.slots[1];
  CHECK(first.name == "0/0");
  CHECK(second.name == "0/1");
  CHECK(first.device == "cpu");
  CHECK(first.device_id == "cpu");
  CHECK_FALSE(first.model.empty());
  CHECK(first.memory_budget == 0);
  CHECK(second.memory_budget == 1u << 20);
  for (const auto& x : state.slots) {
    CHECK(x.answered);
    CHECK(x.alive);
    CHECK(x.running + x.waiting <= x.trainers);
    CHECK(x.busy_seconds > 0);
  }
  CHECK(first.trainers == 2);
  CHECK(second.trainers == 1);
  CHECK(first.steps >= 200);
  CHECK(second.steps >= 100);
}

TEST_CASE("pausing one trainer leaves the others running up to the next sync point") {
  set_up s(experiment_of(2, 200, 100));
  auto what = std::make_shared<mischief>();
  what->hold("t0", 10);
  s.options.workloads = walks(what);
  auto run = s.start();
  const auto c = run->control();
  auto pausing = c.pause("t0");
  what->release();
  const auto paused = good(std::move(pausing));
  REQUIRE(paused.size() == 1);
  CHECK(paused.front().name == "t0");
  CHECK(paused.front().step < 100);
  const auto state = good(c.status());
  CHECK(state.trainers[0].state == trainer_state::paused);
  CHECK(s.seen->sync_points().empty());
  (void)good(c.resume("t0"));
  CHECK(run->wait().outcome == run_outcome_kind::done);
  CHECK(s.seen->sync_points().size() == 1);
}

TEST_CASE("a push is acknowledged with the step at which it took effect") {
  set_up s(experiment_of(3, endless, 0));
  s.options.exp.sync.schedule.every_steps = 0;
  auto run = s.start();
  const auto c = run->control();
  const auto all = good(c.push("", {{"lr", 0.5}}));
  CHECK(all.size() == 3);
  const auto one = good(c.push("t1", {{"lr", 0.25}}));
  REQUIRE(one.size() == 1);
  CHECK(one.front().step >= all[1].step);
  const auto state = good(c.status());
  CHECK(state.trainers[0].hp == core::hyperparameters{{"lr", 0.5}});
  CHECK(state.trainers[1].hp == core::hyperparameters{{"lr", 0.25}});
  CHECK(s.seen->wait_for_event("pushed", 4));
}

TEST_CASE("whoever may not wait is called back once for each call") {
  set_up s(experiment_of(2, endless, 0));
  auto run = s.start();
  const auto c = run->control();
  std::promise<std::string> log;
  std::string seen; // the calls are answered one after the other, each before the next one is made
  c.push("t1", {{"lr", 0.25}}, [&](core::result<acknowledgements> pushed) {
    seen += pushed ? pushed->front().name : pushed.error().text;
    c.push("t0", {{"lr", -1.0}}, [&](core::result<acknowledgements> refused) {
      seen += refused ? " accepted" : " refused";
      c.stop("", "enough", [&](core::result<acknowledgements> stopped) {
        seen += stopped ? " " + std::to_string(stopped->size()) : stopped.error().text;
        log.set_value(seen);
      });
    });
  });
  CHECK(log.get_future().get() == "t1 refused 2");
  run->wait();
  std::promise<std::string> late;
  c.status([&](core::result<run_status> x) { late.set_value(x ? "goes on" : x.error().text); });
  CHECK(late.get_future().get() == "the run is over");
}

TEST_CASE("a push that is wrong for one is refused for all") {
  set_up s(experiment_of(3, endless, 0));
  auto run = s.start();
  const auto c = run->control();
  for (const auto& [wrong, word] :
       {std::pair<core::hyperparameters, std::string>{{{"lr", -1.0}}, "not negative"},
        {{{"rl", 0.1}}, "rl"},
        {{}, "nothing"}}) {
    const auto answer = c.push("", wrong).get();
    REQUIRE_FALSE(answer);
    CHECK(answer.error().text.find(word) != std::string::npos);
  }
  const auto unknown = c.push("t7", {{"lr", 0.1}}).get();
  REQUIRE_FALSE(unknown);
  CHECK(unknown.error().text.find("t0, t1, t2") != std::string::npos);
  const auto state = good(c.status());
  for (const auto& t : state.trainers)
    CHECK(t.hp == core::hyperparameters{{"lr", 0.1}});
}

TEST_CASE("FAULTS row 31 a push to a trainer that is being restarted runs once when it is back") {
  auto what = std::make_shared<mischief>();
  what->fail("t0", 100, 1);
  what->fail_build("t0", 0);
  auto exp = experiment_of(1, endless, 0);
  exp.failures.max_restarts = 1;
  set_up s(exp, 1, what);
  what->hold("t0", 60);
  auto run = s.start();
  const auto c = run->control();
  auto pushing = c.push("t0", {{"lr", 0.7}});
  what->release();
  const auto done = good(std::move(pushing));
  REQUIRE(s.seen->wait_for_event("trainer_failed"));
  REQUIRE(s.seen->wait_for_event("trainer_started", 2));
  // What was pushed holds in its new life too.
  const auto again = good(c.push("t0", {{"lr", 0.8}}));
  const auto state = good(c.status());
  CHECK(state.trainers[0].incarnation == 1);
  CHECK(state.trainers[0].hp == core::hyperparameters{{"lr", 0.8}});
}

TEST_CASE("a resume that finds its trainer failing is answered when that begins anew") {
  auto what = std::make_shared<mischief>();
  what->hold("t1", 50);
  what->fail("t1", 50, 1);
  auto exp = experiment_of(2, endless, 0);
  exp.sync.schedule.at_steps = {100};
  exp.sync.asynchronous = true;
  std::promise<void> asked, may_answer;
  set_up s(exp, 2, what, [&](const core::policy_input&, core::random_stream&) -> std::map<core::trainer_id, core::decision> {
    asked.set_value(); // in the coordinator's turn: it hears nothing meanwhile
    may_answer.get_future().wait();
    return {};
  });
  auto run = s.start();
  const auto c = run->control();
  asked.get_future().wait();
  auto resuming = c.resume("t1");
  const auto users = what.use_count();
  what->hold("t1", 60);
  while (what.use_count() == users) // until t1's workload is gone, and t1 with it
    std::this_thread::yield();
  may_answer.set_value();
  CHECK(resuming.wait_for(std::chrono::seconds(60)) == std::future_status::ready);
  what->release();
  CHECK(c.stop().get());
  CHECK(run->wait().outcome == run_outcome_kind::done);
  CHECK(find(run->wait(), "t1").restarts == 1);
}

TEST_CASE("one trainer or all can be stopped") {
  set_up s(experiment_of(3, endless, 0));
  auto run = s.start();
  const auto c = run->control();
  const auto one = good(c.stop("t1"));
  CHECK(one.front().name == "t1");
  const auto again = c.stop("t1").get();
  REQUIRE_FALSE(again);
  CHECK(again.error().text.find("stopped") != std::string::npos);
  (void)good(c.stop());
  const auto summary = run->wait();
  CHECK(summary.outcome == run_outcome_kind::done);
  for (const auto& t : summary.trainers) {
    CHECK(t.state == trainer_state::stopped);
    CHECK(t.final_hash != 0);
  }
}

TEST_CASE("a trainer that is added joins the rounds") {
  auto what = std::make_shared<mischief>();
  what->hold("t0", 250);
  set_up s(experiment_of(2, 400, 100), 2, what);
  auto run = s.start();
  REQUIRE(s.seen->wait_for_sync(2));
  const auto c = run->control();
  const auto added =
      c.add_trainer(
           R"({"name": "late", "workload": {"type": "walk", "size": 4}, "stop_step": 400, "slot": "1", "hyperparameters": {"lr": 0.2}})")
          .get();
  if (!added)
    FAIL(added.error().text);
  CHECK(*added == 2);
  REQUIRE(s.seen->wait_for_event("trainer_started", 3));
  const auto twice =
      c.add_trainer(R"({"name": "late", "workload": {"type": "walk"}, "stop_step": 400})").get();
  CHECK_FALSE(twice);
  const auto nowhere = c.add_trainer(R"({"name": "far", "workload": {"type": "walk"}, "stop_step": 400, "slot": "cuda:99"})").get();
  REQUIRE_FALSE(nowhere);
  CHECK(nowhere.error().text.find("trainer \"far\"") != std::string::npos);
  const auto wrong = c.add_trainer("{").get();
  CHECK_FALSE(wrong);
  what->release();
  const auto summary = run->wait();
  CHECK(summary.outcome == run_outcome_kind::done);
  CHECK(find(summary, "late").step == 400);
  CHECK(s.seen->sync_points().back().reports.size() == 3);
}

TEST_CASE("whoever asks after the end learns that the run is over") {
  set_up s(experiment_of(1, 10, 5));
  run_control c;
  {
    auto run = s.start();
    c = run->control();
    CHECK(run->wait().outcome == run_outcome_kind::done);
    CHECK(run->wait_for(std::chrono::milliseconds(0)));
    const auto late = c.pause().get();
    REQUIRE_FALSE(late);
    CHECK(late.error().text == "the run is over");
  }
  CHECK_FALSE(c.status().get());
  CHECK_FALSE(run_control{}.status().get());
}

TEST_CASE("a session that is dropped in the middle ends at once") {
  for (int i = 0; i < 5; ++i) {
    set_up s(experiment_of(3, endless, 100));
    auto run = s.start();
    if (i > 0)
      REQUIRE(s.seen->wait_for_sync(static_cast<std::size_t>(i)));
    run.reset();
  }
}
