#pragma once

#include <cstddef>
#include <functional>
#include <set>

namespace troupe::gpu::internal {

/// Where in device memory asynchronous copies read or wrote, so that only whoever frees such memory waits for copies. One who is
/// brought in ahead does not hold up the computation when others leave.
class copied_memory {
public:
  void note(const void* at) { at_.insert(at); }
  /// Whether any of these bytes was; forgets it.
  bool forget(const void* data, std::size_t bytes) noexcept {
    const auto first = at_.lower_bound(data), last = at_.lower_bound(static_cast<const char*>(data) + bytes);
    const bool any = first != last;
    at_.erase(first, last);
    return any;
  }

private:
  std::set<const void*, std::less<>> at_;
};

} // namespace troupe::gpu::internal
