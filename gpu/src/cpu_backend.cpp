#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <unordered_map>

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include "backend.hpp"
#include "copied_memory.hpp"
#include "cpu_gemm.hpp"
#include "kernel_table.hpp"
#include "troupe/core/subnormals.hpp"

namespace troupe::gpu::internal {

namespace {

constexpr std::size_t page = 4096, line = 64;

std::size_t round_up(std::size_t x, std::size_t to) { return (x + to - 1) / to * to; }

/// In the cache line before a block's data.
struct alignas(line) header {
  void* base = nullptr;     // what malloc gave
  std::size_t capacity = 0; // of the data
  header* next = nullptr;   // in the free list
};

header* header_of(void* data) { return static_cast<header*>(data) - 1; }

/// Blocks of 64-byte alignment, kept for reuse by exact capacity. Large ones begin at different places of
/// their page: equal places in several arrays of one loop make loads wait for unrelated stores (4 KiB
/// aliasing).
class pool {
public:
  ~pool() { trim(); }

  void* get(std::size_t bytes) {
    const auto capacity = round_up(bytes, bytes < page ? line : page);
    auto& head = free_[capacity]; // the entry outlives the block, so that `put` need not allocate
    if (head != nullptr) {
      auto* h = std::exchange(head, head->next);
      kept_ -= capacity;
      return h + 1;
    }
    const bool small = capacity < 4 * page, huge = capacity >= 2 * huge_page;
    const auto skew = small ? 0 : 1088 * (next_skew_++ % 64) % page;
    const auto align = small ? line : huge ? huge_page : page;
    const auto total = round_up(sizeof(header) + skew + capacity, align);
    if (total < capacity)
      return nullptr;
    void* base = std::aligned_alloc(align, total);
    if (base == nullptr)
      return nullptr;
    if (huge)
      ::madvise(base, total, MADV_HUGEPAGE); // a hint; fewer TLB misses where it is heeded
    auto* h = new (static_cast<char*>(base) + skew) header{base, capacity, nullptr};
    return h + 1;
  }

  void put(void* data) noexcept {
    auto* h = header_of(data);
    if (keep_limit < kept_ + h->capacity) {
      std::free(h->base);
      return;
    }
    kept_ += h->capacity;
    auto& head = free_.find(h->capacity)->second;
    h->next = std::exchange(head, h);
  }

  std::size_t kept() const noexcept { return kept_; }

  void trim() noexcept {
    for (auto& [capacity, head] : free_)
      while (head != nullptr)
        std::free(std::exchange(head, head->next)->base);
    kept_ = 0;
  }

private:
  static constexpr std::size_t huge_page = 2u << 20;
#ifdef __SANITIZE_ADDRESS__
  static constexpr std::size_t keep_limit = 0; // reuse would hide uses after free
#else
  static constexpr std::size_t keep_limit = 256u << 20;
#endif
  std::unordered_map<std::size_t, header*> free_;
  std::size_t kept_ = 0;
  std::size_t next_skew_ = 0;
};

/// A position in a queue of copies; in the first queue everything has been done when it returns.
struct cpu_point final : point {
  work_queue queue = work_queue::compute;
  std::uint64_t copies = 0;
};

/// Asynchronous copies in one direction, done at once or, for tests, as late as marks allow.
class copy_queue {
public:
  void add(void* to, const void* from, std::size_t bytes, bool late) {
    ++enqueued_;
    if (late) {
      late_.push_back([=] { std::memcpy(to, from, bytes); });
      return;
    }
    std::memcpy(to, from, bytes);
    done_ = enqueued_;
  }
  void finish(std::uint64_t up_to) {
    for (; done_ < up_to; ++done_) {
      late_.front()();
      late_.pop_front();
    }
  }
  std::uint64_t enqueued() const noexcept { return enqueued_; }
  std::uint64_t done() const noexcept { return done_; }

private:
  std::uint64_t enqueued_ = 0, done_ = 0;
  std::deque<std::function<void()>> late_;
};

struct call_list final : captured_work, call_recorder {
  std::vector<std::function<void()>> calls;
  void add(std::function<void()> call) override { calls.push_back(std::move(call)); }
};

class cpu_backend final : public backend {
public:
  explicit cpu_backend(const slot_options& options)
      : backend(options), cores_(options.cores), gemm_(options) {}

  void bind() override {
    own();
    if (!cores_.empty()) {
      cpu_set_t set;
      CPU_ZERO(&set);
      for (int c : cores_)
        if (c >= 0 && c < CPU_SETSIZE)
          CPU_SET(c, &set);
      if (const int rc = ::pthread_setaffinity_np(::pthread_self(), sizeof set, &set); rc != 0) {
        std::string list;
        for (int c : cores_)
          list += (list.empty() ? "" : ",") + std::to_string(c);
        throw device_error(label() + ": its thread cannot be pinned to the cores " + list + ": " +
                               std::strerror(rc) + "; `taskset -p` shows which cores this process may use",
                           false);
      }
    }
    // oneDNN's threads are OpenMP's, counted per calling thread. Two pools that spin against each other are 3
    // to 4 times slower than one thread, and parallelism is across trainers.
    if (auto* set_threads = reinterpret_cast<void (*)(int)>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads")))
      set_threads(1);
  }

  void zero(void* dst, std::size_t bytes) override {
    do_or_keep([=] { std::memset(dst, 0, bytes); });
  }
  void copy(void* dst, const void* src, std::size_t bytes) override {
    do_or_keep([=] { std::memmove(dst, src, bytes); });
  }
  bool copy_from(backend& from, void* dst, const void* src, std::size_t bytes) override {
    if (dynamic_cast<cpu_backend*>(&from) == nullptr)
      return false;
    touch();
    std::memcpy(dst, src, bytes);
    return true;
  }
  void upload(void* dst, const void* src, std::size_t bytes) override {
    touch();
    std::memcpy(dst, src, bytes);
  }
  void download(void* dst, const void* src, std::size_t bytes) override {
    touch();
    std::memcpy(dst, src, bytes);
  }
  void synchronize() override { finish_copies(); }
  void gemm(const gemm_call& call) override {
    do_or_keep([this, call] {
      if (!keep_subnormals_)
        return gemm_(call);
      const core::subnormals_scope keep(false);
      gemm_(call);
    });
  }

  void upload_async(void* dst, const void* pinned, std::size_t bytes) override {
    touch();
    copied_.note(dst);
    uploads_.add(dst, pinned, bytes, delayed_);
  }
  void download_async(void* pinned, const void* src, std::size_t bytes) override {
    touch();
    copied_.note(src);
    downloads_.add(pinned, src, bytes, delayed_);
  }
  void mark(std::unique_ptr<point>& at, work_queue q) override {
    if (at == nullptr)
      at = std::make_unique<cpu_point>();
    auto& p = static_cast<cpu_point&>(*at);
    p.queue = q;
    p.copies = q == work_queue::compute ? 0 : queue_of(q).enqueued();
  }
  void wait(const point& at, work_queue) override { wait_on_host(at); }
  void wait_on_host(const point& at) override {
    const auto& p = static_cast<const cpu_point&>(at);
    if (p.queue != work_queue::compute)
      queue_of(p.queue).finish(p.copies);
  }
  bool passed(const point& at) override {
    const auto& p = static_cast<const cpu_point&>(at);
    return p.queue == work_queue::compute || p.copies <= queue_of(p.queue).done();
  }
  void delay_copies() override { delayed_ = true; }
  void keep_subnormals_in_products() override { keep_subnormals_ = true; }

  void begin_capture() override {
    list_ = std::make_unique<call_list>();
    set_capturing(true);
  }
  std::unique_ptr<captured_work> end_capture(std::string&) override {
    set_capturing(false);
    return std::move(list_);
  }
  void launch(captured_work& work) override {
    for (const auto& call : static_cast<call_list&>(work).calls)
      call();
  }
  call_recorder* recorder() noexcept override { return list_.get(); }

  std::uint64_t reserved() const noexcept override { return used() + kept_.load(std::memory_order_relaxed); }

protected:
  void settle() noexcept override { finish_copies(); }
  void* allocate(std::size_t bytes) override {
    void* p = pool_.get(bytes);
    note_kept();
    return p;
  }
  void free(void* data, std::size_t bytes) noexcept override {
    if (copied_.forget(data, bytes)) // a copy may be on its way from it or to it
      finish_copies();
    pool_.put(data);
    note_kept();
  }
  void* allocate_host(std::size_t bytes) override { return allocate(bytes); }
  void free_host(void* data, std::size_t) noexcept override {
    finish_copies();
    pool_.put(data);
    note_kept();
  }
  void trim() noexcept override {
    pool_.trim();
    note_kept();
  }

private:
  template <class F>
  void do_or_keep(F f) {
    touch();
    if (list_ != nullptr)
      list_->add(std::move(f));
    else
      f();
  }
  copy_queue& queue_of(work_queue q) noexcept { return q == work_queue::uploads ? uploads_ : downloads_; }
  void finish_copies() {
    downloads_.finish(downloads_.enqueued());
    uploads_.finish(uploads_.enqueued());
  }
  void note_kept() noexcept { kept_.store(pool_.kept(), std::memory_order_relaxed); }

  std::vector<int> cores_;
  pool pool_;
  std::atomic<std::uint64_t> kept_{0};
  cpu_gemm gemm_;
  std::unique_ptr<call_list> list_; // while capturing
  copy_queue uploads_, downloads_;
  copied_memory copied_;
  bool delayed_ = false, keep_subnormals_ = false;
};

} // namespace

std::shared_ptr<backend> make_cpu_backend(const slot_options& options) {
  return std::make_shared<cpu_backend>(options);
}

} // namespace troupe::gpu::internal
