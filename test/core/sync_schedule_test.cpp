#include <doctest/doctest.h>

#include "troupe/core/experiment.hpp"

using namespace troupe::core;

TEST_CASE("a schedule without steps has no next sync point") {
  CHECK_FALSE(sync_schedule{}.next_after(0, 1000));
}

TEST_CASE("sync points come every n steps and strictly before the stop step") {
  sync_schedule s{.every_steps = 10};
  CHECK(s.next_after(0, 100) == 10);
  CHECK(s.next_after(9, 100) == 10);
  CHECK(s.next_after(10, 100) == 20);
  CHECK(s.next_after(89, 100) == 90);
  CHECK_FALSE(s.next_after(90, 100));
  CHECK_FALSE(s.next_after(5, 10));
  CHECK(s.next_after(5, 11) == 10);
  CHECK_FALSE(s.next_after(UINT64_MAX - 1, UINT64_MAX));
}

TEST_CASE("listed steps and multiples are one ascending sequence without repetition") {
  sync_schedule s{.every_steps = 10, .at_steps = {5, 20, 25}};
  std::vector<std::uint64_t> met;
  for (auto next = s.next_after(0, 41); next; next = s.next_after(*next, 41)) {
    CHECK(s.index_of(*next) == met.size());
    met.push_back(*next);
  }
  CHECK(met == std::vector<std::uint64_t>{5, 10, 20, 25, 30, 40});
}

TEST_CASE("listed steps alone are numbered in their order") {
  sync_schedule s{.at_steps = {3, 100, 1000}};
  CHECK(s.next_after(3, 5000) == 100);
  CHECK(s.index_of(3) == 0);
  CHECK(s.index_of(1000) == 2);
  CHECK_FALSE(s.next_after(1000, 5000));
}
