#pragma once

#include <cstdint>

/// The random numbers of kernels, for the host: the same functions, so the same numbers. Each is a function of its
/// arguments alone, so a place in a random sequence is a few integers, and nothing has to be saved but those.
namespace troupe::gpu {

/// Where example i of epoch `epoch` comes from: a bijection of [0, n) for each (seed, epoch), by a Feistel network with
/// cycle walking (Black and Rogaway 2002) keyed by Philox4x32-10. Throws `std::out_of_range` unless i < n.
std::uint64_t permute(std::uint64_t seed, std::uint64_t epoch, std::uint64_t i, std::uint64_t n);

/// The 32 random bits of an element at a dropout site in a step; dropout keeps the element when they are at least
/// rate * 2^32. Elements count row by row. Sites are below 2^16.
std::uint32_t dropout_bits(std::uint64_t seed, std::uint64_t step, std::uint32_t site, std::uint64_t element);

} // namespace troupe::gpu
