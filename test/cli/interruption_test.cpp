#include <doctest/doctest.h>

#include <csignal>

#include "interruption.hpp"

using namespace std::chrono_literals;
using troupe::cli::leave_rule;

TEST_CASE("the first signal saves and only Ctrl-C after a while leaves at once") {
  using answer = leave_rule::answer;
  const leave_rule::time_point start{};
  for (const int first : {SIGINT, SIGTERM, SIGHUP}) {
    leave_rule rule;
    CHECK(rule.on_signal(first, start) == answer::save);
    for (const int same : {SIGINT, SIGTERM, SIGHUP}) // sent to the process and to its group
      CHECK(rule.on_signal(same, start + 499ms) == answer::nothing);
    for (const int later : {SIGTERM, SIGHUP})
      CHECK(rule.on_signal(later, start + 1h) == answer::nothing);
    CHECK(rule.on_signal(SIGINT, start + 500ms) == answer::leave);
  }
}
