#include "training_group_impl.hpp"

#include <algorithm>

#include "backend.hpp"

namespace troupe::gpu {

training_group::impl::work_scope::work_scope(impl& m, needs what) : m_(m) {
  ++m.at_work;
  m.worked = m.others->tick(); // before any page is: the workspace goes after all pages but those used last
  if (what == needs::workspace && m.net == nullptr)
    try {
      m.need_workspace();
    } catch (...) {
      --m.at_work;
      throw;
    }
}

std::uint64_t training_group::impl::workspace_bytes() const noexcept {
  if (net == nullptr)
    return 0;
  auto sum = net->memory_bytes() + feed.memory_bytes();
  for (const auto* b : {&lane.gradient, &lane.scratch, &lane.plain_params, &lane.probe})
    sum += b->size();
  return sum;
}

/// Others gave way to this group before, or it to them, so there is room; at worst its own states go.
void training_group::impl::need_workspace() {
  const auto n = at_once && records->divided() ? std::min(lanes, records->rows_per_page()) : lanes;
  for (;;)
    try {
      make_workspace(n);
      break;
    } catch (const out_of_memory&) {
      if (records->spill_oldest() == 0)
        throw;
    }
  ctx.impl().add_moved(workspace_bytes());
}

std::uint64_t training_group::impl::oldest() const noexcept {
  if (at_work > 0)
    return never;
  return std::min(records->oldest(), net != nullptr ? worked : never);
}

std::uint64_t training_group::impl::spill_oldest() {
  if (net == nullptr || records->oldest() < worked)
    return records->spill_oldest();
  workspace_floor = workspace_bytes();
  captured_steps.clear(); // they work in what goes
  net.reset();
  lane = {};
  feed.give_up_room();
  return workspace_floor;
}

std::uint64_t training_group::impl::could_give() const noexcept {
  return at_work > 0 ? 0 : workspace_bytes() + (records->can_spill() ? records->device_bytes() : 0);
}

std::uint64_t training_group::impl::stuck() const noexcept { return records->can_spill() ? 0 : records->device_bytes(); }

std::uint64_t training_group::impl::floor() const noexcept {
  return (net != nullptr ? workspace_bytes() : workspace_floor) +
         (records->pages() > 0 && records->can_spill() ? records->page_bytes() : 0);
}

bool training_group::impl::waits() const noexcept { return net == nullptr || !records->all_here(); }

} // namespace troupe::gpu
