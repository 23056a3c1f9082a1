#include "troupe/core/rebalance.hpp"

#include <algorithm>

namespace troupe::core {

namespace {

std::optional<std::size_t> idle_slot_for(std::span<const slot_load> slots, std::size_t from, const run_load& r) {
  for (std::size_t i = 0; i < slots.size(); ++i)
    if (i != from && slots[i].idle && slots[i].runs.empty() && slots[i].kind == slots[from].kind &&
        std::find(r.not_to.begin(), r.not_to.end(), i) == r.not_to.end())
      return i;
  return std::nullopt;
}

} // namespace

std::optional<slot_move> choose_move(std::span<const slot_load> slots, const rebalance_options& o) {
  std::optional<slot_move> best;
  for (std::size_t from = 0; from < slots.size(); ++from) {
    const auto& runs = slots[from].runs;
    if (runs.size() < 2)
      continue;
    double sum = 0;
    for (const auto& r : runs)
      sum += r.left_seconds;
    for (const auto& r : runs) {
      if (!r.movable || !(r.left_seconds > 0))
        continue;
      const auto cost = std::max(r.move_seconds, 0.0);
      const auto gain = sum - std::max(sum - r.left_seconds, cost + r.left_seconds);
      if (!(gain > 0) || gain < o.worth * cost || r.settled_seconds < o.worth * cost)
        continue;
      if (best && gain < best->gain_seconds)
        continue;
      if (best && gain == best->gain_seconds && best->from != from)
        continue;
      if (const auto to = idle_slot_for(slots, from, r))
        best = slot_move{from, *to, r.id, gain};
    }
  }
  return best;
}

} // namespace troupe::core
