#include "troupe/core/random.hpp"

#include <cmath>
#include <numbers>

#include <Random123/philox.h>
#undef philox4x32 // a macro of Random123's C interface

#include "fnv1a.hpp"

namespace troupe::core {

namespace {

constexpr std::uint32_t low_word(std::uint64_t x) noexcept { return static_cast<std::uint32_t>(x); }
constexpr std::uint32_t high_word(std::uint64_t x) noexcept { return static_cast<std::uint32_t>(x >> 32); }
constexpr std::uint64_t joined(std::uint32_t low, std::uint32_t high) noexcept {
  return std::uint64_t{high} << 32 | low;
}

} // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) noexcept {
  const r123::Philox4x32::ctr_type c{{counter[0], counter[1], counter[2], counter[3]}};
  const r123::Philox4x32::key_type k{{key[0], key[1]}};
  const auto out = r123::Philox4x32{}(c, k);
  return {out[0], out[1], out[2], out[3]};
}

std::uint64_t derive_seed(std::uint64_t seed, std::string_view part, std::uint64_t index) noexcept {
  const auto h = internal::fnv1a(part);
  const auto block = philox4x32({low_word(h), high_word(h), low_word(index), high_word(index)},
                                {low_word(seed), high_word(seed)});
  return joined(block[0], block[1]);
}

random_stream::random_stream(std::uint64_t seed, std::string_view purpose, std::uint64_t index) noexcept
    : counter_{0, 0, low_word(index), high_word(index)}, block_{} {
  const auto key = derive_seed(seed, purpose);
  key_ = {low_word(key), high_word(key)};
}

std::uint32_t random_stream::next_u32() noexcept {
  if (used_ == block_.size()) {
    block_ = philox4x32(counter_, key_);
    if (++counter_[0] == 0)
      ++counter_[1];
    used_ = 0;
  }
  return block_[used_++];
}

std::uint64_t random_stream::next_u64() noexcept {
  const auto low = next_u32();
  return joined(low, next_u32());
}

double random_stream::uniform() noexcept { return static_cast<double>(next_u64() >> 11) * 0x1p-53; }

double random_stream::uniform(double lo, double hi) noexcept {
  const double u = uniform();
  if (!(lo < hi))
    return lo;
  // The difference of two finite numbers may overflow; the weighted sum does not. Either may round up to
  // `hi`.
  const double width = hi - lo;
  const double x = std::isfinite(width) ? lo + width * u : lo * (1 - u) + hi * u;
  if (x >= hi)
    return std::nextafter(hi, lo);
  return x < lo ? lo : x;
}

std::uint64_t random_stream::below(std::uint64_t n) noexcept {
  if (n == 0)
    return 0;
  // 2^64 mod n numbers at the bottom are drawn again, so that what is left is a whole multiple of n.
  const std::uint64_t rejected = (std::uint64_t{0} - n) % n;
  auto x = next_u64();
  while (x < rejected)
    x = next_u64();
  return x % n;
}

double random_stream::normal() noexcept {
  const double u = 1.0 - uniform(); // in (0, 1], so that the logarithm is finite
  const double v = uniform();
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

} // namespace troupe::core
