#include "troupe/gpu/context.hpp"

#include "backend.hpp"
#include "kernel_table.hpp"

namespace troupe::gpu {

void buffer::release() noexcept {
  if (data_ != nullptr)
    owner_->release(data_, size_, host_);
  data_ = nullptr;
  size_ = 0;
  owner_.reset();
}

context::context(slot_options options)
    : options_(std::move(options)), owner_(std::make_shared<context_watch::owner>(std::this_thread::get_id())) {
  impl_ = options_.device.kind == device_kind::cpu ? internal::make_cpu_backend(options_)
                                                   : internal::make_cuda_backend(options_);
  impl_->bind();
  kernels_ = &internal::kernels_for(options_.device.kind);
  stream_ = impl_->stream();
}

context::~context() {
  owner_->store(std::thread::id{}, std::memory_order_relaxed);
  impl_->close();
}

void context::bind() {
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
  return {impl_, impl_->acquire(bytes), bytes, false};
}

buffer context::allocate_host(std::size_t bytes) {
  check_thread();
  if (bytes == 0)
    return {};
  return {impl_, impl_->acquire_host(bytes), bytes, true};
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

void context::upload(void* dst, const void* host_src, std::size_t bytes) {
  check_thread();
  if (bytes != 0)
    impl_->upload(dst, host_src, bytes);
}

void context::download(void* host_dst, const void* src, std::size_t bytes) {
  check_thread();
  if (bytes != 0)
    impl_->download(host_dst, src, bytes);
}

void context::synchronize() {
  check_thread();
  impl_->collect();
  impl_->synchronize();
}

std::uint64_t context::memory_used() const noexcept { return impl_->used(); }
std::uint64_t context::memory_peak() const noexcept { return impl_->peak(); }

bool context::should_yield() const noexcept {
  if (yield_flag_ != nullptr && yield_flag_->load(std::memory_order_relaxed))
    return true;
  return deadline_ != std::chrono::steady_clock::time_point::max() &&
         std::chrono::steady_clock::now() >= deadline_;
}

void context::set_yield(const std::atomic<bool>* flag,
                        std::chrono::steady_clock::time_point deadline) noexcept {
  yield_flag_ = flag;
  deadline_ = deadline;
}

} // namespace troupe::gpu
