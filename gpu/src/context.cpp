#include "troupe/gpu/context.hpp"

#include <algorithm>
#include <limits>

#include "backend.hpp"
#include "kernel_table.hpp"
#include "troupe/core/subnormals.hpp"

namespace troupe::gpu {

void buffer::release() noexcept {
  if (data_ != nullptr)
    owner_->release(data_, size_, kind_);
  data_ = nullptr;
  size_ = 0;
  owner_.reset();
}

marker::marker() noexcept = default;
marker::~marker() = default;
marker::marker(marker&&) noexcept = default;
marker& marker::operator=(marker&& other) noexcept {
  point_ = std::move(other.point_); // before the backend that it belongs to
  owner_ = std::move(other.owner_);
  return *this;
}

captured::captured() noexcept = default;
captured::~captured() = default;
captured::captured(captured&&) noexcept = default;
captured& captured::operator=(captured&& other) noexcept {
  work_ = std::move(other.work_);
  owner_ = std::move(other.owner_);
  return *this;
}

context::context(slot_options options)
    : options_(std::move(options)), owner_(std::make_shared<context_watch::owner>(std::this_thread::get_id())) {
  impl_ = options_.device.kind == device_kind::cpu ? internal::make_cpu_backend(options_)
                                                   : internal::make_cuda_backend(options_);
  core::flush_subnormals();
  impl_->bind();
  kernels_ = &internal::kernels_for(options_.device.kind);
  stream_ = impl_->stream();
}

context::~context() {
  owner_->store(std::thread::id{}, std::memory_order_relaxed);
  impl_->close();
}

void context::bind() {
  core::flush_subnormals();
  impl_->bind();
  owner_->store(std::this_thread::get_id(), std::memory_order_relaxed);
}

void context::check_thread() const {
  if (owner_->load(std::memory_order_relaxed) != std::this_thread::get_id())
    throw std::logic_error(
        impl_->label() +
        ": its context was used from a thread that does not own it; send the work to the slot instead");
}

buffer context::allocate(std::size_t bytes) {
  check_thread();
  if (bytes == 0)
    return {};
  const auto kind = impl_->kind_of_next();
  return {impl_, impl_->acquire(bytes), bytes, kind};
}

buffer context::allocate_host(std::size_t bytes) {
  check_thread();
  if (bytes == 0)
    return {};
  return {impl_, impl_->acquire_host(bytes), bytes, internal::memory_kind::host};
}

void context::zero(void* dst, std::size_t bytes) {
  check_thread();
  if (bytes != 0)
    impl_->zero(dst, bytes);
}

void context::copy(void* dst, const void* src, std::size_t bytes) {
  check_thread();
  if (bytes != 0)
    impl_->copy(dst, src, bytes);
}

bool context::copy_from_slot(void* dst, const buffer& src) {
  check_direct("a copy from a slot");
  if (!src)
    return true;
  if (src.kind_ == internal::memory_kind::host || !impl_->copy_from(*src.owner_, dst, src.data_, src.size_))
    return false;
  auto& t = impl_->traffic();
  t.slot_copies.fetch_add(1, std::memory_order_relaxed);
  t.slot_copied_bytes.fetch_add(src.size_, std::memory_order_relaxed);
  return true;
}

void context::check_direct(const char* what) const {
  check_thread();
  if (impl_->capturing())
    throw std::logic_error(impl_->label() + ": " + what + " cannot be captured: it needs the host");
}

void context::upload(void* dst, const void* host_src, std::size_t bytes) {
  check_direct("a copy from the host");
  if (bytes != 0)
    impl_->upload(dst, host_src, bytes);
}

void context::download(void* host_dst, const void* src, std::size_t bytes) {
  check_direct("a copy to the host");
  if (bytes != 0)
    impl_->download(host_dst, src, bytes);
}

void context::synchronize() {
  check_direct("waiting");
  impl_->collect();
  impl_->synchronize();
}

void context::upload_async(void* dst, const void* pinned, std::size_t bytes) {
  check_direct("a copy from the host");
  if (bytes != 0)
    impl_->upload_async(dst, pinned, bytes);
}

void context::download_async(void* pinned, const void* src, std::size_t bytes) {
  check_direct("a copy to the host");
  if (bytes != 0)
    impl_->download_async(pinned, src, bytes);
}

void context::mark(marker& at, work_queue q) {
  check_direct("a marker");
  if (at.owner_ != impl_) { // of another context, or new
    at.point_.reset();
    at.owner_ = impl_;
  }
  impl_->mark(at.point_, q);
}

void context::wait(const marker& at, work_queue who) {
  check_direct("waiting for a marker");
  if (at.marked())
    impl_->wait(*at.point_, who);
}

void context::wait_on_host(const marker& at) {
  check_direct("waiting for a marker");
  if (at.marked())
    impl_->wait_on_host(*at.point_);
}

bool context::passed(const marker& at) {
  check_thread();
  return !at.marked() || impl_->passed(*at.point_);
}

captured context::capture(const std::function<void()>& work, std::string& why) {
  check_direct("a capture inside another");
  captured out;
  impl_->begin_capture();
  std::string fault;
  const auto give_up = [&](std::string reason) {
    fault = std::move(reason);
    std::string of_the_capture;
    impl_->end_capture(of_the_capture); // throws if the device is lost
  };
  try {
    work();
    out.work_ = impl_->end_capture(fault);
  } catch (const std::exception& e) {
    give_up(e.what());
  } catch (...) {
    give_up("an exception that is not derived from std::exception");
  }
  why = fault;
  if (out.work_ != nullptr) {
    out.owner_ = impl_;
    captures_.fetch_add(1, std::memory_order_relaxed);
    return out;
  }
  std::lock_guard lock(mutex_);
  if (capture_fault_.empty())
    capture_fault_ = why;
  return out;
}

void context::launch(captured& work) {
  check_direct("a launch");
  if (work.work_ == nullptr || work.owner_ != impl_)
    throw std::logic_error(impl_->label() + ": launch: there is no work, or it was captured on another slot");
  impl_->touch();
  impl_->launch(*work.work_);
  launches_.fetch_add(1, std::memory_order_relaxed);
}

bool context::capturing() const noexcept { return impl_->capturing(); }

context::usage context::snapshot() const {
  usage out;
  out.memory_reserved = impl_->reserved();
  out.pinned_used = impl_->host_used();
  out.pinned_held = impl_->host_held();
  out.captures = captures_.load(std::memory_order_relaxed);
  out.launches = launches_.load(std::memory_order_relaxed);
  out.swaps_out = impl_->traffic().swaps_out.load(std::memory_order_relaxed);
  out.swaps_in = impl_->traffic().swaps_in.load(std::memory_order_relaxed);
  out.swapped_bytes = impl_->traffic().swapped_bytes.load(std::memory_order_relaxed);
  out.staged_bytes = impl_->traffic().staged_bytes.load(std::memory_order_relaxed);
  out.slot_copies = impl_->traffic().slot_copies.load(std::memory_order_relaxed);
  out.slot_copied_bytes = impl_->traffic().slot_copied_bytes.load(std::memory_order_relaxed);
  out.calls = impl_->calls();
  out.strays = impl_->strays();
  std::lock_guard lock(mutex_);
  out.capture_fault = capture_fault_;
  return out;
}

std::uint64_t context::memory_free() const noexcept {
  const auto limit = impl_->limit(), used = impl_->used();
  if (limit == 0)
    return std::numeric_limits<std::uint64_t>::max();
  return used < limit ? limit - used : 0;
}

std::uint64_t context::memory_used() const noexcept { return impl_->used(); }
std::uint64_t context::memory_peak() const noexcept { return impl_->peak(); }

bool context::should_yield() const noexcept {
  if (yield_flag_ != nullptr && yield_flag_->load(std::memory_order_relaxed))
    return true;
  return deadline_ != std::chrono::steady_clock::time_point::max() &&
         std::chrono::steady_clock::now() >= deadline();
}

std::chrono::steady_clock::time_point context::deadline() const noexcept {
  if (deadline_ == std::chrono::steady_clock::time_point::max() || impl_->moved() == 0)
    return deadline_;
  return std::max(deadline_, deadline_set_ + internal::computing_per_copy * internal::copy_time(impl_->moved()));
}

void context::set_yield(const std::atomic<bool>* flag,
                        std::chrono::steady_clock::time_point deadline) noexcept {
  yield_flag_ = flag;
  deadline_ = deadline;
  if (deadline != std::chrono::steady_clock::time_point::max())
    deadline_set_ = std::chrono::steady_clock::now();
  impl_->forget_moved();
}

} // namespace troupe::gpu
