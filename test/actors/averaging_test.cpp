#include "averaging.hpp"

#include <doctest/doctest.h>

#include <memory>

#include "troupe/core/subnormals.hpp"

using namespace troupe;

namespace {

core::checkpoint_ptr weights_of(float x) {
  core::checkpoint out;
  out.add<float>("weights.w", core::dtype::f32, {1}, std::span<const float>(&x, 1));
  return std::make_shared<const core::checkpoint>(std::move(out));
}

} // namespace

TEST_CASE("a mean of weights that would be subnormal is 0 as on the slots") {
  if (!core::can_flush_subnormals)
    return;
  const auto mean = actors::internal::average({weights_of(2e-38F), weights_of(-1e-38F), weights_of(0)});
  REQUIRE(mean);
  CHECK((*mean)->find("weights.w")->as<float>()[0] == 0);
  CHECK_FALSE(core::flushes_subnormals());
}
