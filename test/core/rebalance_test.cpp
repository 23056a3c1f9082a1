#include "troupe/core/rebalance.hpp"

#include <algorithm>
#include <vector>

#include <doctest/doctest.h>

#include "troupe/core/random.hpp"

using namespace troupe::core;

namespace {

run_load run_of(std::uint64_t id, double left, double cost = 0.01) {
  run_load r;
  r.id = id;
  r.movable = true;
  r.left_seconds = left;
  r.move_seconds = cost;
  return r;
}

slot_load idle_slot() { return {"cpu", true, {}}; }
slot_load busy_slot(std::vector<run_load> runs) { return {"cpu", false, std::move(runs)}; }

} // namespace

TEST_CASE("an idle slot takes the run whose move ends the work soonest") {
  const std::vector<slot_load> slots{busy_slot({run_of(1, 1), run_of(2, 4), run_of(3, 5)}), idle_slot()};
  const auto x = choose_move(slots);
  REQUIRE(x);
  CHECK(x->from == 0);
  CHECK(x->to == 1);
  CHECK(x->id == 3); // after 5 s and 5.01 s; without the second one it would be 6 s
  CHECK(x->gain_seconds == doctest::Approx(4.99));
}

TEST_CASE("of equal runs the one whose turn is last goes and to the first idle slot") {
  const std::vector<slot_load> slots{idle_slot(), busy_slot({run_of(1, 2), run_of(2, 2)}), idle_slot()};
  const auto x = choose_move(slots);
  REQUIRE(x);
  CHECK(x->id == 2);
  CHECK(x->to == 0);
}

TEST_CASE("nothing moves without an idle slot or without two that share one") {
  CHECK_FALSE(choose_move({}));
  CHECK_FALSE(choose_move(std::vector{busy_slot({run_of(1, 9), run_of(2, 9)})}));
  CHECK_FALSE(choose_move(std::vector{busy_slot({run_of(1, 9), run_of(2, 9)}), busy_slot({run_of(3, 1)})}));
  CHECK_FALSE(choose_move(std::vector{busy_slot({run_of(1, 9), run_of(2, 9)}), busy_slot({})})); // a task runs there
  CHECK_FALSE(choose_move(std::vector{busy_slot({run_of(1, 9)}), idle_slot()}));
  CHECK(choose_move(std::vector{busy_slot({run_of(1, 9), run_of(2, 9)}), busy_slot({run_of(3, 1)}), idle_slot()}));
}

TEST_CASE("a move must gain clearly more than it costs") {
  const auto with = [](double left, double cost) {
    return choose_move(std::vector{busy_slot({run_of(1, left, cost), run_of(2, left, cost)}), idle_slot()});
  };
  CHECK(with(1, 0.04));
  CHECK_FALSE(with(1, 0.06));
  CHECK_FALSE(with(0.1, 0.01));
  CHECK_FALSE(with(0, 0)); // not measured yet
  CHECK(choose_move(std::vector{busy_slot({run_of(1, 1, 0.4), run_of(2, 1, 0.4)}), idle_slot()}, {1}));
  // What is nearly over is not worth it, however much the other has to do.
  CHECK_FALSE(choose_move(std::vector{busy_slot({run_of(1, 100, 30), run_of(2, 0.1)}), idle_slot()}));
}

TEST_CASE("only what may move moves and only where it can") {
  auto pinned = run_of(2, 9);
  pinned.movable = false;
  auto x = choose_move(std::vector{busy_slot({run_of(1, 9), pinned}), idle_slot()});
  REQUIRE(x);
  CHECK(x->id == 1);
  CHECK_FALSE(choose_move(std::vector{busy_slot({pinned, pinned}), idle_slot()}));
  auto refused = run_of(1, 9);
  refused.not_to = {1};
  CHECK_FALSE(choose_move(std::vector{busy_slot({refused, pinned}), idle_slot()}));
  x = choose_move(std::vector{busy_slot({refused, pinned}), idle_slot(), idle_slot()});
  REQUIRE(x);
  CHECK(x->to == 2);
  auto other = idle_slot();
  other.kind = "cuda";
  CHECK_FALSE(choose_move(std::vector{busy_slot({run_of(1, 9), run_of(2, 9)}), other}));
}

TEST_CASE("what came by a move stays until it was worth it") {
  auto guest = run_of(1, 9);
  auto owner = run_of(2, 9);
  owner.movable = false;
  guest.settled_seconds = 0.1;
  CHECK_FALSE(choose_move(std::vector{busy_slot({guest, owner}), idle_slot()}));
  guest.settled_seconds = 0.3;
  CHECK(choose_move(std::vector{busy_slot({guest, owner}), idle_slot()}));
}

TEST_CASE("repeated moves never make the work longer and come to an end") {
  // Slots serve their runs one after the other in small turns. Every decision is acted on, and costs what was said.
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    random_stream rng(seed, "balance");
    std::vector<slot_load> slots(2 + rng.below(3));
    std::vector<double> stay(slots.size(), 0);
    std::uint64_t id = 0;
    for (auto& s : slots) {
      s.kind = "cpu";
      for (auto n = rng.below(5); n > 0; --n)
        s.runs.push_back(run_of(++id, rng.uniform(0.01, 3), rng.uniform(0.001, 0.05)));
      for (const auto& r : s.runs)
        stay[static_cast<std::size_t>(&s - slots.data())] += r.left_seconds;
    }
    const auto apart = *std::max_element(stay.begin(), stay.end());
    double now = 0;
    int moves = 0;
    constexpr double turn = 0.002;
    const auto busy = [&] {
      return std::any_of(slots.begin(), slots.end(), [](const auto& s) { return !s.runs.empty(); });
    };
    for (; busy(); now += turn) {
      for (auto& s : slots) {
        s.idle = s.runs.empty();
        if (s.idle)
          continue;
        auto r = s.runs.front();
        s.runs.erase(s.runs.begin());
        r.left_seconds -= turn;
        r.settled_seconds += turn;
        if (r.left_seconds > 0)
          s.runs.push_back(r);
      }
      if (const auto x = choose_move(slots)) {
        auto& from = slots[x->from].runs;
        const auto i = std::find_if(from.begin(), from.end(), [&](const auto& r) { return r.id == x->id; });
        REQUIRE(i != from.end());
        auto r = *i;
        from.erase(i);
        r.left_seconds += r.move_seconds; // it computes that much later
        r.settled_seconds = 0;
        slots[x->to].runs.push_back(r);
        ++moves;
      }
      REQUIRE(now < apart + 1);
    }
    CHECK(now <= apart + 20 * turn); // each run may take a little more than it needs
    CHECK(moves < 100);
  }
}
