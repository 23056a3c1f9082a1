#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "spillable.hpp"
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

class call_recorder;

/// What moved between device and host beside ordinary copies; added to by the owner.
struct traffic_counters {
  std::atomic<std::uint64_t> swaps_out{0}, swaps_in{0}, swapped_bytes{0}, staged_bytes{0};
  std::atomic<std::uint64_t> slot_copies{0}, slot_copied_bytes{0};
};

/// A point in one queue's order, marked again and again.
class point {
public:
  virtual ~point() = default;
};

/// Work that was enqueued once, to be enqueued again. May be destroyed on any thread.
class captured_work {
public:
  virtual ~captured_work() = default;
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
  /// From memory of another slot's, or of this one's own; done when it returns. False where `from` is of another kind.
  virtual bool copy_from(backend& from, void* dst, const void* src, std::size_t bytes) = 0;
  virtual void upload(void* dst, const void* src, std::size_t bytes) = 0;
  virtual void download(void* dst, const void* src, std::size_t bytes) = 0;
  virtual void synchronize() = 0;
  virtual void gemm(const gemm_call& call) = 0;

  // -- the queues of copies, see context ---------------------------------------------------------------------------------

  virtual void upload_async(void* dst, const void* pinned, std::size_t bytes) = 0;
  virtual void download_async(void* pinned, const void* src, std::size_t bytes) = 0;
  /// Marks the end of what is enqueued on `q`; null: makes the point first.
  virtual void mark(std::unique_ptr<point>& at, work_queue q) = 0;
  virtual void wait(const point& at, work_queue who) = 0;
  virtual void wait_on_host(const point& at) = 0;
  virtual bool passed(const point& at) = 0;
  /// For tests of the order of copies: from now on asynchronous ones are done as late as their marks allow.
  virtual void delay_copies() {}
  /// For tests of a GPU's kernels on the CPU: from now on products keep subnormal numbers, as cuBLAS's do.
  virtual void keep_subnormals_in_products() {}

  // -- capture -------------------------------------------------------------------------------------------------------

  /// From now on calls are kept instead of made. Throws `device_error`.
  virtual void begin_capture() = 0;
  /// Null where the device could not keep them; `why` then says so.
  virtual std::unique_ptr<captured_work> end_capture(std::string& why) = 0;
  virtual void launch(captured_work& work) = 0;
  virtual call_recorder* recorder() noexcept { return nullptr; } ///< for kernels, while the CPU captures
  bool capturing() const noexcept { return capturing_; }

  /// Counts a call that goes to the device, and one that would have gone to another slot's: a workload has then called
  /// cudaSetDevice.
  void touch() noexcept {
    add_one(calls_);
    if (!on_own_device())
      add_one(strays_);
  }
  traffic_counters& traffic() noexcept { return traffic_; }
  std::uint64_t calls() const noexcept { return calls_.load(std::memory_order_relaxed); }
  std::uint64_t strays() const noexcept { return strays_.load(std::memory_order_relaxed); }

  /// Memory within the budget, of `kind_of_next`. Holders of `spills` make room for it. What is kept leaves room for each of
  /// them to work. Throws `out_of_memory` with the numbers, `std::logic_error` while capturing.
  void* acquire(std::size_t bytes);
  /// Pinned memory within its cap, from blocks kept for reuse where one fits. Checked by `check_pinned`, but for states that go.
  void* acquire_host(std::size_t bytes);
  /// Throws `out_of_memory` if states could go no longer once so much more is pinned, and those who wait would then have no room to
  /// come back.
  void check_pinned(std::uint64_t bytes);
  /// Any thread: counted as free at once; handed back by the owner, at the next `acquire` or `collect`.
  void release(void* data, std::size_t bytes, memory_kind kind) noexcept;
  /// Hands back what other threads released.
  void collect() noexcept;
  /// The context is gone: from now on whoever releases also hands back.
  void close() noexcept;

  // -- what gives way, the owner's but for the list's end -------------------------------------------------------------

  const std::shared_ptr<spill_list>& spills() const noexcept { return spills_; }
  memory_kind kind_of_next() const noexcept { return lent_ ? memory_kind::lent : memory_kind::kept; }
  /// Whether so much pinned memory is within its cap.
  bool has_host_room(std::uint64_t bytes) const noexcept {
    const auto used = host_used() + host_wanted_;
    return host_cap_ == 0 || (bytes <= host_cap_ && used <= host_cap_ - bytes);
  }
  /// Bytes moved because holders of `spills` need each other's room. Counted by those who move them.
  std::uint64_t moved() const noexcept { return moved_; }
  void add_moved(std::uint64_t bytes) noexcept { moved_ += bytes; }
  void forget_moved() noexcept { moved_ = 0; }

  std::uint64_t used() const noexcept { return used_.load(std::memory_order_relaxed); }
  std::uint64_t peak() const noexcept { return peak_.load(std::memory_order_relaxed); }
  std::uint64_t limit() const noexcept { return limit_; } ///< bytes; 0: unknown
  /// Taken from the system, those kept for reuse too.
  virtual std::uint64_t reserved() const noexcept { return used(); }
  std::uint64_t host_used() const noexcept { return host_used_.load(std::memory_order_relaxed); }
  std::uint64_t host_held() const noexcept { return host_held_.load(std::memory_order_relaxed); }
  std::uint64_t host_cap() const noexcept { return host_cap_; }
  std::string memory_in_use() const; ///< "slot 1 (cpu): 512 of 1024 bytes of the slot's memory budget are in use"
  /// "slot 1 (cuda:0, NVIDIA H200)", for error texts.
  const std::string& label() const noexcept { return label_; }

protected:
  /// Waits for what is enqueued, whatever became of it.
  virtual void settle() noexcept {}
  /// True on the thread whose current device is this one's. Corrects it.
  virtual bool on_own_device() noexcept { return true; }

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
  void set_capturing(bool x) noexcept { capturing_ = x; }

private:
  friend class lent_scope;
  friend class states_go;
  struct released {
    void* data;
    std::size_t bytes;
    memory_kind kind;
  };
  bool fits(std::size_t bytes) const noexcept { return limit_ == 0 || (bytes <= limit_ && used() <= limit_ - bytes); }
  std::uint64_t kept() const noexcept {
    const auto lent = lent_used_.load(std::memory_order_relaxed), all = used();
    return all > lent ? all - lent : 0; // other threads release
  }
  bool by_budget() const noexcept { return budget_ != 0 && limit_ == budget_; } ///< where `limit_` comes from
  std::string in_use() const;
  /// What stays on the device, and so much more, leaves room for whoever waits.
  bool leaves_room(std::size_t bytes, const spill_list::sums& all) const noexcept {
    return bytes <= limit_ && kept() + all.stuck + all.floor <= limit_ - bytes;
  }
  void check_stays(std::size_t bytes) const;
  void make_room(std::size_t bytes);
  bool spill_one(std::string& why);
  [[noreturn]] void refuse(std::size_t bytes, const std::string& why) const;
  void hand_back(const released& x) noexcept;
  void keep_host(const released& x) noexcept;
  void free_kept() noexcept;
  static void add_one(std::atomic<std::uint64_t>& x) noexcept { // by the owner alone
    x.store(x.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  std::string label_;
  std::uint64_t budget_, limit_, host_cap_;
  std::atomic<std::uint64_t> used_{0}, peak_{0};
  std::atomic<std::uint64_t> lent_used_{0}; // of those used
  std::shared_ptr<spill_list> spills_ = std::make_shared<spill_list>();
  bool lent_ = false; // what is acquired next
  std::uint64_t spill_before_ = spillable::never;
  std::uint64_t moved_ = 0;
  std::uint64_t host_wanted_ = 0; // counts as used, for a moment
  bool states_go_ = false;
  std::atomic<std::uint64_t> host_used_{0}; // in living buffers
  std::atomic<std::uint64_t> host_held_{0}; // taken from the system
  std::multimap<std::size_t, void*> kept_;  // pinned blocks for reuse, by size; the owner's
  std::atomic<std::uint64_t> calls_{0}, strays_{0};
  traffic_counters traffic_;
  bool capturing_ = false;
  std::atomic<std::thread::id> owner_;
  std::atomic<bool> pending_{false}; // `released_` holds something
  std::mutex mutex_;                 // guards the two below
  std::vector<released> released_;
  bool closed_ = false;
};

/// For its life, memory that the thread allocates is one that the holder gives back when others need it. Others give way to it
/// that were used before `before`; 0: nobody.
class lent_scope {
public:
  explicit lent_scope(backend& b, std::uint64_t before = spillable::never) noexcept
      : backend_(b), lent_(std::exchange(b.lent_, true)), before_(std::exchange(b.spill_before_, before)) {}
  ~lent_scope() {
    backend_.lent_ = lent_;
    backend_.spill_before_ = before_;
  }
  lent_scope(const lent_scope&) = delete;
  lent_scope& operator=(const lent_scope&) = delete;

private:
  backend& backend_;
  bool lent_;
  std::uint64_t before_;
};

/// For its life, pinned memory is taken for states and was checked before, or they must go.
class states_go {
public:
  explicit states_go(backend& b) noexcept : backend_(b), before_(std::exchange(b.states_go_, true)) {}
  ~states_go() { backend_.states_go_ = before_; }
  states_go(const states_go&) = delete;
  states_go& operator=(const states_go&) = delete;

private:
  backend& backend_;
  bool before_;
};

std::shared_ptr<backend> make_cpu_backend(const slot_options& options);
/// Throws `device_error` where there is no such device, or Troupe was built without CUDA.
std::shared_ptr<backend> make_cuda_backend(const slot_options& options);

} // namespace troupe::gpu::internal
