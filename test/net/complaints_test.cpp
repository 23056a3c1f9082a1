#include <doctest/doctest.h>

#include "complaints.hpp"

using troupe::net::complaints;
using kind = complaints::kind;

TEST_CASE("the first complaint of each kind about each stranger is a line and all are counted") {
  complaints x;
  CHECK(x.about(kind::unknown, "p", "a message") == "dropped a message, of p; more of them are only counted");
  CHECK(x.about(kind::refused, "p", "wrong token") == "refused p: wrong token");
  CHECK(x.summary() == "");
  CHECK(x.about(kind::unknown, "p", "a message") == "");
  CHECK(x.about(kind::refused, "p", "wrong version") == "");
  CHECK(x.about(kind::unknown, "", "a message") == "dropped a message, of this process; more of them are only counted");
  CHECK(x.summary() == "in all, dropped 3 messages and refused 2 attempts to join");
}

TEST_CASE("however many strangers there are a log has few lines about them") {
  complaints x;
  int lines = 0;
  for (int i = 0; i < 10'000; ++i)
    lines += x.about(kind::unknown, std::to_string(i), "a message").empty() ? 0 : 1;
  CHECK(lines == 32);
  CHECK(x.summary() == "in all, dropped 10000 messages and refused 0 attempts to join");
}
