#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace troupe::core {

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11): four 32-bit words
/// that are a function of key and counter alone.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) noexcept;

/// A stream of random numbers named by (seed, purpose, index): two streams with the same name give the same
/// numbers, on every machine. Cheap to make; make one per decision instead of keeping one.
class random_stream {
public:
  random_stream(std::uint64_t seed, std::string_view purpose, std::uint64_t index = 0) noexcept;

  std::uint32_t next_u32() noexcept;
  std::uint64_t next_u64() noexcept;
  double uniform() noexcept;                     ///< in [0, 1)
  double uniform(double lo, double hi) noexcept; ///< in [lo, hi), or lo if they are equal
  std::uint64_t below(std::uint64_t n) noexcept; ///< in [0, n), unbiased; 0 if n is 0
  double normal() noexcept;                      ///< mean 0, deviation 1 (Box-Muller)

private:
  std::array<std::uint32_t, 2> key_;
  std::array<std::uint32_t, 4> counter_;
  std::array<std::uint32_t, 4> block_;
  unsigned used_ = 4;
};

/// A seed for a part of an experiment, from the experiment's seed and the part's name.
std::uint64_t derive_seed(std::uint64_t seed, std::string_view part, std::uint64_t index = 0) noexcept;

} // namespace troupe::core
