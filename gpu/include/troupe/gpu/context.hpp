#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <typeindex>
#include <utility>
#include <vector>

#include "troupe/gpu/device.hpp"
#include "troupe/gpu/fwd.hpp"

namespace troupe::gpu {

/// A CUDA or cuBLAS call failed. `what()` names call, device, code and the driver's text. After `sticky()`
/// errors (illegal address, launch failure) every CUDA context of the process is lost.
class device_error : public std::runtime_error {
public:
  device_error(const std::string& text, bool sticky) : std::runtime_error(text), sticky_(sticky) {}
  bool sticky() const noexcept { return sticky_; }

private:
  bool sticky_;
};

/// An allocation would exceed the slot's budget or the device's memory; the text has the numbers. The context
/// stays usable and other trainers are not affected.
class out_of_memory : public std::runtime_error {
public:
  using std::runtime_error::runtime_error;
};

/// How matrix products of fp32 data are computed.
enum class math_mode : std::uint8_t {
  fp32,
  tf32 /**< GPU tensor cores, 10-bit mantissa; the CPU ignores it */
};

/// Whether steps are captured once and then launched whole (`context::capture`).
enum class capture_mode : std::uint8_t {
  automatic, ///< on a GPU, where a launch of its own for every kernel costs more than the kernels
  never,
  always ///< on the CPU too, where it gains nothing: for tests
};

/// What a slot gets of its device.
struct slot_options {
  device_info device;
  unsigned index = 0;              ///< the slot's number in this process
  std::vector<int> cores;          ///< CPU: pin the worker thread to these; empty: not pinned
  std::uint64_t memory_budget = 0; ///< bytes; 0: no limit but the device's
  std::uint64_t pinned_budget = 0; ///< bytes of host memory that the device copies from; 0: no limit
  math_mode math = math_mode::fp32;
  capture_mode capture = capture_mode::automatic;
  /// CPU: which matrix library computes which product. Null: the same default everywhere. Slots and processes
  /// whose results must agree bit for bit share one plan.
  std::shared_ptr<gemm_plan> plan;
};

namespace internal {
class backend;          // what differs between CPU and CUDA; private to gpu
class captured_work;
class point;
struct kernel_table;    // one function per elementwise operation
struct kernel_override; // lets tests run another table
enum class memory_kind : std::uint8_t { kept, lent, host }; // on the device for good, or until others need it; pinned
} // namespace internal

/// Owns a piece of a context's memory: 64-byte aligned, freed in stream order. Move-only. `data()` is used on
/// the context's thread; the buffer itself may be destroyed on any thread and even after its context: the
/// memory counts as free at once and is handed back by the context's thread.
class buffer {
public:
  buffer() noexcept = default;
  buffer(buffer&& other) noexcept
      : owner_(std::move(other.owner_)), data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)), kind_(other.kind_) {}
  buffer& operator=(buffer&& other) noexcept {
    if (this != &other) {
      release();
      owner_ = std::move(other.owner_);
      data_ = std::exchange(other.data_, nullptr);
      size_ = std::exchange(other.size_, 0);
      kind_ = other.kind_;
    }
    return *this;
  }
  ~buffer() { release(); }

  void* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; } ///< bytes
  explicit operator bool() const noexcept { return data_ != nullptr; }
  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }

private:
  friend class context;
  buffer(std::shared_ptr<internal::backend> owner, void* data, std::size_t size, internal::memory_kind kind) noexcept
      : owner_(std::move(owner)), data_(data), size_(size), kind_(kind) {}
  void release() noexcept;

  std::shared_ptr<internal::backend> owner_;
  void* data_ = nullptr;
  std::size_t size_ = 0;
  internal::memory_kind kind_ = internal::memory_kind::kept;
};

/// Says whether a context may be used here and now; may outlive it. For destructors of what lives on a context but may be
/// dropped elsewhere or later.
class context_watch {
public:
  /// True on the thread that owns the context, as long as it lives.
  bool here() const noexcept { return owner_->load(std::memory_order_relaxed) == std::this_thread::get_id(); }

private:
  friend class context;
  using owner = std::atomic<std::thread::id>;
  explicit context_watch(std::shared_ptr<const owner> o) noexcept : owner_(std::move(o)) {}
  std::shared_ptr<const owner> owner_;
};

/// A context has three queues. Operations and ordinary copies are done in order on the first; asynchronous copies to the device in
/// order on the second, and from it on the third, beside the first and each other. Markers order one to the other.
enum class work_queue : std::uint8_t { compute, uploads, downloads };

/// A point in the order of one of a context's queues. Marked again as often as wanted: it then stands for the newest point.
/// May be destroyed on any thread, even after its context.
class marker {
public:
  marker() noexcept;
  ~marker();
  marker(marker&&) noexcept;
  marker& operator=(marker&&) noexcept;
  bool marked() const noexcept { return point_ != nullptr; }

private:
  friend class context;
  std::shared_ptr<internal::backend> owner_;
  std::unique_ptr<internal::point> point_;
};

/// Work recorded by `context::capture`. Move-only; belongs to its context's thread, but may be destroyed on any and after
/// its context. Whoever owns it keeps the memory alive that the work uses.
class captured {
public:
  captured() noexcept;
  ~captured();
  captured(captured&&) noexcept;
  captured& operator=(captured&&) noexcept;
  explicit operator bool() const noexcept { return work_ != nullptr; }

private:
  friend class context;
  std::shared_ptr<internal::backend> owner_;
  std::unique_ptr<internal::captured_work> work_;
};

/// A slot's place to compute: device, stream, matrix library, memory pool and budget. Bound to the thread
/// that made it, or that called `bind()` last; any use from another thread throws `std::logic_error`. Every
/// operation is enqueued on the context's one stream (on the CPU: done at once). Its thread flushes subnormal numbers from then on
/// (`core::flush_subnormals`), as all threads that compute for slots do, so that bits do not depend on where something is computed.
class context {
public:
  /// Throws `device_error` if the device cannot be opened.
  explicit context(slot_options options);
  ~context();
  context(const context&) = delete;
  context& operator=(const context&) = delete;

  const slot_options& options() const noexcept { return options_; }
  device_kind kind() const noexcept { return options_.device.kind; }

  /// Makes the calling thread the owner; sets the device and one BLAS thread for it, and has it flush subnormal numbers.
  void bind();
  /// Throws `std::logic_error` on any thread but the owner.
  void check_thread() const;

  /// `bytes` of uninitialised memory; an empty buffer for 0. Where the budget has no room, training groups that don't compute just
  /// then give back what they used longest ago: states go to pinned memory, workspaces are made anew when needed. Throws
  /// `out_of_memory` where that is not enough, or one of them could not go on beside it.
  buffer allocate(std::size_t bytes);
  template <class T>
  buffer allocate_of(std::size_t count) {
    return allocate(count * sizeof(T));
  }
  /// Host memory that the device copies from and to at full speed (pinned under CUDA), not counted in the budget but under
  /// a cap of its own. Freed blocks are kept for reuse until the last buffer of this kind has gone. Throws `out_of_memory`.
  buffer allocate_host(std::size_t bytes);

  void zero(void* dst, std::size_t bytes);
  void copy(void* dst, const void* src, std::size_t bytes);        ///< device to device
  /// All of a buffer of any slot of this process, from its device to this one's without the host where the two can; returns when
  /// it is there. Whoever filled `src` has waited for that. False, and nothing done, between a CPU and a GPU.
  bool copy_from_slot(void* dst, const buffer& src);
  void upload(void* dst, const void* host_src, std::size_t bytes); ///< returns when `host_src` may be reused
  void download(void* host_dst, const void* src, std::size_t bytes); ///< returns when the bytes are there
  template <class T>
  void upload(void* dst, std::span<const T> src) {
    upload(dst, src.data(), src.size_bytes());
  }
  /// Waits for everything enqueued on all queues. Throws `device_error` if any of it failed.
  void synchronize();

  // -- copies beside the computation -----------------------------------------------------------------------------------

  /// Enqueued on the queue of that direction. `pinned` lies in an `allocate_host` buffer and stays untouched until a marker set
  /// afterwards has passed. They come after allocations, but wait for no operations: mark them and let the copies wait.
  void upload_async(void* dst, const void* pinned, std::size_t bytes);
  void download_async(void* pinned, const void* src, std::size_t bytes);
  /// `at` now stands for the end of what is enqueued on `q`.
  void mark(marker& at, work_queue q);
  /// What is enqueued on `who` from now on begins after `at`; the host does not wait. Nothing where `at` was never marked.
  void wait(const marker& at, work_queue who);
  void wait_on_host(const marker& at); ///< until `at` has passed; at once where it was never marked
  bool passed(const marker& at);       ///< does not wait; true where it was never marked

  // -- capture ---------------------------------------------------------------------------------------------------------

  /// Records the operations and copies on the device that `work` enqueues, with their arguments as they are now, instead of
  /// doing them; a GPU then launches all of them at the price of one. An empty result where that cannot be: `work` allocates, waits,
  /// copies from or to the host, or throws, or the device refuses. `why` then has the reason, and calling `work` does instead.
  captured capture(const std::function<void()>& work, std::string& why);
  /// Enqueues it once more.
  void launch(captured& work);
  bool capturing() const noexcept;
  /// Whether whoever repeats a sequence of operations should capture it here.
  bool wants_capture() const noexcept {
    return options_.capture == capture_mode::always ||
           (options_.capture == capture_mode::automatic && kind() == device_kind::cuda);
  }

  /// What the context did and holds. Any thread.
  struct usage {
    std::uint64_t memory_reserved = 0; ///< of the device: in living buffers and kept for reuse
    std::uint64_t pinned_used = 0;     ///< pinned host memory in living buffers
    std::uint64_t pinned_held = 0;     ///< … and kept for reuse
    std::uint64_t captures = 0;        ///< sequences recorded
    std::uint64_t launches = 0;        ///< of recorded sequences
    std::string capture_fault;         ///< why a sequence could not be recorded, of the first that could not
    std::uint64_t swaps_out = 0, swaps_in = 0; ///< of trainers' states to pinned memory and back
    std::uint64_t swapped_bytes = 0;   ///< by them, both ways
    std::uint64_t staged_bytes = 0;    ///< of examples sent to the device batch by batch
    std::uint64_t slot_copies = 0, slot_copied_bytes = 0; ///< of states from device memory, of this or another slot
    std::uint64_t calls = 0;           ///< operations, copies and launches of recorded sequences
    std::uint64_t strays = 0;          ///< calls made while another device was current; put right before they went out
  };
  usage snapshot() const;

  std::uint64_t memory_used() const noexcept; ///< bytes in living buffers, host memory apart; any thread
  std::uint64_t memory_peak() const noexcept; ///< the most that `memory_used` was; any thread
  /// What may still be allocated: of the budget, or of the device's memory where there is no budget. Any thread.
  std::uint64_t memory_free() const noexcept;
  std::uint64_t memory_budget() const noexcept { return options_.memory_budget; }

  /// What users of this context share by type and key, made by the first of them and kept as long as someone holds it.
  /// `make()` returns a std::shared_ptr<T>.
  template <class T, class Make>
  std::shared_ptr<T> share(const std::string& key, Make make) {
    check_thread();
    std::erase_if(shared_, [](const auto& x) { return x.second.expired(); });
    if (const auto at = shared_.find({typeid(T), key}); at != shared_.end())
      return std::static_pointer_cast<T>(at->second.lock());
    std::shared_ptr<T> made = make();
    shared_.insert_or_assign({typeid(T), key}, made);
    return made;
  }

  context_watch watch() const noexcept { return context_watch(owner_); }

  // -- giving way: a long-running step loop asks this between two steps --------------------------------------

  /// True when the work at hand should end after the current step: its time slice is over or someone asked
  /// for it.
  bool should_yield() const noexcept;
  /// Used by the slot: `flag` may be set from any thread; `deadline` is compared with the steady clock. Null
  /// flag: never asked.
  void set_yield(const std::atomic<bool>* flag, std::chrono::steady_clock::time_point deadline) noexcept;
  /// The deadline, put off where groups made room for each other since it was set: it is no sooner than after 50 times what
  /// their copies take.
  std::chrono::steady_clock::time_point deadline() const noexcept;

  internal::backend& impl() noexcept { return *impl_; }
  const internal::kernel_table& kernels() const noexcept { return *kernels_; }
  void* stream() const noexcept { return stream_; } ///< cudaStream_t, or null on the CPU

private:
  friend struct internal::kernel_override;
  void check_direct(const char* what) const;

  slot_options options_;
  std::shared_ptr<internal::backend> impl_; // shared with living buffers
  const internal::kernel_table* kernels_ = nullptr;
  void* stream_ = nullptr;
  std::shared_ptr<context_watch::owner> owner_;
  std::map<std::pair<std::type_index, std::string>, std::weak_ptr<void>> shared_;
  std::atomic<std::uint64_t> captures_{0}, launches_{0};
  mutable std::mutex mutex_; // guards the next one
  std::string capture_fault_;
  const std::atomic<bool>* yield_flag_ = nullptr;
  std::chrono::steady_clock::time_point deadline_ = std::chrono::steady_clock::time_point::max(), deadline_set_{};
};

} // namespace troupe::gpu
