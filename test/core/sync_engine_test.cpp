#include <doctest/doctest.h>

#include <algorithm>

#include "troupe/core/sync_engine.hpp"

using namespace troupe::core;
using engine = sync_engine;
using std::chrono::seconds;

namespace {

const engine::time_point t0{};

metadata report(trainer_id t, sync_index k, std::uint32_t incarnation = 0) {
  metadata m;
  m.trainer = t;
  m.sync = k;
  m.incarnation = incarnation;
  return m;
}

template <class T>
std::vector<T> only(const engine::actions& as) {
  std::vector<T> out;
  for (const auto& a : as)
    if (const auto* x = std::get_if<T>(&a))
      out.push_back(*x);
  return out;
}

engine with_members(unsigned n, sync_options options = {}) {
  engine e{std::move(options)};
  for (trainer_id t = 0; t < n; ++t)
    CHECK(e.member_up(t, 0, 0, t0).empty());
  return e;
}

decision copy_of(trainer_id donor) {
  decision d;
  d.copy_from = donor;
  return d;
}

} // namespace

TEST_CASE("a round collects decides and resumes in this order") {
  auto e = with_members(3);
  CHECK(e.reported(report(2, 0), 1, t0).empty());
  CHECK(e.current_phase() == engine::phase::collecting);
  CHECK(e.reported(report(0, 0), 1, t0).empty());
  const auto asked = only<engine::decide>(e.reported(report(1, 0), 1, t0));
  REQUIRE(asked.size() == 1);
  REQUIRE(asked[0].reports.size() == 3);
  for (trainer_id t = 0; t < 3; ++t)
    CHECK(asked[0].reports[t].trainer == t);
  CHECK(e.parked() == 3);
  decision change;
  change.changes.set("lr", 0.5);
  const auto applies = only<engine::apply>(e.decided(0, {{1, change}}, t0));
  REQUIRE(applies.size() == 1);
  CHECK(applies[0].trainer == 1);
  CHECK(applies[0].what.changes == change.changes);
  CHECK(e.current_phase() == engine::phase::applying);
  const auto resumes = only<engine::resume>(e.applied(0, 1, 0, true, t0));
  REQUIRE(resumes.size() == 1);
  CHECK(resumes[0].trainers == std::vector<trainer_id>{0, 1, 2});
  CHECK(e.current_phase() == engine::phase::idle);
  CHECK(e.rounds() == 1);
  CHECK(e.parked() == 0);
}

TEST_CASE("FAULTS row 2 three members meet once mid-run and go on with what was decided") {
  sync_options o;
  o.schedule.at_steps = {1000};
  auto e = with_members(3, o);
  std::map<trainer_id, decision> lr;
  for (trainer_id t = 0; t < 3; ++t) {
    lr[t].changes.set("lr", 0.1 * (t + 1));
    auto m = report(t, 0);
    m.step = 1000;
    m.loss = t;
    const auto asked = only<engine::decide>(e.reported(m, std::nullopt, t0));
    REQUIRE(asked.size() == (t == 2 ? 1 : 0));
    if (t == 2)
      CHECK(asked[0].reports[1].loss == 1.0);
  }
  const auto applies = only<engine::apply>(e.decided(0, lr, t0));
  REQUIRE(applies.size() == 3);
  for (const auto& a : applies)
    CHECK(a.what == lr[a.trainer]);
  CHECK(e.applied(0, 2, 0, true, t0).empty());
  CHECK(e.applied(0, 0, 0, true, t0).empty());
  CHECK(only<engine::resume>(e.applied(0, 1, 0, true, t0))[0].trainers.size() == 3);
  for (trainer_id t = 0; t < 2; ++t)
    CHECK(e.member_finished(t, 0, t0).empty());
  CHECK(only<engine::all_done>(e.member_finished(2, 0, t0)).size() == 1);
}

TEST_CASE("nobody applies before every donor has given its state") {
  auto e = with_members(3);
  for (trainer_id t = 0; t < 3; ++t)
    (void)e.reported(report(t, 0), 1, t0);
  decision mean;
  mean.average_of = {0, 1};
  const auto asked = e.decided(0, {{0, copy_of(2)}, {1, mean}}, t0);
  const auto exports = only<engine::export_state>(asked);
  REQUIRE(exports.size() == 3);
  for (const auto& x : exports)
    CHECK(x.copied == (x.trainer == 2)); // the others only go into a mean
  CHECK(only<engine::apply>(asked).empty());
  CHECK(e.exported(0, 2, 0, true, t0).empty());
  CHECK(e.exported(0, 1, 0, true, t0).empty());
  CHECK(only<engine::apply>(e.exported(0, 0, 0, true, t0)).size() == 2);
  CHECK(e.applied(0, 0, 0, true, t0).empty());
  CHECK(only<engine::resume>(e.applied(0, 1, 0, true, t0)).size() == 1);
}

TEST_CASE("a donor that dies before it gave its state leaves the taker unchanged and says so") {
  auto e = with_members(3);
  for (trainer_id t = 0; t < 3; ++t)
    (void)e.reported(report(t, 0), 1, t0);
  auto d = copy_of(2);
  d.changes.set("lr", 9.0);
  decision mean;
  mean.average_of = {1, 2};
  (void)e.decided(0, {{0, d}, {1, mean}}, t0);
  (void)e.exported(0, 1, 0, true, t0);
  const auto as = e.member_down(2, 0, false, t0);
  const auto applies = only<engine::apply>(as);
  REQUIRE(applies.size() == 2);
  CHECK_FALSE(applies[0].what.copy_from);
  CHECK(applies[0].what.changes.empty());
  CHECK(applies[1].what.average_of == std::vector<trainer_id>{1});
  CHECK(only<engine::note>(as).size() == 2);
}

TEST_CASE("a decision that could not be applied is noted and the trainer goes on") {
  auto e = with_members(2);
  for (trainer_id t = 0; t < 2; ++t)
    (void)e.reported(report(t, 0), 1, t0);
  decision stop;
  stop.act = decision::action::stop;
  (void)e.decided(0, {{0, stop}, {1, decision{}}}, t0);
  CHECK(only<engine::note>(e.applied(0, 0, 0, false, t0)).size() == 1);
  CHECK(only<engine::resume>(e.applied(0, 1, 0, true, t0))[0].trainers == std::vector<trainer_id>{0, 1});
}

TEST_CASE("members that decided to stop are not resumed and not waited for") {
  auto e = with_members(2);
  for (trainer_id t = 0; t < 2; ++t)
    (void)e.reported(report(t, 0), 1, t0);
  decision stop;
  stop.act = decision::action::stop;
  (void)e.decided(0, {{0, stop}}, t0);
  const auto resumed = only<engine::resume>(e.applied(0, 0, 0, true, t0));
  REQUIRE(resumed.size() == 1);
  CHECK(resumed[0].trainers == std::vector<trainer_id>{1});
  CHECK(only<engine::decide>(e.reported(report(1, 1), std::nullopt, t0)).size() == 1);
  // It dies before it heard: its successor is told again.
  CHECK(e.member_down(0, 0, true, t0).empty());
  CHECK(only<engine::stop_straggler>(e.member_up(0, 1, 1, t0)).size() == 1);
}

TEST_CASE("FAULTS row 4 with treatment wait names the missing and keeps waiting") {
  sync_options o;
  o.deadline_seconds = 5;
  auto e = with_members(3, o);
  const auto first = only<engine::wake_at>(e.reported(report(0, 0), 1, t0));
  REQUIRE(first.size() == 1);
  CHECK(first[0].when == t0 + seconds(5));
  CHECK(e.reported(report(1, 0), 1, t0).empty());
  CHECK(only<engine::wake_at>(e.tick(t0 + seconds(4))).size() == 1);
  for (int again = 1; again <= 2; ++again) {
    const auto as = e.tick(t0 + seconds(5 * again));
    REQUIRE(only<engine::note>(as).size() == 1);
    CHECK(only<engine::note>(as)[0].missing == std::vector<trainer_id>{2});
    CHECK(only<engine::wake_at>(as).size() == 1);
    CHECK(only<engine::decide>(as).empty());
  }
  CHECK(only<engine::decide>(e.reported(report(2, 0), 1, t0)).size() == 1);
}

TEST_CASE(
    "FAULTS row 4 with treatment go on without closes at the deadline and releases the straggler later") {
  sync_options o;
  o.deadline_seconds = 5;
  o.stragglers = straggler_treatment::go_on_without;
  auto e = with_members(3, o);
  (void)e.reported(report(0, 0), 1, t0);
  (void)e.reported(report(1, 0), 1, t0);
  const auto as = e.tick(t0 + seconds(5));
  REQUIRE(only<engine::decide>(as).size() == 1);
  CHECK(only<engine::decide>(as)[0].reports.size() == 2);
  REQUIRE(only<engine::note>(as).size() == 1);
  CHECK(only<engine::note>(as)[0].missing == std::vector<trainer_id>{2});
  SUBCASE("it comes after the round") {
    CHECK(only<engine::resume>(e.decided(0, {}, t0)).size() == 1);
    CHECK(only<engine::release>(e.reported(report(2, 0), 1, t0)).size() == 1);
  }
  SUBCASE("it comes while the round is being decided") {
    CHECK(e.reported(report(2, 0), 1, t0).empty());
    const auto end = e.decided(0, {}, t0);
    CHECK(only<engine::resume>(end)[0].trainers == std::vector<trainer_id>{0, 1});
    CHECK(only<engine::release>(end).size() == 1);
  }
  (void)e.reported(report(0, 1), 2, t0);
  (void)e.reported(report(2, 1), 2, t0);
  CHECK(only<engine::decide>(e.reported(report(1, 1), 2, t0)).size() == 1);
}

TEST_CASE("FAULTS row 4 with treatment stop stops the straggler") {
  sync_options o;
  o.deadline_seconds = 5;
  o.stragglers = straggler_treatment::stop;
  auto e = with_members(3, o);
  (void)e.reported(report(0, 0), 1, t0);
  (void)e.reported(report(1, 0), 1, t0);
  const auto as = e.tick(t0 + seconds(5));
  REQUIRE(only<engine::stop_straggler>(as).size() == 1);
  CHECK(only<engine::stop_straggler>(as)[0].trainer == 2);
  CHECK(only<engine::decide>(as).size() == 1);
  (void)e.decided(0, {}, t0);
  // It parked just before it was told: it is told again, and nobody waits for it.
  CHECK(only<engine::stop_straggler>(e.reported(report(2, 0), 1, t0)).size() == 1);
  (void)e.reported(report(0, 1), 2, t0);
  CHECK(only<engine::decide>(e.reported(report(1, 1), 2, t0)).size() == 1);
  CHECK(e.live() == 3);
  (void)e.member_finished(2, 0, t0);
  CHECK(e.live() == 2);
}

TEST_CASE("a quorum closes the round at once") {
  sync_options o;
  o.quorum = 0.5;
  auto e = with_members(5, o);
  CHECK(e.reported(report(0, 0), 1, t0).empty());
  CHECK(e.reported(report(4, 0), 1, t0).empty());
  const auto as = e.reported(report(2, 0), 1, t0);
  REQUIRE(only<engine::decide>(as).size() == 1);
  CHECK(only<engine::decide>(as)[0].reports.size() == 3);
  CHECK(only<engine::note>(as)[0].missing == std::vector<trainer_id>{1, 3});
}

TEST_CASE("a deadline counts from the first report that is still there") {
  sync_options o;
  o.deadline_seconds = 5;
  o.stragglers = straggler_treatment::go_on_without;
  auto e = with_members(2, o);
  (void)e.reported(report(0, 0), 1, t0);
  (void)e.member_down(0, 0, true, t0);
  CHECK(e.tick(t0 + seconds(6)).empty());
  CHECK(only<engine::wake_at>(e.reported(report(1, 0), 1, t0 + seconds(7)))[0].when == t0 + seconds(12));
}

TEST_CASE("closing now decides over those that are there") {
  auto e = with_members(3);
  CHECK(e.close_now(t0).empty());
  (void)e.reported(report(0, 0), 1, t0);
  CHECK(only<engine::decide>(e.close_now(t0))[0].reports.size() == 1);
  CHECK(e.close_now(t0).empty());
}

TEST_CASE("FAULTS row 6 a member lost for good in round 2 does not hold up five more rounds") {
  auto e = with_members(6);
  for (sync_index k = 0; k < 7; ++k) {
    if (k == 2) {
      (void)e.reported(report(3, k), k + 1, t0);
      CHECK(e.member_down(3, 0, false, t0).empty());
    }
    engine::actions last;
    for (trainer_id t = 0; t < 6; ++t)
      if (k < 2 || t != 3)
        last = e.reported(report(t, k), k + 1, t0);
    REQUIRE(only<engine::decide>(last).size() == 1);
    CHECK(only<engine::decide>(last)[0].reports.size() == (k < 2 ? 6 : 5));
    (void)e.decided(k, {}, t0);
  }
  CHECK(e.rounds() == 7);
}

TEST_CASE("FAULTS row 7 no round waits for a member that stops before it") {
  // Burn-in 1500, then every 500 steps; the members stop at 2000, 3000 and 4000.
  const std::uint64_t stops[] = {2000, 3000, 4000};
  const auto next = [&](trainer_id t, sync_index k) -> std::optional<sync_index> {
    return 1500 + 500 * k < stops[t] ? std::optional(k) : std::nullopt;
  };
  engine e{sync_options{}};
  for (trainer_id t = 0; t < 3; ++t)
    (void)e.member_up(t, 0, next(t, 0), t0);
  std::vector<std::size_t> sizes;
  bool done = false;
  for (sync_index k = 0; k < 6; ++k) {
    engine::actions last;
    for (trainer_id t = 0; t < 3; ++t)
      if (next(t, k))
        last = e.reported(report(t, k), next(t, k + 1), t0);
    const auto asked = only<engine::decide>(last);
    if (!asked.empty()) {
      sizes.push_back(asked[0].reports.size());
      const auto resumed = only<engine::resume>(e.decided(k, {}, t0));
      REQUIRE(resumed.size() == 1);
      for (const auto t : resumed[0].trainers)
        if (!next(t, k + 1))
          done = !only<engine::all_done>(e.member_finished(t, 0, t0)).empty();
    }
  }
  CHECK(sizes == std::vector<std::size_t>{3, 2, 2, 1, 1});
  CHECK(done);
}

TEST_CASE("FAULTS row 42 replies of one kind are never taken for another in any order") {
  std::vector<int> order{0, 1, 2, 3, 4, 5};
  do {
    auto e = with_members(2);
    (void)e.reported(report(0, 0), 1, t0);
    (void)e.reported(report(1, 0), 1, t0);
    (void)e.decided(0, {{1, copy_of(0)}}, t0);
    std::size_t resumes = 0, applies = 0;
    for (const int what : order) {
      engine::actions as;
      if (what == 0)
        as = e.exported(0, 0, 0, true, t0);
      if (what == 1)
        as = e.applied(0, 1, 0, true, t0);
      if (what == 2)
        as = e.exported(0, 1, 0, true, t0);
      if (what == 3)
        as = e.applied(0, 0, 0, true, t0);
      if (what == 4)
        as = e.reported(report(1, 0), 1, t0);
      if (what == 5)
        as = e.decided(0, {{0, copy_of(1)}}, t0);
      applies += only<engine::apply>(as).size();
      resumes += only<engine::resume>(as).size();
    }
    const bool in_order = std::find(order.begin(), order.end(), 0) < std::find(order.begin(), order.end(), 1);
    REQUIRE(applies == 1);
    REQUIRE(resumes == (in_order ? 1 : 0));
    REQUIRE(e.dropped() == (in_order ? 4 : 5));
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("a member that is restarted comes back to the open round") {
  auto e = with_members(2);
  (void)e.reported(report(0, 0), 1, t0);
  CHECK(e.member_down(1, 0, true, t0).empty());
  CHECK(e.live() == 2);
  CHECK(e.reported(report(1, 0, 0), 1, t0).empty()); // sent before it died
  CHECK(e.dropped() == 1);
  CHECK(e.member_up(1, 1, 0, t0).empty());
  CHECK(e.member_up(1, 1, 0, t0).empty());
  CHECK(e.dropped() == 2);
  CHECK(only<engine::decide>(e.reported(report(1, 0, 1), 1, t0))[0].reports.size() == 2);
}

TEST_CASE("a round that opens while a member is being restarted waits for it") {
  auto e = with_members(2);
  (void)e.member_down(1, 0, true, t0);
  CHECK(e.reported(report(0, 0), 1, t0).empty());
  (void)e.member_up(1, 1, 0, t0);
  CHECK(only<engine::decide>(e.reported(report(1, 0, 1), 1, t0)).size() == 1);
}

TEST_CASE("a member whose restart was given up is no longer waited for") {
  auto e = with_members(2);
  (void)e.reported(report(0, 0), 1, t0);
  (void)e.member_down(1, 0, true, t0);
  CHECK(only<engine::decide>(e.member_down(1, 0, false, t0)).size() == 1);
}

TEST_CASE("a restarted member that is behind is released until it has caught up") {
  engine e{sync_options{}, 3};
  (void)e.member_up(0, 0, 4, t0);
  (void)e.member_up(1, 2, 2, t0);
  (void)e.reported(report(0, 4), 5, t0);
  CHECK(only<engine::release>(e.reported(report(1, 2, 2), 3, t0)).size() == 1);
  CHECK(e.reported(report(1, 2, 2), 3, t0).empty());
  CHECK(only<engine::release>(e.reported(report(1, 3, 2), 4, t0)).size() == 1);
  CHECK(only<engine::decide>(e.reported(report(1, 4, 2), 5, t0)).size() == 1);
  CHECK(e.dropped() == 1);
}

TEST_CASE("a member ahead of the open round waits for its own") {
  auto e = with_members(3);
  (void)e.member_up(3, 0, 1, t0);
  (void)e.reported(report(0, 0), 1, t0);
  CHECK(e.reported(report(3, 1), 2, t0).empty());
  (void)e.reported(report(1, 0), 1, t0);
  CHECK(only<engine::decide>(e.reported(report(2, 0), std::nullopt, t0))[0].reports.size() == 3);
  CHECK(only<engine::resume>(e.decided(0, {}, t0))[0].trainers.size() == 3);
  CHECK(e.open_round() == 1u);
  (void)e.reported(report(0, 1), 2, t0);
  CHECK(only<engine::decide>(e.reported(report(1, 1), 2, t0))[0].reports.size() == 3);
}

TEST_CASE("a sync point called by the clock takes those that are there") {
  engine e{sync_options{}};
  for (trainer_id t = 0; t < 3; ++t)
    (void)e.member_up(t, 0, std::nullopt, t0);
  CHECK(e.called(0, t0).empty());
  CHECK(e.called(0, t0).empty());
  CHECK(e.dropped() == 1);
  (void)e.reported(report(0, 0), std::nullopt, t0);
  (void)e.member_finished(1, 0, t0); // before it heard the call
  CHECK(only<engine::decide>(e.reported(report(2, 0), std::nullopt, t0))[0].reports.size() == 2);
  (void)e.decided(0, {}, t0);
  CHECK(e.called(0, t0).empty());
  CHECK(e.called(1, t0).empty());
  (void)e.member_finished(0, 0, t0);
  CHECK(only<engine::all_done>(e.member_down(2, 0, false, t0)).size() == 1);
  CHECK(e.rounds() == 1);
}

TEST_CASE("an asynchronous experiment has no rounds") {
  sync_options o;
  o.asynchronous = true;
  auto e = with_members(2, o);
  for (sync_index k = 0; k < 3; ++k)
    CHECK(e.reported(report(0, k), k + 1, t0).empty());
  CHECK(e.current_phase() == engine::phase::idle);
  (void)e.member_finished(0, 0, t0);
  CHECK(only<engine::all_done>(e.member_finished(1, 0, t0)).size() == 1);
}

namespace {

decision hold_it() {
  decision d;
  d.act = decision::action::hold;
  return d;
}

} // namespace

TEST_CASE("one that is held leaves the barrier and comes back in a later one") {
  auto e = with_members(3);
  for (trainer_id t = 0; t < 3; ++t)
    (void)e.reported(report(t, 0), 1, t0);
  const auto over = e.decided(0, {{2, hold_it()}}, t0);
  CHECK(only<engine::resume>(over)[0].trainers == std::vector<trainer_id>{0, 1});
  REQUIRE(only<engine::hold>(over).size() == 1);
  CHECK(only<engine::hold>(over)[0].trainer == 2);
  CHECK(e.held() == 1);
  CHECK(e.live() == 3);
  // The next round does not wait for it and asks about it.
  (void)e.reported(report(0, 1), 2, t0);
  const auto asked = only<engine::decide>(e.reported(report(1, 1), 2, t0));
  REQUIRE(asked.size() == 1);
  CHECK(asked[0].held == std::vector<trainer_id>{2});
  // Its decision goes to where it is parked.
  decision change;
  change.changes.set("lr", 0.5);
  const auto applies = only<engine::apply>(e.decided(1, {{2, change}}, t0));
  REQUIRE(applies.size() == 1);
  CHECK(applies[0].index == 0);
  const auto done = e.applied(0, 2, 0, true, t0);
  REQUIRE(only<engine::promote>(done).size() == 1);
  CHECK(only<engine::promote>(done)[0].index == 0);
  CHECK(e.held() == 0);
  // It comes to sync point 1, which is over for the others: it is opened again, before they go on.
  (void)e.reported(report(0, 2), std::nullopt, t0);
  CHECK(e.open_round() == 2);
  const auto again = only<engine::decide>(e.reported(report(2, 1), 2, t0));
  REQUIRE(again.size() == 1);
  CHECK(again[0].index == 1);
  REQUIRE(again[0].reports.size() == 1);
  CHECK(again[0].reports[0].trainer == 2);
  CHECK(only<engine::resume>(e.decided(1, {}, t0))[0].trainers == std::vector<trainer_id>{2});
  CHECK(e.open_round() == 2);
  (void)e.reported(report(1, 2), std::nullopt, t0);
  const auto all = only<engine::decide>(e.reported(report(2, 2), std::nullopt, t0));
  REQUIRE(all.size() == 1);
  CHECK(all[0].reports.size() == 3);
}

TEST_CASE("when nobody runs any more the held ones are asked about once more and then stopped") {
  auto e = with_members(2);
  (void)e.reported(report(0, 0), std::nullopt, t0);
  (void)e.reported(report(1, 0), std::nullopt, t0);
  (void)e.decided(0, {{1, hold_it()}}, t0);
  const auto call = only<engine::decide>(e.member_finished(0, 0, t0));
  REQUIRE(call.size() == 1);
  CHECK(call[0].last_call);
  CHECK(call[0].reports.empty());
  CHECK(call[0].held == std::vector<trainer_id>{1});
  SUBCASE("nothing is decided") {
    const auto applies = only<engine::apply>(e.decided(0, {}, t0));
    REQUIRE(applies.size() == 1);
    CHECK(applies[0].what.act == decision::action::stop);
    CHECK(applies[0].what.reason == "stopped by policy: nothing can let it go on any more");
  }
  SUBCASE("it is held again") {
    CHECK(only<engine::apply>(e.decided(0, {{1, hold_it()}}, t0))[0].what.act == decision::action::stop);
  }
  SUBCASE("it is let go on") {
    CHECK(only<engine::apply>(e.decided(0, {{1, {}}}, t0))[0].what.act == decision::action::go_on);
    CHECK(only<engine::promote>(e.applied(0, 1, 0, true, t0)).size() == 1);
    CHECK(e.current_phase() == engine::phase::idle);
    CHECK(only<engine::all_done>(e.member_finished(1, 0, t0)).size() == 1);
    return;
  }
  CHECK(only<engine::promote>(e.applied(0, 1, 0, true, t0)).empty());
  CHECK(only<engine::all_done>(e.member_finished(1, 0, t0)).size() == 1);
}

TEST_CASE("there is no last call while one that was never up is on its way") {
  auto e = with_members(2);
  (void)e.reported(report(0, 0), std::nullopt, t0);
  (void)e.reported(report(1, 0), std::nullopt, t0);
  (void)e.decided(0, {{1, hold_it()}}, t0);
  e.expected(7);
  e.expected(7);
  e.expected(0);
  CHECK(e.dropped() == 2);
  CHECK(only<engine::decide>(e.member_finished(0, 0, t0)).empty());
  CHECK(e.live() == 1);
  SUBCASE("it comes and ends") {
    CHECK(e.member_up(7, 0, std::nullopt, t0).empty());
    CHECK(only<engine::decide>(e.member_finished(7, 0, t0)).size() == 1);
  }
  SUBCASE("it is gone before it was up") {
    CHECK(only<engine::decide>(e.member_down(7, 0, true, t0)).empty()); // it begins anew
    CHECK(only<engine::decide>(e.member_down(7, 0, false, t0)).size() == 1);
  }
  SUBCASE("it comes to a sync point at which the other one is let go on") {
    (void)e.member_up(7, 0, 1, t0);
    const auto asked = only<engine::decide>(e.reported(report(7, 1), std::nullopt, t0));
    REQUIRE(asked.size() == 1);
    CHECK_FALSE(asked[0].last_call);
    CHECK(asked[0].held == std::vector<trainer_id>{1});
  }
}

TEST_CASE("nobody is stopped by a last call during which somebody comes") {
  auto e = with_members(2);
  (void)e.reported(report(0, 0), std::nullopt, t0);
  (void)e.reported(report(1, 0), std::nullopt, t0);
  (void)e.decided(0, {{1, hold_it()}}, t0);
  REQUIRE(only<engine::decide>(e.member_finished(0, 0, t0)).size() == 1);
  SUBCASE("it is on its way") { e.expected(2); }
  SUBCASE("it is there") { CHECK(e.member_up(2, 0, std::nullopt, t0).empty()); }
  CHECK(only<engine::apply>(e.decided(0, {}, t0)).empty());
  CHECK(e.held() == 1);
  CHECK(e.current_phase() == engine::phase::idle);
  (void)e.member_up(2, 0, std::nullopt, t0);
  CHECK(only<engine::decide>(e.member_finished(2, 0, t0)).size() == 1);
  CHECK(only<engine::apply>(e.decided(0, {}, t0)).size() == 1);
}

TEST_CASE("one that is held and restarted is held again where it was") {
  auto e = with_members(2);
  (void)e.reported(report(0, 0), 1, t0);
  (void)e.reported(report(1, 0), 1, t0);
  (void)e.decided(0, {{1, hold_it()}}, t0);
  (void)e.member_down(1, 0, true, t0);
  // Nobody waits for it meanwhile.
  CHECK(only<engine::decide>(e.reported(report(0, 1), 2, t0)).size() == 1);
  (void)e.decided(1, {}, t0);
  (void)e.member_up(1, 1, 0, t0);
  const auto back = e.reported(report(1, 0, 1), 1, t0);
  CHECK(only<engine::hold>(back).size() == 1);
  CHECK(only<engine::release>(back).empty());
  CHECK(e.held() == 1);
}

TEST_CASE("one by one each report is a round of its own and nobody waits for the others") {
  sync_options o;
  o.asynchronous = true;
  engine e{o, std::nullopt, true};
  for (trainer_id t = 0; t < 3; ++t)
    CHECK(e.member_up(t, 0, 0, t0).empty());
  const auto first = only<engine::decide>(e.reported(report(0, 0), 1, t0));
  REQUIRE(first.size() == 1);
  CHECK(first[0].reports.size() == 1);
  CHECK(e.reported(report(1, 0), 1, t0).empty()); // its turn comes
  const auto held = e.decided(0, {{0, hold_it()}}, t0);
  CHECK(only<engine::hold>(held).size() == 1);
  REQUIRE(only<engine::decide>(held).size() == 1);
  CHECK(only<engine::decide>(held)[0].reports[0].trainer == 1);
  CHECK(only<engine::decide>(held)[0].held == std::vector<trainer_id>{0});
  CHECK(only<engine::resume>(e.decided(0, {}, t0))[0].trainers == std::vector<trainer_id>{1});
  // Far ahead of the third, which reports late and is asked about all the same.
  (void)e.reported(report(1, 1), 2, t0);
  (void)e.decided(1, {}, t0);
  CHECK(only<engine::decide>(e.reported(report(2, 0), 1, t0)).size() == 1);
}

TEST_CASE("a run that goes on knows who was held and who was decided about") {
  sync_options o;
  o.asynchronous = true;
  engine e{o, 1, true};
  e.restore(0, {0, 0, false});
  e.restore(1, {1, std::nullopt, false});
  (void)e.member_up(0, 1, 0, t0);
  (void)e.member_up(1, 1, 1, t0);
  CHECK(only<engine::hold>(e.reported(report(0, 0, 1), 1, t0)).size() == 1);
  CHECK(only<engine::release>(e.reported(report(1, 1, 1), 2, t0)).size() == 1);
  CHECK(only<engine::decide>(e.reported(report(1, 2, 1), std::nullopt, t0))[0].held == std::vector<trainer_id>{0});
}
