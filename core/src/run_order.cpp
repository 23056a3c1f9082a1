#include "troupe/core/run_order.hpp"

namespace troupe::core {

bool goes_before(const waiting_run& a, const waiting_run& b) noexcept {
  if (a.priority != b.priority)
    return a.priority > b.priority;
  if (a.before_barrier != b.before_barrier)
    return a.before_barrier;
  if (a.before_barrier && a.seconds_left > b.seconds_left)
    return true;
  if (a.before_barrier && a.seconds_left < b.seconds_left)
    return false;
  return a.turn < b.turn;
}

std::size_t first_of(std::span<const waiting_run> xs) noexcept {
  std::size_t best = 0;
  for (std::size_t i = 1; i < xs.size(); ++i)
    if (goes_before(xs[i], xs[best]))
      best = i;
  return best;
}

} // namespace troupe::core
