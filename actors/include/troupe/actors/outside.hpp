#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "caf/actor_cast.hpp"
#include "caf/fwd.hpp"

namespace troupe::actors {

namespace internal {

/// Counts what holds an actor outside of its system, and lets the system's end wait for it. Thread-safe.
class outside_count {
public:
  void enter() noexcept { held_.fetch_add(1, std::memory_order_relaxed); }
  void leave() noexcept {
    if (held_.fetch_sub(1, std::memory_order_acq_rel) == 1)
      held_.notify_all();
  }
  void wait_until_none() const noexcept {
    for (auto n = held_.load(std::memory_order_acquire); n != 0; n = held_.load(std::memory_order_acquire))
      held_.wait(n, std::memory_order_acquire);
  }

private:
  std::atomic<std::size_t> held_{0};
};

/// Of the system that the actor belongs to; null if that was not configured by `system_config`, or for no actor.
std::shared_ptr<outside_count> outside_count_of(const caf::strong_actor_ptr& x);

/// One entry in a count.
class outside_token {
public:
  outside_token() = default;
  explicit outside_token(std::shared_ptr<outside_count> x) noexcept : count_(std::move(x)) {
    if (count_)
      count_->enter();
  }
  outside_token(const outside_token& x) noexcept : outside_token(x.count_) {}
  outside_token(outside_token&& x) noexcept : count_(std::move(x.count_)) {}
  outside_token& operator=(outside_token x) noexcept {
    std::swap(count_, x.count_);
    return *this;
  }
  ~outside_token() {
    if (count_)
      count_->leave();
  }

private:
  std::shared_ptr<outside_count> count_;
};

} // namespace internal

/// A handle for threads that are none of the actor system's: a slot's, a transport's, a program's own. Why: CAF takes an actor off
/// the books before it is done with the system (its clock, its registry, its scheduler), which is safe on the system's own threads
/// alone, since these are joined. A foreign thread that sends to an actor, or lets go of it last, could still be at that while
/// another destroys the system. A system configured by `system_config` ends only when no `outside` of its actors is left.
///
/// Make it while the actor's system lives, in a turn of an actor, say, and capture it where the plain handle would be. Copies
/// may be used and dropped on any thread.
template <class Handle>
class outside {
public:
  outside() = default;
  explicit outside(Handle x)
      : token_(internal::outside_count_of(caf::actor_cast<caf::strong_actor_ptr>(x))), hdl_(std::move(x)) {}
  outside(const outside&) = default;
  outside(outside&&) noexcept = default;
  outside& operator=(outside x) noexcept {
    std::swap(hdl_, x.hdl_);
    std::swap(token_, x.token_); // goes with what it stands for
    return *this;
  }
  ~outside() = default; // the handle goes first

  const Handle& get() const noexcept { return hdl_; }
  explicit operator bool() const noexcept { return static_cast<bool>(hdl_); }

private:
  internal::outside_token token_;
  Handle hdl_;
};

} // namespace troupe::actors
