#include "troupe/core/trainer_machine.hpp"

#include <array>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "troupe/core/random.hpp"

using namespace troupe::core;

namespace {

using machine = trainer_machine;

constexpr std::uint64_t stop_step = 8;

machine::plan every_three(bool asynchronous = false) {
  machine::plan p;
  p.stop_step = stop_step;
  p.schedule.every_steps = 3; // sync points 0 and 1 at steps 3 and 6
  p.asynchronous = asynchronous;
  return p;
}

/// A slot and a coordinator of the simplest kind around the machine: does what the actions say and notes every breach.
struct rig {
  enum class busy { none, build, run, measure, job, finish };

  explicit rig(machine::plan p) : m(p), plan(p) {}

  machine m;
  machine::plan plan;
  busy with_slot = busy::build;
  std::uint64_t asked = 0;
  bool interrupted = false;
  bool pause_wanted = false, pause_acked = true;
  machine::ticket next_ticket = 1;
  std::map<machine::ticket, int> answers; ///< per job
  machine::ticket at_work = 0;
  std::set<machine::ticket> moves;
  int moved = 0;
  std::map<sync_index, std::uint64_t> reports; ///< step of each
  int runs = 0, pauses = 0, resumes = 0, finished = 0, failed = 0;
  bool stopped = false, saved = false;
  std::string fault;

  void expect(bool ok, const char* what) {
    if (!ok && fault.empty())
      fault = what;
  }

  void take(busy what) {
    expect(with_slot == busy::none, "two requests with the slot");
    expect(!m.over(), "work after the end");
    with_slot = what;
  }

  void on(const machine::run& x) {
    take(busy::run);
    ++runs;
    expect(!pause_wanted, "a paused trainer runs");
    expect(x.steps > 0, "a run of no steps");
    expect(m.step() + x.steps <= plan.stop_step, "a run past the stop step");
    auto next = plan.schedule.next_after(m.step(), plan.stop_step);
    expect(!next || m.step() + x.steps <= *next, "a run past a sync step");
    asked = x.steps;
    interrupted = false;
  }
  void on(const machine::interrupt&) {
    expect(with_slot == busy::run, "an interrupt without a run");
    expect(!interrupted, "a second interrupt");
    interrupted = true;
  }
  void on(const machine::measure& x) {
    take(busy::measure);
    expect(!pause_wanted, "a paused trainer parks");
    expect(!reports.count(x.sync), "a sync point held twice");
  }
  void on(const machine::work& x) {
    take(busy::job);
    at_work = x.job;
    if (moves.contains(x.job)) {
      ++moved;
      expect(!pause_wanted, "a paused trainer moves");
      expect(!m.parked_at(), "a parked trainer moves");
      expect(m.phase() == trainer_phase::running, "a move of one that does not run");
      expect(m.step() < plan.stop_step, "a move at the stop step");
    }
  }
  void on(const machine::refuse& x) { ++answers[x.job]; }
  void on(const machine::finish& x) {
    take(busy::finish);
    stopped = x.stopped;
    saved = x.save;
    expect(x.stopped == (m.step() < plan.stop_step), "a wrong word about the stop step");
  }
  void on(const machine::report& x) {
    expect(!reports.count(x.sync), "a sync point reported twice");
    reports[x.sync] = m.step();
  }
  void on(const machine::say_paused&) {
    expect(pause_wanted, "a pause acknowledged that nobody wants");
    expect(with_slot == busy::none, "a pause acknowledged while the slot works");
    ++pauses;
    pause_acked = true;
  }
  void on(const machine::say_resumed&) { ++resumes; }
  void on(const machine::say_finished& x) {
    ++finished;
    expect(x.stopped == stopped, "finish and end disagree");
  }
  void on(const machine::say_failed&) { ++failed; }

  void act(const machine::actions& xs) {
    for (const auto& x : xs)
      std::visit([this](const auto& y) { on(y); }, x);
  }

  machine::ticket ticket() {
    answers[next_ticket];
    return next_ticket++;
  }

  // -- events --
  void pause() {
    if (m.over())
      return act(m.pause());
    pause_wanted = true;
    pause_acked = false;
    act(m.pause());
    expect_attention();
  }
  void resume() {
    pause_wanted = false;
    pause_acked = true;
    act(m.resume());
  }
  void push() {
    act(m.push(ticket()));
    expect_attention();
  }
  void export_state() {
    act(m.export_state(ticket()));
    expect_attention();
  }
  void move() {
    moves.insert(next_ticket);
    act(m.move(ticket()));
    expect_attention();
  }
  void apply(bool stops = false) {
    auto k = reports.empty() ? 0 : reports.rbegin()->first;
    act(m.apply(ticket(), k, stops));
  }
  void resume_sync() { act(m.resume_sync(m.parked_at().value_or(0))); }
  void release() { act(m.release(m.parked_at().value_or(m.syncs_done()))); }
  void call() { act(m.call_sync(m.syncs_done())); }
  void begin() { act(m.begin()); }
  void stop() {
    act(m.stop(true));
    expect_attention();
  }
  void expect_attention() { expect(with_slot != busy::run || interrupted, "a run that goes on past a command"); }

  /// What is with the slot ends: a run after all its steps, or after `steps` if it was interrupted.
  void complete(std::uint64_t steps = ~0ull, machine::outcome how = machine::outcome::done) {
    const auto was = std::exchange(with_slot, busy::none);
    switch (was) {
    case busy::none: return;
    case busy::build: return act(how == machine::outcome::done ? m.built(0, 0) : m.fail());
    case busy::run:
      return act(m.run_ended(interrupted ? std::min(steps, asked) : asked, how == machine::outcome::fatal));
    case busy::job: ++answers[std::exchange(at_work, 0)]; break;
    default: break;
    }
    act(m.task_ended(how));
  }

  /// Until nothing moves any more.
  void settle() {
    for (int i = 0; i < 100 && with_slot != busy::none; ++i)
      complete();
    expect(with_slot == busy::none, "no end of work");
    if (m.over()) {
      expect(finished + failed == 1, "not exactly one end");
      return;
    }
    expect(pause_acked, "a lost pause");
    expect(m.paused() || m.parked_at() || m.phase() == trainer_phase::ready, "a trainer that never runs again");
    for (auto [job, n] : answers)
      expect(n == 1, "a job not answered exactly once");
  }

  /// The rest of a life without further trouble.
  void live_on() {
    settle();
    for (int i = 0; i < 20 && !m.over(); ++i) {
      if (m.phase() == trainer_phase::ready && !m.paused())
        begin();
      if (m.paused())
        resume();
      if (auto k = m.parked_at())
        act(m.resume_sync(*k));
      settle();
    }
    expect(m.over(), "a life without an end");
    for (auto [job, n] : answers)
      expect(n == 1, "a job not answered exactly once at the end");
    if (finished && !stopped)
      expect(m.step() == plan.stop_step, "finished elsewhere than at the stop step");
  }
};

using event = void (*)(rig&);

const std::array<event, 14> events = {
    [](rig& r) { r.pause(); },        [](rig& r) { r.resume(); },
    [](rig& r) { r.push(); },         [](rig& r) { r.export_state(); },
    [](rig& r) { r.apply(); },        [](rig& r) { r.resume_sync(); },
    [](rig& r) { r.release(); },      [](rig& r) { r.call(); },
    [](rig& r) { r.complete(); },     [](rig& r) { r.complete(0); },
    [](rig& r) { r.complete(1); },    [](rig& r) { r.stop(); },
    [](rig& r) { r.complete(~0ull, machine::outcome::refused); }, [](rig& r) { r.move(); }};

void exhaust(const rig& from, int depth, std::string& order, std::string& fault) {
  if (depth == 0) {
    auto r = from;
    r.live_on();
    if (!r.fault.empty())
      fault = r.fault + " after " + order;
    return;
  }
  for (std::size_t i = 0; i < events.size() && fault.empty(); ++i) {
    auto r = from;
    order.push_back(static_cast<char>('a' + i));
    events[i](r);
    if (r.fault.empty())
      exhaust(r, depth - 1, order, fault);
    else
      fault = r.fault + " after " + order;
    order.pop_back();
  }
}

} // namespace

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

TEST_CASE("no short order of events breaks a trainer") {
  std::vector<rig> from;
  for (bool asynchronous : {false, true}) {
    rig r{every_three(asynchronous)};
    from.push_back(r); // building
    r.complete();
    from.push_back(r); // ready
    r.begin();
    from.push_back(r); // running
    r.complete();
    from.push_back(r); // parking
    r.complete();
    from.push_back(r); // parked
  }
  for (const auto& r : from) {
    std::string order, fault;
    exhaust(r, 4, order, fault);
    CHECK(fault == "");
  }
}

TEST_CASE("no long random order of events breaks a trainer") {
  std::string fault;
  for (std::uint64_t seed = 0; seed < 20000 && fault.empty(); ++seed) {
    random_stream rng{seed, "orders"};
    auto plan = every_three(rng.below(4) == 0);
    plan.stop_step = 4 + rng.below(30);
    plan.schedule.at_steps = {2, 5};
    rig r{plan};
    for (int i = 0; i < 60 && r.fault.empty(); ++i) {
      auto pick = rng.below(events.size() + 8);
      if (pick < events.size())
        events[pick](r);
      else if (pick < events.size() + 5)
        r.complete(rng.below(3));
      else if (pick == events.size() + 5)
        r.begin();
      else if (pick == events.size() + 6)
        r.apply(rng.below(8) == 0);
      else if (rng.below(20) == 0)
        r.complete(1, machine::outcome::fatal);
    }
    if (r.fault.empty())
      r.live_on();
    if (!r.fault.empty())
      fault = r.fault + " with seed " + std::to_string(seed);
  }
  CHECK(fault == "");
}
