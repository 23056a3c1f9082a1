#include <doctest/doctest.h>

#include "life_signs.hpp"

using namespace troupe::net;
using namespace std::chrono_literals;

using told = std::vector<std::size_t>;

namespace {
const life_signs::time_point start{};
}

TEST_CASE("who is silent for longer than the limit is told once") {
  life_signs x{1s, 5s};
  x.watch(3, start);
  x.watch(7, start);
  for (int s = 1; s <= 5; ++s) {
    x.heard(7, start + 1s * s);
    CHECK(x.look(start + 1s * s) == told{});
  }
  CHECK(x.look(start + 6s) == told{3});
  CHECK(x.look(start + 7s) == told{});
  CHECK(x.look(start + 8s) == told{});
  CHECK(x.look(start + 9s) == told{});
  CHECK(x.look(start + 10s) == told{});
  CHECK(x.look(start + 11s) == told{7});
}

TEST_CASE("time in which the watcher did not look counts against nobody") {
  life_signs x{1s, 5s};
  x.watch(0, start);
  CHECK(x.look(start) == told{});
  CHECK(x.look(start + 1h) == told{}); // it was stopped
  for (int s = 1; s <= 4; ++s)
    CHECK(x.look(start + 1h + 1s * s) == told{});
  CHECK(x.look(start + 1h + 5s) == told{0}); // the second before the hour counts
}

TEST_CASE("who is not watched or was forgotten is not judged and a pardon begins anew") {
  life_signs x{1s, 2s};
  x.heard(5, start);
  x.watch(1, start);
  x.watch(2, start);
  x.forget(1);
  CHECK(x.look(start) == told{});
  CHECK(x.look(start + 1s) == told{});
  CHECK(x.look(start + 2s) == told{});
  x.pardon(start + 3s);
  CHECK(x.look(start + 3s) == told{});
  CHECK(x.look(start + 4s) == told{});
  CHECK(x.look(start + 5s) == told{});
  CHECK(x.look(start + 6s) == told{2});
}
