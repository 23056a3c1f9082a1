#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "troupe/core/barrier_ledger.hpp"
#include "troupe/core/random.hpp"
#include "troupe/core/run_order.hpp"

using namespace troupe::core;

namespace {

struct outcome {
  std::uint64_t makespan = 0;
  std::vector<std::uint64_t> ends;
};

/// A slot that runs `lanes` runs at once, as one fused step does, for one quantum each time.
outcome simulate(std::vector<std::uint64_t> quanta, std::size_t lanes, bool round_robin,
                 const std::vector<std::int32_t>& priorities = {}) {
  std::vector<waiting_run> runs(quanta.size());
  outcome out;
  out.ends.resize(quanta.size());
  std::uint64_t turn = 0;
  for (auto& r : runs) {
    r.turn = turn++;
    r.before_barrier = !round_robin;
  }
  for (std::size_t i = 0; i < priorities.size(); ++i)
    runs[i].priority = priorities[i];
  for (;; ++out.makespan) {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < quanta.size(); ++i) {
      runs[i].seconds_left = static_cast<double>(quanta[i]);
      if (quanta[i] > 0)
        order.push_back(i);
    }
    if (order.empty())
      return out;
    std::sort(order.begin(), order.end(), [&](auto a, auto b) { return goes_before(runs[a], runs[b]); });
    for (std::size_t k = 0; k < std::min(lanes, order.size()); ++k) {
      const auto i = order[k];
      runs[i].turn = turn++;
      if (--quanta[i] == 0)
        out.ends[i] = out.makespan + 1;
    }
  }
}

} // namespace

TEST_CASE("longest first closes a barrier never later than round robin and as early as can be") {
  std::size_t earlier = 0;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    random_stream rng(seed, "makespan");
    std::vector<std::uint64_t> quanta(1 + rng.below(20));
    for (auto& q : quanta)
      q = 1 + rng.below(rng.below(3) == 0 ? 100 : 20);
    const auto lanes = 1 + rng.below(6);
    const auto longest_first = simulate(quanta, lanes, false).makespan;
    const auto round_robin = simulate(quanta, lanes, true).makespan;
    CHECK(longest_first <= round_robin);
    const auto all = std::accumulate(quanta.begin(), quanta.end(), std::uint64_t{0});
    CHECK(longest_first ==
          std::max(*std::max_element(quanta.begin(), quanta.end()), (all + lanes - 1) / lanes));
    earlier += longest_first < round_robin;
  }
  CHECK(earlier > 100);
}

TEST_CASE("equal runs take turns") {
  const auto x = simulate({10, 10, 10}, 1, false);
  CHECK(x.makespan == 30);
  CHECK(x.ends == std::vector<std::uint64_t>{28, 29, 30});
}

TEST_CASE("a higher priority goes first whatever is left") {
  const auto x = simulate({5, 50, 5}, 1, false, {1, 0, 2});
  CHECK(x.ends[2] == 5);
  CHECK(x.ends[0] == 10);
  CHECK(x.ends[1] == 60);
}

TEST_CASE("without a barrier ahead who has waited longest goes first") {
  std::vector<waiting_run> xs{{0, false, 9, 5}, {0, false, 1, 3}, {0, false, 5, 4}};
  CHECK(first_of(xs) == 1);
  xs.push_back({0, true, 0.1, 6});
  CHECK(first_of(xs) == 3); // others wait for this one
  xs.push_back({0, true, std::numeric_limits<double>::infinity(), 7});
  CHECK(first_of(xs) == 4); // how long it takes must be found out first
  xs.push_back({1, false, 0, 8});
  CHECK(first_of(xs) == 5);
}

TEST_CASE("who goes first is a strict weak order") {
  random_stream rng(1, "order");
  std::vector<waiting_run> xs;
  for (int i = 0; i < 40; ++i)
    xs.push_back({static_cast<std::int32_t>(rng.below(2)), rng.below(2) == 0,
                  static_cast<double>(rng.below(3)), rng.below(4)});
  for (const auto& a : xs) {
    CHECK(!goes_before(a, a));
    for (const auto& b : xs) {
      CHECK(!(goes_before(a, b) && goes_before(b, a)));
      for (const auto& c : xs) {
        if (goes_before(a, b) && goes_before(b, c))
          CHECK(goes_before(a, c));
        if (!goes_before(a, b) && !goes_before(b, a) && !goes_before(b, c) && !goes_before(c, b))
          CHECK((!goes_before(a, c) && !goes_before(c, a)));
      }
    }
  }
}

namespace {

metadata times(trainer_id t, double compute, double parked, std::uint32_t incarnation = 0) {
  metadata m;
  m.trainer = t;
  m.incarnation = incarnation;
  m.compute_seconds = compute;
  m.sync_seconds = parked;
  return m;
}

} // namespace

TEST_CASE("waits at barriers are summed beside what the slowest trainer sets") {
  barrier_ledger x;
  x.add(std::vector{times(0, 1, 0), times(1, 3, 0)});
  CHECK(x.total().seconds == 0);
  CHECK(x.total().bound == 0); // nobody has left that barrier yet
  // At that barrier trainer 0 stood 2.5 s and trainer 1 half a second; then the other one was slower.
  x.add(std::vector{times(0, 5, 2.5), times(1, 4, 0.5)});
  CHECK(x.of(0).seconds == 2.5);
  CHECK(x.of(1).seconds == 0.5);
  CHECK(x.of(0).bound == 2);
  CHECK(x.of(1).bound == 0);
  x.finish(times(0, 6, 3));
  x.finish(times(1, 6, 4));
  CHECK(x.of(0).seconds == 3);
  CHECK(x.of(1).bound == 3);
  CHECK(x.total().seconds == 7);
  CHECK(x.total().bound == 5);
  CHECK(x.of(9).seconds == 0);
}

TEST_CASE("the bound of a wait at barriers is a part of it however long a trainer waits for its slot") {
  // One slot: the long one goes first, the short one waits for the slot and then for nobody.
  barrier_ledger x;
  x.add(std::vector{times(0, 1, 0), times(1, 3, 0)});
  x.add(std::vector{times(0, 2, 0), times(1, 6, 1)});
  x.finish(times(0, 3, 0.5));
  x.finish(times(1, 9, 1));
  CHECK(x.of(0).seconds == 0.5);
  CHECK(x.of(0).bound == 0.5);
  CHECK(x.total().bound <= x.total().seconds);
}

TEST_CASE("a restarted trainer's times count from nothing and a hold is no wait at a barrier") {
  barrier_ledger x;
  x.add(std::vector{times(0, 4, 0), times(1, 4, 0)});
  x.add(std::vector{times(0, 1, 0.25, 1), times(1, 5, 1)});
  CHECK(x.of(0).seconds == 0.25);
  CHECK(x.of(0).bound == 0);
  x.skip(1);
  x.add(std::vector{times(0, 2, 0.5, 1), times(1, 6, 100)});
  CHECK(x.of(1).seconds == 1);
  x.add(std::vector{times(0, 3, 0.5, 1), times(1, 7, 101)});
  CHECK(x.of(1).seconds == 2);
}
