#include <algorithm>

#include "troupe/core/experiment.hpp"

namespace troupe::core {

std::string_view to_string(straggler_treatment x) noexcept {
  switch (x) {
  case straggler_treatment::wait: return "wait";
  case straggler_treatment::go_on_without: return "go_on_without";
  case straggler_treatment::stop: return "stop";
  }
  return "unknown";
}

std::optional<std::uint64_t> sync_schedule::next_after(std::uint64_t step, std::uint64_t stop_step) const {
  std::optional<std::uint64_t> next;
  if (every_steps > 0) // no overflow: beyond 2^64 there is no multiple left
    if (auto into = every_steps - step % every_steps; into <= UINT64_MAX - step)
      next = step + into;
  if (auto listed = std::ranges::upper_bound(at_steps, step); listed != at_steps.end())
    next = std::min(next.value_or(*listed), *listed);
  return next && *next < stop_step ? next : std::nullopt;
}

sync_index sync_schedule::index_of(std::uint64_t step) const {
  std::uint64_t so_far = every_steps > 0 ? step / every_steps : 0;
  for (auto listed : at_steps) {
    if (listed > step)
      break;
    so_far += every_steps == 0 || listed % every_steps != 0; // a step that is both is one sync point
  }
  return static_cast<sync_index>(so_far == 0 ? 0 : so_far - 1);
}

} // namespace troupe::core
