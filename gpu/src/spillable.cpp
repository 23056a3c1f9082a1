#include "spillable.hpp"

#include "troupe/gpu/context.hpp"

namespace troupe::gpu::internal {

spill_list::sums spill_list::sum() const noexcept {
  const std::lock_guard lock(mutex_);
  sums out;
  for (const auto* x : all_) {
    out.could_give += x->could_give();
    out.stuck += x->stuck();
    out.floor = std::max(out.floor, x->floor());
  }
  return out;
}

std::uint64_t spill_list::spill(std::uint64_t before, std::string& why) {
  const std::lock_guard lock(mutex_);
  std::vector<spillable*> left = all_;
  while (!left.empty()) {
    const auto first = std::min_element(left.begin(), left.end(),
                                        [](const auto* a, const auto* b) { return a->oldest() < b->oldest(); });
    if ((*first)->oldest() >= before)
      return 0;
    try {
      return (*first)->spill_oldest();
    } catch (const out_of_memory& e) {
      why = e.what();
      left.erase(first);
    }
  }
  return 0;
}

} // namespace troupe::gpu::internal
