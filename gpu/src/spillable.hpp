#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

namespace troupe::gpu::internal {

/// About how long so many bytes take between device and host.
constexpr std::chrono::nanoseconds copy_time(std::uint64_t bytes) noexcept {
  constexpr std::uint64_t bytes_a_nanosecond = 10; // PCIe 3.0 x16 or one core's copy; newer ones are faster
  return std::chrono::nanoseconds(bytes / bytes_a_nanosecond);
}

/// What computes with copied memory should last so many times as long as its copies.
inline constexpr int computing_per_copy = 50;

/// Someone who holds device memory that can be done without for a while, piece by piece: states, which go to pinned memory, and
/// workspaces, which are made anew. Asked on the context's thread only, and never for what it uses just then.
class spillable {
public:
  static constexpr auto never = std::numeric_limits<std::uint64_t>::max();

  virtual ~spillable() = default;
  /// When the piece that was used longest ago was used, by `spill_list::tick`; `never`: none can go now.
  virtual std::uint64_t oldest() const noexcept = 0;
  /// Gives that piece back, behind whatever uses it; returns its bytes. Takes no device memory. Throws `out_of_memory` where
  /// the system refuses the pinned memory for it; nothing has changed then.
  virtual std::uint64_t spill_oldest() = 0;
  virtual std::uint64_t could_give() const noexcept = 0; ///< bytes, of all pieces that can go now
  /// States on the device that can't go, because the pinned memory's cap has no room for them. Bytes.
  virtual std::uint64_t stuck() const noexcept = 0;
  virtual std::uint64_t floor() const noexcept = 0; ///< bytes that it needs at once to work, beside what is stuck
  virtual bool waits() const noexcept = 0;          ///< some piece is not on the device
};

/// All of a context. Outlives it, as buffers do: a holder may be dropped on another thread or after the context, and waits then
/// until nobody asks it.
class spill_list {
public:
  void add(spillable& x) {
    const std::lock_guard lock(mutex_);
    all_.push_back(&x);
  }
  void remove(spillable& x) noexcept {
    const std::lock_guard lock(mutex_);
    std::erase(all_, &x);
  }
  std::uint64_t tick() noexcept { return ++clock_; } ///< the context's thread

  bool anyone_waits() const noexcept {
    const std::lock_guard lock(mutex_);
    return std::any_of(all_.begin(), all_.end(), [](const spillable* x) { return x->waits(); });
  }
  std::uint64_t oldest() const noexcept {
    const std::lock_guard lock(mutex_);
    auto out = spillable::never;
    for (const auto* x : all_)
      out = std::min(out, x->oldest());
    return out;
  }
  struct sums {
    std::uint64_t could_give = 0, stuck = 0;
    std::uint64_t floor = 0; ///< the largest
  };
  sums sum() const noexcept;
  /// One piece, of those used before `before` the one used longest ago: its bytes; 0 if there is none. Where the system
  /// refuses pinned memory the next one goes, and `why` has the reason.
  std::uint64_t spill(std::uint64_t before, std::string& why);

private:
  mutable std::mutex mutex_; // guards the next one; held while someone is asked
  std::vector<spillable*> all_;
  std::uint64_t clock_ = 0;
};

} // namespace troupe::gpu::internal
