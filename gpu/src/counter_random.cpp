#define TROUPE_KERNELS host
#include "kernels/random.hpp"

#include "troupe/gpu/counter_random.hpp"

#include <stdexcept>
#include <string>

namespace troupe::gpu {

std::uint64_t permute(std::uint64_t seed, std::uint64_t epoch, std::uint64_t i, std::uint64_t n) {
  if (i >= n)
    throw std::out_of_range("permute: there is no element " + std::to_string(i) + " in a range of " +
                            std::to_string(n));
  return internal::host::permutation::make(seed, epoch, n)(i);
}

std::uint32_t dropout_bits(std::uint64_t seed, std::uint64_t step, std::uint32_t site, std::uint64_t element) {
  return internal::host::dropout_bits(seed, step, site, element);
}

} // namespace troupe::gpu
