#include "backend.hpp"

#include <algorithm>
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
      host_cap_(options.pinned_budget), owner_(std::this_thread::get_id()) {}

void* backend::acquire(std::size_t bytes) {
  if (capturing_)
    throw std::logic_error(label_ + ": work that is captured may not allocate; take its memory before");
  if (pending_.load(std::memory_order_acquire))
    collect();
  make_room(bytes);
  // What is kept for reuse counts for the budget too: other slots and processes rely on it.
  if (limit_ != 0 && reserved() > limit_ - bytes)
    trim();
  void* p = allocate(bytes);
  std::string why;
  do { // the device may have less than the budget says
    if (p == nullptr) {
      trim();
      p = allocate(bytes);
    }
  } while (p == nullptr && spill_one(why));
  if (p == nullptr)
    throw out_of_memory(label_ + ": " + std::to_string(bytes) + " bytes were requested, " +
                        std::to_string(used()) + " bytes are in use, " +
                        (budget_ != 0 ? "the slot's memory budget is " + std::to_string(budget_) + " bytes, "
                                      : std::string("the slot has no memory budget, ")) +
                        "but the device has no room" + memory_state() +
                        "; place fewer trainers on this device, or make model or batch smaller");
  if (lent_)
    lent_used_.fetch_add(bytes, std::memory_order_relaxed);
  const auto now = used_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (now > peak_.load(std::memory_order_relaxed)) // only the owner raises it
    peak_.store(now, std::memory_order_relaxed);
  return p;
}

bool backend::spill_one(std::string& why) {
  const auto bytes = spills_->spill(spill_before_, why);
  moved_ += bytes;
  return bytes > 0;
}

void backend::check_stays(std::size_t bytes) const {
  const auto all = spills_->sum();
  if (leaves_room(bytes, all))
    return;
  const auto stays = kept() + all.stuck;
  refuse(bytes, all.floor == 0 || bytes > limit_ || stays > limit_ - bytes
                    ? std::string{}
                    : ", and of what can give way " + std::to_string(all.floor) + " must stay for the trainers that take turns in it");
}

void backend::make_room(std::size_t bytes) {
  if (limit_ == 0)
    return;
  if (!lent_)
    check_stays(bytes);
  if (fits(bytes))
    return;
  if (spill_before_ == spillable::never) { // nobody goes in vain
    const auto could = spills_->sum().could_give, now = used(); // other threads release
    if (bytes > limit_ || now - std::min(could, now) > limit_ - bytes)
      refuse(bytes, {});
  }
  std::string why;
  while (!fits(bytes)) {
    if (!spill_one(why))
      refuse(bytes, why.empty() ? why : "; nor can states of other trainers go: " + why);
    if (!lent_) // whoever went has pinned memory that others would have needed to go
      check_stays(bytes);
  }
}

std::string backend::memory_in_use() const {
  return label_ + ": " + in_use();
}

std::string backend::in_use() const {
  return std::to_string(used()) + " of " + std::to_string(limit_) + " bytes of the " +
         (by_budget() ? "slot's memory budget" : "device's memory") + " are in use";
}

void backend::refuse(std::size_t bytes, const std::string& why) const {
  const auto stuck = spills_->sum().stuck;
  throw out_of_memory(label_ + ": " + std::to_string(bytes) + " bytes were requested, " + in_use() + why +
                      (stuck == 0 ? ""
                                  : ", " + std::to_string(stuck) + " by states that cannot wait on the host (" +
                                        std::to_string(host_used()) + " of the slot's " + std::to_string(host_cap_) +
                                        " bytes of pinned memory are in use)") +
                      "; place fewer trainers on this slot, make model or batch smaller" +
                      (by_budget() ? ", or raise its budget" : "") + (stuck > 0 && by_budget() ? " or its pinned_bytes" : ""));
}

void backend::check_pinned(std::uint64_t bytes) {
  if (limit_ == 0 || host_cap_ == 0 || !spills_->anyone_waits() || !leaves_room(0, spills_->sum()))
    return;
  host_wanted_ = bytes;
  const auto all = spills_->sum();
  host_wanted_ = 0;
  if (!leaves_room(0, all))
    throw out_of_memory(label_ + ": " + std::to_string(bytes) + " bytes of pinned host memory were requested, " +
                        std::to_string(host_used()) + " of the slot's " + std::to_string(host_cap_) +
                        " bytes are in use, and what is left must stay for " + std::to_string(all.stuck) +
                        " bytes of states that make room for others; place fewer trainers on this slot, or raise its pinned_bytes");
}

void* backend::acquire_host(std::size_t bytes) {
  if (capturing_)
    throw std::logic_error(label_ + ": work that is captured may not allocate; take its memory before");
  if (pending_.load(std::memory_order_acquire))
    collect();
  if (!states_go_)
    check_pinned(bytes);
  if (const auto kept = kept_.find(bytes); kept != kept_.end()) {
    void* p = kept->second;
    synchronize(); // a copy of its last user may be under way
    kept_.erase(kept);
    host_used_.fetch_add(bytes, std::memory_order_relaxed);
    return p;
  }
  const auto has_room = [&] { return host_cap_ == 0 || (bytes <= host_cap_ && host_held() <= host_cap_ - bytes); };
  if (!has_room())
    free_kept();
  if (!has_room())
    throw out_of_memory(label_ + ": " + std::to_string(bytes) + " bytes of pinned host memory were requested, " +
                        std::to_string(host_used()) + " of the slot's " + std::to_string(host_cap_) +
                        " bytes are in use; place fewer trainers on this slot, or raise its pinned_bytes");
  void* p = allocate_host(bytes);
  if (p == nullptr && !kept_.empty()) {
    free_kept();
    p = allocate_host(bytes);
  }
  if (p == nullptr)
    throw out_of_memory(label_ + ": " + std::to_string(bytes) + " bytes of pinned host memory were requested, " +
                        std::to_string(host_used()) + " bytes are in use, but the system has no room");
  host_used_.fetch_add(bytes, std::memory_order_relaxed);
  host_held_.fetch_add(bytes, std::memory_order_relaxed);
  return p;
}

void backend::release(void* data, std::size_t bytes, memory_kind kind) noexcept {
  (kind == memory_kind::host ? host_used_ : used_).fetch_sub(bytes, std::memory_order_relaxed);
  if (kind == memory_kind::lent)
    lent_used_.fetch_sub(bytes, std::memory_order_relaxed);
  const released x{data, bytes, kind};
  if (owner_.load(std::memory_order_relaxed) == std::this_thread::get_id() && !capturing_) {
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
  settle(); // copies to memory that now goes
  collect();
  std::lock_guard lock(mutex_);
  for (const auto& x : released_)
    hand_back(x);
  released_.clear();
  free_kept();
  closed_ = true;
  owner_.store(std::thread::id{}, std::memory_order_relaxed); // every thread now takes the way with the lock
}

void backend::hand_back(const released& x) noexcept {
  if (x.kind != memory_kind::host)
    free(x.data, x.bytes);
  else if (closed_) {
    host_held_.fetch_sub(x.bytes, std::memory_order_relaxed);
    free_host(x.data, x.bytes);
  } else
    keep_host(x);
}

void backend::keep_host(const released& x) noexcept {
  try {
    kept_.emplace(x.bytes, x.data);
  } catch (const std::bad_alloc&) {
    host_held_.fetch_sub(x.bytes, std::memory_order_relaxed);
    free_host(x.data, x.bytes);
  }
  if (host_used() == 0) // the last user has gone; pinned pages are dear to the rest of the machine
    free_kept();
}

void backend::free_kept() noexcept {
  for (const auto& [bytes, data] : kept_) {
    host_held_.fetch_sub(bytes, std::memory_order_relaxed);
    free_host(data, bytes);
  }
  kept_.clear();
}

} // namespace troupe::gpu::internal
