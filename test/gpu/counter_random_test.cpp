#include <doctest/doctest.h>

#include <cmath>
#include <set>
#include <stdexcept>
#include <vector>

#include <Random123/philox.h>

#include "troupe/gpu/counter_random.hpp"

using namespace troupe::gpu;

TEST_CASE("permute is a bijection for every length") {
  std::vector<std::uint64_t> lengths{127, 128, 129, 1000, 4095, 4096, 4097, 60000};
  for (std::uint64_t n = 1; n <= 70; ++n)
    lengths.push_back(n);
  for (std::uint64_t n : lengths)
    for (std::uint64_t epoch : {0, 7}) {
      std::vector<bool> hit(n);
      for (std::uint64_t i = 0; i < n; ++i) {
        const std::uint64_t j = permute(n * 31, epoch, i, n);
        REQUIRE(j < n);
        REQUIRE(!hit[j]);
        hit[j] = true;
      }
    }
}

TEST_CASE("permute works up to the largest lengths") {
  const std::uint64_t n = (1ull << 62) + 12345;
  std::set<std::uint64_t> seen;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const std::uint64_t j = permute(1, 2, n - 1 - i, n);
    CHECK(j < n);
    seen.insert(j);
  }
  CHECK(seen.size() == 1000);
}

TEST_CASE("permute spreads every example over every place") {
  // Chi-square over 2000 epochs with n - 1 degrees of freedom; the bounds are more than 5 standard deviations off.
  for (std::uint64_t n : {5, 10, 33})
    for (std::uint64_t i : {std::uint64_t(0), n / 2, n - 1}) {
      std::vector<double> count(n);
      const double epochs = 2000, expected = epochs / double(n);
      for (std::uint64_t e = 0; e < 2000; ++e)
        count[permute(11, e, i, n)] += 1;
      double chi = 0;
      for (double c : count)
        chi += (c - expected) * (c - expected) / expected;
      CHECK(chi < double(n - 1) + 5 * std::sqrt(2 * double(n - 1)) + 5);
    }
}

TEST_CASE("neighbours do not stay neighbours and epochs and seeds differ") {
  const std::uint64_t n = 10007;
  int adjacent = 0, same_epoch = 0, same_seed = 0;
  for (std::uint64_t i = 0; i + 1 < n; ++i) {
    const std::uint64_t a = permute(5, 0, i, n), b = permute(5, 0, i + 1, n);
    adjacent += a + 1 == b || b + 1 == a;
    same_epoch += a == permute(5, 1, i, n);
    same_seed += a == permute(6, 0, i, n);
  }
  CHECK(adjacent < 12); // 2 expected
  CHECK(same_epoch < 8); // 1 expected
  CHECK(same_seed < 8);
}

TEST_CASE("permute refuses an element outside its range") {
  CHECK_THROWS_WITH_AS(permute(1, 1, 5, 5), "permute: there is no element 5 in a range of 5", std::out_of_range);
  CHECK_THROWS_AS(permute(1, 1, 0, 0), std::out_of_range);
}

TEST_CASE("the numbers of a seed never change between versions") {
  // A checkpoint holds a seed and a place, so other numbers here would break the resumption of every older run.
  CHECK(permute(42, 0, 0, 60000) == 57604);
  CHECK(permute(42, 3, 59999, 60000) == 15275);
  CHECK(dropout_bits(42, 1, 2, 0) == 4090560323u);
  CHECK(dropout_bits(42, 1, 2, 1000) == 136290085u);
}

TEST_CASE("dropout bits are Philox4x32-10 at seed and step and site and element") {
  const std::uint64_t seed = 0x0123456789abcdefull, step = 77;
  for (std::uint64_t element : {0ull, 15ull, 16ull, 63ull, 64ull, 1000003ull, 1ull << 40}) {
    const std::uint64_t block = element / 64 * 16 + element % 16;
    const philox4x32_ctr_t counter = {{std::uint32_t(block), std::uint32_t(block >> 32), std::uint32_t(step), 9}};
    const philox4x32_key_t key = {{0x89abcdefu, 0x01234567u}};
    CHECK(dropout_bits(seed, step, 9, element) == philox4x32(counter, key).v[element / 16 % 4]);
  }
}
