#include <map>
#include <string>

#include <doctest/doctest.h>

#include "trainer_machine_rig.hpp"

using namespace troupe::test;

TEST_CASE("a trainer meets its sync points and ends at its stop step") {
  rig r{every_three()};
  r.complete();
  CHECK(r.m.phase() == trainer_phase::ready);
  CHECK(r.m.next_sync() == 0);
  r.begin();
  CHECK(r.asked == 3);
  r.complete();
  CHECK(r.m.phase() == trainer_phase::parking);
  r.complete();
  CHECK(r.m.phase() == trainer_phase::parked);
  CHECK(r.reports == std::map<sync_index, std::uint64_t>{{0, 3}});
  CHECK(r.m.next_sync() == 1);
  r.export_state();
  r.apply();
  CHECK(r.m.phase() == trainer_phase::applying);
  r.complete();
  r.complete();
  CHECK(r.m.phase() == trainer_phase::parked);
  r.resume_sync();
  CHECK(r.m.phase() == trainer_phase::running);
  r.complete();
  r.complete();
  CHECK(r.reports == std::map<sync_index, std::uint64_t>{{0, 3}, {1, 6}});
  CHECK_FALSE(r.m.next_sync());
  r.resume_sync();
  CHECK(r.asked == 2);
  r.complete();
  CHECK(r.m.phase() == trainer_phase::stopping);
  CHECK(r.saved);
  r.complete();
  CHECK(r.m.phase() == trainer_phase::finished);
  CHECK(r.m.step() == stop_step);
  CHECK(r.m.dropped() == 0);
  CHECK(r.fault == "");
}

TEST_CASE("five quick pairs of pause and resume leave exactly one run in flight") {
  rig r{every_three()};
  r.complete();
  r.begin();
  for (int i = 0; i < 5; ++i) {
    r.pause();
    r.resume();
  }
  CHECK(r.with_slot == rig::busy::run);
  CHECK(r.runs == 1);
  CHECK(r.resumes == 5);
  r.complete(1);
  CHECK(r.with_slot == rig::busy::run);
  CHECK(r.runs == 2);
  CHECK(r.pauses == 0); // each was taken back before it took effect
  r.live_on();
  CHECK(r.fault == "");
}

TEST_CASE("a pause of a running trainer is acknowledged at the next boundary") {
  rig r{every_three()};
  r.complete();
  r.begin();
  r.pause();
  CHECK(r.interrupted);
  CHECK(r.pauses == 0);
  r.complete(1);
  CHECK(r.pauses == 1);
  CHECK(r.m.step() == 1);
  CHECK(r.with_slot == rig::busy::none);
  r.push();
  CHECK(r.with_slot == rig::busy::job); // a paused trainer takes pushes
  r.complete();
  CHECK(r.with_slot == rig::busy::none);
  r.resume();
  CHECK(r.asked == 2);
  CHECK(r.fault == "");
}

TEST_CASE("a paused trainer at a sync step or at its stop step waits") {
  rig r{every_three()};
  r.complete();
  r.begin();
  r.pause();
  r.complete(3);
  CHECK(r.m.step() == 3);
  CHECK(r.with_slot == rig::busy::none);
  r.resume();
  CHECK(r.with_slot == rig::busy::measure);
  r.complete();
  r.pause();
  CHECK(r.pauses == 2); // at once: parked
  r.resume_sync();
  CHECK(r.with_slot == rig::busy::none);
  r.resume();
  CHECK(r.with_slot == rig::busy::run);
  CHECK(r.fault == "");
}

TEST_CASE("decisions of an older sync point and repeated ones are dropped and counted") {
  rig r{every_three()};
  r.complete();
  r.begin();
  r.apply(); // nothing was reported yet
  CHECK_FALSE(r.interrupted);
  CHECK(r.m.dropped() == 1);
  r.complete();
  r.complete();
  r.apply();
  r.complete();
  r.apply(); // the second for sync point 0
  CHECK(r.m.dropped() == 2);
  r.resume_sync();
  r.act(r.m.resume_sync(0));
  CHECK(r.m.dropped() == 3);
  r.complete();
  r.complete();
  r.act(r.m.apply(r.ticket(), 0, false));
  CHECK(r.m.dropped() == 4);
  CHECK(r.with_slot == rig::busy::none);
  CHECK(r.m.phase() == trainer_phase::parked);
  r.live_on();
  CHECK(r.fault == "");
}

TEST_CASE("a decision to stop ends the trainer after it was applied") {
  rig r{every_three()};
  r.complete();
  r.begin();
  r.complete();
  r.complete();
  r.apply(true);
  CHECK(r.m.phase() == trainer_phase::applying);
  r.complete();
  CHECK(r.m.phase() == trainer_phase::stopping);
  CHECK_FALSE(r.saved);
  r.complete();
  CHECK(r.finished == 1);
  CHECK(r.stopped);
  CHECK(r.fault == "");
}

TEST_CASE("a refused decision leaves the trainer parked") {
  rig r{every_three()};
  r.complete();
  r.begin();
  r.complete();
  r.complete();
  r.apply(true);
  r.complete(0, machine::outcome::refused);
  CHECK(r.m.phase() == trainer_phase::parked);
  r.resume_sync();
  CHECK(r.m.phase() == trainer_phase::running);
  CHECK(r.fault == "");
}

TEST_CASE("a trainer released ahead passes its sync point without stopping") {
  rig r{every_three()};
  r.complete();
  r.begin();
  r.release();
  CHECK_FALSE(r.interrupted);
  r.complete();
  CHECK(r.with_slot == rig::busy::run);
  CHECK(r.m.step() == 3);
  CHECK(r.reports.empty());
  r.live_on();
  CHECK(r.reports == std::map<sync_index, std::uint64_t>{{1, 6}});
  CHECK(r.fault == "");
}

TEST_CASE("a call by the clock holds a sync point at the next boundary") {
  machine::plan p;
  p.stop_step = 100;
  rig r{p};
  r.complete();
  r.begin();
  CHECK(r.asked == 100);
  r.act(r.m.call_sync(0));
  CHECK(r.interrupted);
  r.act(r.m.call_sync(0));
  r.complete(17);
  CHECK(r.with_slot == rig::busy::measure);
  r.act(r.m.call_sync(0));
  CHECK(r.m.dropped() == 1);
  r.complete();
  CHECK(r.reports == std::map<sync_index, std::uint64_t>{{0, 17}});
  r.act(r.m.call_sync(1)); // called while it still stands at 0
  r.resume_sync();
  CHECK(r.with_slot == rig::busy::run);
  r.complete();
  CHECK(r.with_slot == rig::busy::measure);
  r.complete();
  CHECK(r.reports.at(1) == 18);
  r.live_on();
  CHECK(r.fault == "");
}

TEST_CASE("a trainer called by the clock that had no turn yet makes one step before it reports") {
  machine::plan p;
  p.stop_step = 100;
  rig r{p};
  r.complete();
  r.begin();
  r.act(r.m.call_sync(0));
  CHECK(r.interrupted);
  r.complete(0); // it waited for its turn
  CHECK(r.with_slot == rig::busy::run);
  CHECK(r.asked == 1);
  r.push(); // whatever interrupts it again
  r.complete(0);
  r.complete();
  CHECK(r.asked == 1);
  r.complete();
  CHECK(r.with_slot == rig::busy::measure);
  r.complete();
  CHECK(r.reports == std::map<sync_index, std::uint64_t>{{0, 1}});
  SUBCASE("and so does one that begins again") {
    rig again{p};
    again.with_slot = rig::busy::none;
    again.act(again.m.built(1, 1));
    again.begin();
    again.act(again.m.call_sync(1));
    again.complete(0);
    CHECK(again.asked == 1);
    again.complete();
    again.complete();
    CHECK(again.reports == std::map<sync_index, std::uint64_t>{{1, 2}});
    CHECK(again.fault == "");
  }
  r.live_on();
  CHECK(r.fault == "");
}

TEST_CASE("an asynchronous trainer reports and goes on and takes its decision later") {
  rig r{every_three(true)};
  r.complete();
  r.begin();
  r.complete();
  r.complete();
  CHECK(r.reports.count(0));
  CHECK(r.with_slot == rig::busy::run);
  r.apply();
  CHECK(r.interrupted);
  r.complete(1);
  CHECK(r.with_slot == rig::busy::job);
  r.complete();
  CHECK(r.with_slot == rig::busy::run);
  CHECK(r.m.step() == 4);
  r.live_on();
  CHECK(r.fault == "");
}

TEST_CASE("an asynchronous trainer whose reports are not taken waits at a sync point and hears everything there") {
  auto plan = every_three(true);
  plan.reports_ahead = 1;
  rig r{plan};
  r.complete();
  r.begin();
  r.complete();
  r.complete();
  CHECK_FALSE(r.m.held_back());
  r.complete();
  CHECK(r.m.step() == 6);
  CHECK(r.m.held_back());
  CHECK(r.with_slot == rig::busy::none);
  r.pause();
  CHECK(r.pauses == 1);
  r.push();
  CHECK(r.with_slot == rig::busy::job);
  r.complete();
  r.resume();
  CHECK(r.resumes == 1);
  CHECK(r.m.held_back());
  rig stopped = r;
  stopped.stop();
  CHECK(stopped.with_slot == rig::busy::finish);
  stopped.live_on();
  CHECK(stopped.reports.size() == 1);
  CHECK(stopped.fault == "");
  r.taken();
  CHECK(r.with_slot == rig::busy::measure);
  r.complete();
  CHECK(r.reports.size() == 2);
  r.live_on();
  CHECK(r.fault == "");
  r.act(r.m.report_taken());
  CHECK(r.m.dropped() == 1); // it is over
}

TEST_CASE("an asynchronous trainer takes late decisions in their order and each once") {
  rig r{every_three(true)};
  r.complete();
  r.begin();
  r.act(r.m.apply(r.ticket(), 0, false)); // not reported yet
  CHECK(r.m.dropped() == 1);
  for (int i = 0; i < 4; ++i)
    r.complete();
  REQUIRE(r.reports.size() == 2);
  r.act(r.m.apply(r.ticket(), 0, false)); // late, but none newer was taken
  r.complete();
  CHECK(r.with_slot == rig::busy::job);
  r.complete();
  r.act(r.m.apply(r.ticket(), 0, false));
  CHECK(r.m.dropped() == 2);
  r.act(r.m.apply(r.ticket(), 1, false));
  CHECK(r.interrupted);
  r.complete(1);
  r.complete();
  r.act(r.m.apply(r.ticket(), 1, false));
  r.act(r.m.apply(r.ticket(), 0, false));
  CHECK(r.m.dropped() == 4);
  r.live_on();
  CHECK(r.fault == "");
}

TEST_CASE("a trainer restored at a sync step does not hold it again") {
  rig r{every_three()};
  r.with_slot = rig::busy::none;
  r.act(r.m.built(3, 1));
  r.begin();
  CHECK(r.with_slot == rig::busy::run);
  CHECK(r.m.next_sync() == 1);
  rig again{every_three()};
  again.with_slot = rig::busy::none;
  again.act(again.m.built(3, 0)); // saved before it parked
  CHECK(again.m.next_sync() == 0);
  again.begin();
  CHECK(again.with_slot == rig::busy::measure);
  rig late{every_three()};
  late.with_slot = rig::busy::none;
  late.act(late.m.built(stop_step, 2));
  late.begin();
  CHECK(late.with_slot == rig::busy::finish);
}

TEST_CASE("a move is done at the next boundary and the run goes on to the same sync step") {
  rig r{every_three()};
  r.complete();
  r.begin();
  r.move();
  r.push();
  CHECK(r.interrupted);
  r.complete(1);
  CHECK(r.moved == 1);
  CHECK(r.with_slot == rig::busy::job);
  r.complete(); // it is there: the push comes next
  CHECK(r.with_slot == rig::busy::job);
  r.complete();
  CHECK(r.with_slot == rig::busy::run);
  CHECK(r.asked == 2);
  r.move();
  r.complete(0);
  r.complete(0, machine::outcome::refused); // it stays where it is
  CHECK(r.with_slot == rig::busy::run);
  CHECK(r.m.step() == 1);
  r.live_on();
  CHECK(r.fault == "");
}

TEST_CASE("a trainer that would not go on running does not move") {
  const auto refused = [](rig& r) {
    const auto job = r.next_ticket;
    r.move();
    if (r.with_slot != rig::busy::none && r.with_slot != rig::busy::job)
      r.complete();
    CHECK(r.moved == 0);
    CHECK(r.answers[job] == 1);
    r.live_on();
    CHECK(r.fault == "");
  };
  rig r{every_three()};
  refused(r); // is being built and has not begun
  rig ready{every_three()};
  ready.complete();
  refused(ready);
  ready = rig{every_three()};
  ready.complete();
  ready.begin();
  rig at_sync = ready;
  refused(at_sync); // its run ends with the sync step
  rig paused = ready;
  paused.pause();
  refused(paused);
  rig parked = ready;
  parked.complete();
  parked.complete();
  REQUIRE(parked.m.parked_at());
  refused(parked);
  rig stopped = ready;
  stopped.stop();
  refused(stopped);
  rig ending = ready;
  for (int i = 0; i < 2; ++i) {
    ending.complete();
    ending.complete();
    ending.resume_sync();
  }
  CHECK(ending.asked == 2);
  refused(ending);
}

TEST_CASE("failures end the trainer once and answer what waits") {
  rig r{every_three()};
  r.complete();
  r.begin();
  r.push();
  r.export_state();
  r.complete(1, machine::outcome::fatal);
  CHECK(r.failed == 1);
  CHECK(r.m.phase() == trainer_phase::failed);
  CHECK(r.m.step() == 1);
  for (auto [job, n] : r.answers)
    CHECK(n == 1);
  r.push();
  r.pause();
  r.stop();
  CHECK(r.m.fail().empty());
  CHECK(r.failed == 1);
  CHECK(r.with_slot == rig::busy::none);

  rig measured{every_three()};
  measured.complete();
  measured.begin();
  measured.complete();
  measured.complete(0, machine::outcome::refused);
  CHECK(measured.failed == 1);

  rig beyond{every_three()};
  beyond.complete();
  beyond.begin();
  beyond.act(beyond.m.run_ended(4, false)); // more than was asked for
  CHECK(beyond.failed == 1);
}
