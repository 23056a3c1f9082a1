#include "troupe/core/subnormals.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <thread>

using namespace troupe::core;

namespace {

/// What the thread makes of the smallest normal number's half, and of twice that half.
struct halves {
  float half, whole;
};
halves compute() {
  volatile float least = std::numeric_limits<float>::min();
  volatile float half = least * 0.5f;
  volatile float subnormal = std::numeric_limits<float>::denorm_min();
  return {half, subnormal * 16777216.0f};
}

} // namespace

TEST_CASE("a thread that flushes takes and gives zeros for subnormal numbers") {
  std::thread([] {
    CHECK_FALSE(flushes_subnormals());
    CHECK(compute().half > 0);
    CHECK(compute().whole > 0);
    flush_subnormals();
    CHECK(flushes_subnormals() == can_flush_subnormals);
    CHECK((compute().half == 0) == can_flush_subnormals);
    CHECK((compute().whole == 0) == can_flush_subnormals);
    std::thread([] { CHECK(flushes_subnormals() == can_flush_subnormals); }).join();
  }).join();
  CHECK_FALSE(flushes_subnormals());
}

TEST_CASE("a scope flushes or does not and then it is as before") {
  {
    const subnormals_scope on;
    CHECK(flushes_subnormals() == can_flush_subnormals);
    {
      const subnormals_scope off(false);
      CHECK_FALSE(flushes_subnormals());
      CHECK(compute().half > 0);
    }
    CHECK(flushes_subnormals() == can_flush_subnormals);
  }
  CHECK_FALSE(flushes_subnormals());
}
