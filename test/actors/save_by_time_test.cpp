/// Sets of checkpoints that are written because time went by: between sync points, and where there are none.
#include <doctest/doctest.h>

#include "mixing_policy.hpp"
#include "run_fixture.hpp"
#include "troupe/core/random.hpp"
#include "troupe/core/run_reader.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

/// Saves as often as it can.
core::experiment saved_all_the_time(core::experiment x) {
  x.checkpoints.every_syncs = 0;
  x.checkpoints.every_seconds = 0.002;
  return x;
}

} // namespace

TEST_CASE("a run without sync points saves by the clock and goes on from there") {
  for (std::uint64_t steps = 20'000;; steps *= 4) {
    temporary_folder folder;
    const auto exp = saved_all_the_time(experiment_of(2, steps, 0));
    {
      set_up s(exp);
      s.options.directory = folder.path("run");
      auto run = s.start();
      REQUIRE(s.seen->wait([](const recorder& r) { return r.events("checkpoints_written").size() > 1 || !r.events("run_ended").empty(); }));
      if (!s.seen->events("run_ended").empty())
        continue; // it was too short for this machine
    }
    const auto record = core::read_run(folder.path("run"));
    REQUIRE(record);
    REQUIRE_FALSE(record->sets.empty());
    CHECK_FALSE(record->sets.back().set.sync);
    std::uint64_t saved = 0;
    for (const auto& t : record->sets.back().set.trainers)
      saved = std::max(saved, t.step);
    CHECK(saved > 0);
    const auto undisturbed = hashes(set_up(experiment_of(2, steps, 0)).run());
    set_up again(exp);
    again.options.directory = folder.path("run");
    again.options.resume = true;
    auto run = again.start();
    REQUIRE(run->resumed());
    CHECK(run->resumed()->step == saved);
    CHECK(run->resumed()->damage.empty());
    const auto summary = run->wait();
    CHECK(summary.outcome == run_outcome_kind::done);
    for (const auto& t : summary.trainers)
      if (t.final_hash != 0)
        CHECK(t.final_hash == undisturbed.at(t.name));
    break;
  }
}

TEST_CASE("a run that saves all the time may be cut off or left anywhere") {
  auto uneven = experiment_of(4, 700, 100);
  uneven.trainers[3].stop_step = 350;
  const auto exp = saved_all_the_time(uneven);
  const auto undisturbed = hashes(set_up(uneven, 2, nullptr, mix).run());
  temporary_folder folder;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    CAPTURE(seed);
    core::random_stream rng(seed, "cut off");
    const auto directory = folder.path("run" + std::to_string(seed));
    run_summary summary;
    for (int session = 0; session < 5 || summary.outcome != run_outcome_kind::done; ++session) {
      set_up s(exp, 2, nullptr, mix);
      s.options.directory = directory;
      s.options.resume = session > 0;
      auto run = s.start();
      if (session < 4) {
        const auto sets = static_cast<std::size_t>(1 + rng.below(3));
        const bool by_syncs = rng.below(2) == 0;
        REQUIRE(s.seen->wait([&](const recorder& r) {
          return (by_syncs ? r.sync_points().size() : r.events("checkpoints_written").size()) >= sets || !r.events("run_ended").empty();
        }));
        if (rng.below(2) == 0) {
          run.reset(); // as if it had died
          continue;
        }
        run->control().interrupt();
      }
      summary = run->wait();
      REQUIRE_MESSAGE(summary.error.text.empty(), summary.error.text);
      for (const auto& t : summary.trainers)
        if (t.final_hash != 0)
          CHECK(t.final_hash == undisturbed.at(t.name));
    }
  }
}

TEST_CASE("a set that time asks for waits for nobody who is in a long step when a sync point comes") {
  temporary_folder folder;
  auto what = std::make_shared<mischief>();
  what->hold("t0", 15);
  auto exp = saved_all_the_time(experiment_of(3, 60, 10));
  exp.sync.quorum = 0.6;
  exp.sync.stragglers = core::straggler_treatment::go_on_without;
  set_up s(exp, 3, what);
  s.options.directory = folder.path("run");
  auto run = s.start();
  REQUIRE(s.seen->wait_for_event("trainer_finished", 2));
  what->release();
  CHECK(run->wait().outcome == run_outcome_kind::done);
  CHECK(s.seen->sync_points().size() >= 5);
}

TEST_CASE("no set is written for time's sake where the experiment says so") {
  temporary_folder folder;
  auto exp = saved_all_the_time(experiment_of(2, 2000, 0));
  exp.checkpoints.every_seconds = 0;
  set_up s(exp);
  s.options.directory = folder.path("run");
  CHECK(s.run().outcome == run_outcome_kind::done);
  CHECK(s.seen->events("checkpoints_written").empty());
}
