#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include "troupe/core/trainer_machine.hpp"

/// What tests of the trainer machine share.
namespace troupe::test {

using namespace troupe::core;


using machine = trainer_machine;

constexpr std::uint64_t stop_step = 8;

inline machine::plan every_three(bool asynchronous = false) {
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
  std::uint32_t untaken = 0; ///< asynchronous: reports
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
    if (plan.asynchronous)
      expect(++untaken <= plan.reports_ahead, "a report too far ahead");
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
  void taken() {
    untaken -= untaken > 0 ? 1 : 0;
    act(m.report_taken());
  }
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
    expect(m.paused() || m.parked_at() || m.phase() == trainer_phase::ready || m.held_back(), "a trainer that never runs again");
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
      if (m.held_back())
        taken();
      settle();
    }
    expect(m.over(), "a life without an end");
    for (auto [job, n] : answers)
      expect(n == 1, "a job not answered exactly once at the end");
    if (finished && !stopped)
      expect(m.step() == plan.stop_step, "finished elsewhere than at the stop step");
  }
};

} // namespace troupe::test
