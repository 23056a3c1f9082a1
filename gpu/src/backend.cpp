#include "backend.hpp"

#include <new>

namespace troupe::gpu::internal {

namespace {

std::string label_of(const slot_options& o) {
  auto device = o.device.kind == device_kind::cpu
                    ? std::string("cpu")
                    : "cuda:" + std::to_string(o.device.ordinal) + ", " + o.device.name;
  return "slot " + std::to_string(o.index) + " (" + device + ")";
}

std::uint64_t limit_of(const slot_options& o) {
  if (o.memory_budget == 0)
    return o.device.memory_bytes;
  if (o.device.memory_bytes == 0)
    return o.memory_budget;
  return std::min(o.memory_budget, o.device.memory_bytes);
}

} // namespace

backend::backend(const slot_options& options)
    : label_(label_of(options)), budget_(options.memory_budget), limit_(limit_of(options)),
      owner_(std::this_thread::get_id()) {}

void* backend::acquire(std::size_t bytes) {
  if (pending_.load(std::memory_order_acquire))
    collect();
  const auto used = used_.load(std::memory_order_relaxed);
  if (limit_ != 0 && (bytes > limit_ || used > limit_ - bytes)) {
    const bool by_budget = budget_ != 0 && limit_ == budget_;
    throw out_of_memory(label_ + ": " + std::to_string(bytes) + " bytes were requested, " +
                        std::to_string(used) + " of " + std::to_string(limit_) + " bytes of the " +
                        (by_budget ? "slot's memory budget" : "device's memory") +
                        " are in use; place fewer trainers on this slot, make model or batch smaller" +
                        (by_budget ? ", or raise its budget" : ""));
  }
  void* p = allocate(bytes);
  if (p == nullptr) {
    trim();
    p = allocate(bytes);
  }
  if (p == nullptr)
    throw out_of_memory(label_ + ": " + std::to_string(bytes) + " bytes were requested, " +
                        std::to_string(used) + " bytes are in use, " +
                        (budget_ != 0 ? "the slot's memory budget is " + std::to_string(budget_) + " bytes, "
                                      : std::string("the slot has no memory budget, ")) +
                        "but the device has no room" + memory_state() +
                        "; place fewer trainers on this device, or make model or batch smaller");
  const auto now = used_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (now > peak_.load(std::memory_order_relaxed)) // only the owner raises it
    peak_.store(now, std::memory_order_relaxed);
  return p;
}

void* backend::acquire_host(std::size_t bytes) {
  if (pending_.load(std::memory_order_acquire))
    collect();
  void* p = allocate_host(bytes);
  if (p == nullptr)
    throw out_of_memory(label_ + ": " + std::to_string(bytes) +
                        " bytes of host memory were requested, but there is no room");
  return p;
}

void backend::release(void* data, std::size_t bytes, bool host) noexcept {
  if (!host)
    used_.fetch_sub(bytes, std::memory_order_relaxed);
  const released x{data, bytes, host};
  if (owner_.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
    hand_back(x);
    return;
  }
  std::lock_guard lock(mutex_);
  if (!closed_) {
    try {
      released_.push_back(x);
      pending_.store(true, std::memory_order_release);
    } catch (const std::bad_alloc&) {
      // The block stays with the device until the context ends; its bytes are free in the books.
    }
    return;
  }
  hand_back(x);
}

void backend::collect() noexcept {
  if (!pending_.load(std::memory_order_acquire))
    return;
  std::vector<released> xs;
  {
    std::lock_guard lock(mutex_);
    xs.swap(released_);
    pending_.store(false, std::memory_order_relaxed);
  }
  for (const auto& x : xs)
    hand_back(x);
}

void backend::close() noexcept {
  collect();
  std::lock_guard lock(mutex_);
  for (const auto& x : released_)
    hand_back(x);
  released_.clear();
  closed_ = true;
  owner_.store(std::thread::id{}, std::memory_order_relaxed); // every thread now takes the way with the lock
}

void backend::hand_back(const released& x) noexcept {
  if (x.host)
    free_host(x.data, x.bytes);
  else
    free(x.data, x.bytes);
}

} // namespace troupe::gpu::internal
