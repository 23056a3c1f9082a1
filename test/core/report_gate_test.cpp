#include "troupe/core/report_gate.hpp"

#include <deque>
#include <vector>

#include <doctest/doctest.h>

#include "troupe/core/random.hpp"

using namespace troupe::core;

namespace {

using clock_time = report_gate::time_point;

clock_time at(int seconds) { return clock_time{} + std::chrono::seconds(seconds); }

} // namespace

TEST_CASE("a report beyond the limit is held back until it is written itself") {
  report_gate gate{{2, 1000}};
  CHECK(gate.sent(10, at(0)));
  CHECK(gate.sent(10, at(0)));
  CHECK_FALSE(gate.sent(10, at(1)));
  CHECK_FALSE(gate.sent(10, at(2)));
  CHECK(gate.unwritten() == 4);
  CHECK(gate.unwritten_bytes() == 40);
  CHECK(gate.held_back() == 2);
  CHECK(gate.held_back_seconds(at(5)) == 4);
  for (int i = 0; i < 2; ++i)
    gate.written(10, true, at(5));
  CHECK(gate.held_back() == 2); // the others in front of them are written, they are not
  gate.written(10, false, at(6));
  gate.written(10, false, at(7));
  CHECK(gate.held_back() == 0);
  CHECK(gate.held_back_seconds(at(100)) == 6);
  CHECK(gate.sent(10, at(101)));
  CHECK(gate.times() == 1);
  CHECK(gate.most_unwritten() == 4);
}

TEST_CASE("few reports of many bytes are held back too") {
  report_gate gate{{1000, 100}};
  CHECK(gate.sent(60, at(0)));
  CHECK(gate.sent(60, at(0)));
  CHECK_FALSE(gate.sent(1, at(0)));
  gate.written(60, true, at(1));
  CHECK(gate.sent(1, at(1)));
}

TEST_CASE("in any order of reports and writes the queue is bounded and nobody waits for ever") {
  constexpr std::uint64_t limit = 5, trainers = 3;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    random_stream rng{seed, "gate"};
    report_gate gate{{limit, 1'000'000}};
    struct report {
      std::uint64_t trainer;
      bool taken;
    };
    std::deque<report> queue;
    std::vector<std::uint32_t> ahead(trainers, 0);
    for (int i = 0; i < 300; ++i) {
      if (const auto t = rng.below(trainers); rng.below(4) > 0 && ahead[t] < reports_ahead) {
        queue.push_back({t, gate.sent(1, at(i))});
        ahead[t] += queue.back().taken ? 0 : 1;
      } else if (!queue.empty()) {
        const auto x = queue.front();
        queue.pop_front();
        gate.written(1, x.taken, at(i));
        ahead[x.trainer] -= x.taken ? 0 : 1;
      }
      REQUIRE(queue.size() == gate.unwritten());
      REQUIRE(queue.size() <= limit + trainers * reports_ahead);
    }
    for (; !queue.empty(); queue.pop_front()) {
      gate.written(1, queue.front().taken, at(300));
      ahead[queue.front().trainer] -= queue.front().taken ? 0 : 1;
    }
    CHECK(gate.unwritten_bytes() == 0);
    CHECK(ahead == std::vector<std::uint32_t>(trainers, 0));
  }
}
