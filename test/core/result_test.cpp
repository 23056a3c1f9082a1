#include <doctest/doctest.h>

#include "troupe/core/result.hpp"

using namespace troupe::core;

TEST_CASE("a result holds either its value or its error") {
  result<int> good = 3;
  result<int> bad = error{errc::not_found, "no such thing"};
  CHECK(good);
  CHECK(*good == 3);
  CHECK_FALSE(bad);
  CHECK(bad.error().text == "no such thing");
  CHECK_THROWS(bad.value());
  CHECK(to_string(bad.error().code) == "not found");
}

TEST_CASE("a void result is good unless it holds an error") {
  CHECK(result<void>{});
  CHECK_FALSE(result<void>{error{errc::io, "disk full"}});
}
