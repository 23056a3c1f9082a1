#define TROUPE_KERNELS numerics_test
#include "kernels/elementwise.hpp"
#include "kernels/schedule.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

// The functions that kernels use in place of a math library, at the bounds their comments promise.
using namespace troupe::gpu;
using namespace troupe::gpu::internal::numerics_test;

namespace {

double relative_error(double got, double want) { return std::abs(got - want) / std::abs(want); }

} // namespace

TEST_CASE("exp_of is within its bound over all normal results") {
  double worst = 0;
  for (float x = -87.3f; x < 88.7f; x += 0.00173f)
    worst = std::max(worst, relative_error(double(exp_of(x)), std::exp(double(x))));
  CHECK(worst < 0x1p-22);
}

TEST_CASE("exp_of ends in 0 and infinity and keeps NaN") {
  CHECK(exp_of(-88) == 0);
  CHECK(exp_of(-infinity()) == 0);
  CHECK(exp_of(0) == 1);
  CHECK(std::isfinite(exp_of(88.72f)));
  CHECK(exp_of(89) == infinity());
  CHECK(exp_of(infinity()) == infinity());
  CHECK(std::isnan(exp_of(NAN)));
}

TEST_CASE("log_of is within its bound") {
  double worst = 0;
  for (float x = 1e-37f; x < 1e38f; x *= 1.00173f) {
    const double want = std::log(double(x)), error = std::abs(double(log_of(x)) - want);
    worst = std::max(worst, std::abs(want) < 0.25 ? error / 0.25 : error / std::abs(want));
  }
  CHECK(worst < 0x1p-22);
  CHECK(log_of(1) == 0);
  CHECK(log_of(infinity()) == infinity());
  CHECK(std::isnan(log_of(NAN)));
}

TEST_CASE("gelu and its slope are accurate to a few units in the last place of their scale") {
  const auto exact = [](double x) {
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
  };
  double worst = 0, worst_slope = 0;
  for (float x = -12; x < 12; x += 0.00313f) {
    worst = std::max(worst, std::abs(double(activate<activation::gelu>(x)) - exact(double(x))) /
                                std::max(1.0, std::abs(double(x))));
    const double slope_wanted = (exact(double(x) + 1e-5) - exact(double(x) - 1e-5)) / 2e-5;
    worst_slope = std::max(worst_slope, std::abs(double(slope<activation::gelu>(x)) - slope_wanted));
  }
  CHECK(worst < 5e-7);
  CHECK(worst_slope < 2e-6);
}

TEST_CASE("cos_pi and power agree with the math library") {
  for (double t = 0; t <= 1; t += 1.0 / 128)
    CHECK(std::abs(cos_pi(t) - std::cos(3.14159265358979323846 * t)) < 1e-13);
  for (std::uint64_t n : {0, 1, 2, 3, 10, 1000, 1000000})
    CHECK(power(0.999, n) == doctest::Approx(std::pow(0.999, double(n))).epsilon(1e-9));
}
