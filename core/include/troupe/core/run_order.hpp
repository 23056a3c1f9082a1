#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace troupe::core {

/// What is known of a run that waits for its turn on a slot.
struct waiting_run {
  std::int32_t priority = 0;   ///< higher ones go first
  bool before_barrier = false; ///< it ends at a sync point at which others wait for it
  double seconds_left = 0;     ///< its steps left times their measured time; infinite: not measured yet
  std::uint64_t turn = 0;      ///< when it came, or had its last turn: lower ones have waited longer
};

/// Who goes first: the higher priority; then who is awaited at a barrier, the longest first, so that all come
/// to it together and none is left to run alone (the level algorithm: McNaughton 1959, Hu 1961); then who has
/// waited longest. A strict weak order.
bool goes_before(const waiting_run& a, const waiting_run& b) noexcept;

/// Index of the one that goes first. `xs` is not empty.
std::size_t first_of(std::span<const waiting_run> xs) noexcept;

} // namespace troupe::core
