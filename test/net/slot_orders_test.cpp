#include "slot_orders.hpp"

#include <doctest/doctest.h>

using namespace troupe;

TEST_CASE("a worker opens a slot with all that the head chose for it") {
  gpu::slot_options chosen;
  chosen.device.id = "GPU-aa";
  chosen.cores = {3, 5};
  chosen.memory_budget = 1000;
  chosen.pinned_budget = 200;
  chosen.math = gpu::math_mode::tf32;
  for (const auto mode : {gpu::capture_mode::automatic, gpu::capture_mode::never, gpu::capture_mode::always}) {
    chosen.capture = mode;
    const auto order = net::order_of(chosen);
    CHECK(order.device == "GPU-aa");
    const auto opened = net::options_of(order);
    CHECK(opened.cores == chosen.cores);
    CHECK(opened.memory_budget == 1000);
    CHECK(opened.pinned_budget == 200);
    CHECK(opened.math == gpu::math_mode::tf32);
    CHECK(opened.capture == mode);
  }
}
