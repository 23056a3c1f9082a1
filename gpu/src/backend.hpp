#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "troupe/gpu/context.hpp"

namespace troupe::gpu::internal {

/// One product for each member, checked by gemm(): C = alpha op(A) op(B) + beta C, row-major, op(A) m x k,
/// op(B) k x n.
struct gemm_call {
  std::int64_t members = 1, m = 0, n = 0, k = 0;
  bool trans_a = false, trans_b = false;
  bool low = false; ///< A and B are bf16, else fp32; C is fp32
  float alpha = 1, beta = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  float* c = nullptr;
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  std::int64_t stride_a = 0, stride_b = 0, stride_c = 0; ///< elements from member to member
};

/// Device memory that one kernel at a time may use.
struct scratch_memory {
  float* data = nullptr;
  std::int64_t floats = 0;
};

/// What differs between CPU and CUDA, and the accounting that does not. Shared by a context and its buffers,
/// so that a buffer may outlive the context. Used on the context's thread, except `release` and the counters.
class backend {
public:
  explicit backend(const slot_options& options);
  virtual ~backend() = default;
  backend(const backend&) = delete;
  backend& operator=(const backend&) = delete;

  /// The calling thread becomes the owner.
  virtual void bind() = 0;
  virtual void* stream() const noexcept { return nullptr; }
  virtual scratch_memory scratch() const noexcept { return {}; }

  virtual void zero(void* dst, std::size_t bytes) = 0;
  virtual void copy(void* dst, const void* src, std::size_t bytes) = 0;
  virtual void upload(void* dst, const void* src, std::size_t bytes) = 0;
  virtual void download(void* dst, const void* src, std::size_t bytes) = 0;
  virtual void synchronize() = 0;
  virtual void gemm(const gemm_call& call) = 0;

  /// Memory within the budget; throws `out_of_memory` with the numbers.
  void* acquire(std::size_t bytes);
  void* acquire_host(std::size_t bytes);
  /// Any thread: counted as free at once; handed back by the owner, at the next `acquire` or `collect`.
  void release(void* data, std::size_t bytes, bool host) noexcept;
  /// Hands back what other threads released.
  void collect() noexcept;
  /// The context is gone: from now on whoever releases also hands back.
  void close() noexcept;

  std::uint64_t used() const noexcept { return used_.load(std::memory_order_relaxed); }
  std::uint64_t peak() const noexcept { return peak_.load(std::memory_order_relaxed); }
  /// "slot 1 (cuda:0, NVIDIA H200)", for error texts.
  const std::string& label() const noexcept { return label_; }

protected:
  /// Null: the device has no room for it.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void free(void* data, std::size_t bytes) noexcept = 0;
  virtual void* allocate_host(std::size_t bytes) = 0;
  virtual void free_host(void* data, std::size_t bytes) noexcept = 0;
  /// Gives memory that is kept for reuse back to the system.
  virtual void trim() noexcept = 0;
  /// For the text of `out_of_memory`; may name what the device has free.
  virtual std::string memory_state() const { return {}; }

  void own() noexcept { owner_.store(std::this_thread::get_id(), std::memory_order_relaxed); }
  std::uint64_t limit() const noexcept { return limit_; } ///< bytes; 0: unknown

private:
  struct released {
    void* data;
    std::size_t bytes;
    bool host;
  };
  void hand_back(const released& x) noexcept;

  std::string label_;
  std::uint64_t budget_, limit_;
  std::atomic<std::uint64_t> used_{0}, peak_{0};
  std::atomic<std::thread::id> owner_;
  std::atomic<bool> pending_{false}; // `released_` holds something
  std::mutex mutex_;                 // guards the two below
  std::vector<released> released_;
  bool closed_ = false;
};

std::shared_ptr<backend> make_cpu_backend(const slot_options& options);
/// Throws `device_error` where there is no such device, or Troupe was built without CUDA.
std::shared_ptr<backend> make_cuda_backend(const slot_options& options);

} // namespace troupe::gpu::internal
