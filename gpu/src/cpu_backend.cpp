#include <cstdlib>
#include <cstring>
#include <unordered_map>

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include "backend.hpp"
#include "cpu_gemm.hpp"

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

  void zero(void* dst, std::size_t bytes) override { std::memset(dst, 0, bytes); }
  void copy(void* dst, const void* src, std::size_t bytes) override { std::memmove(dst, src, bytes); }
  void upload(void* dst, const void* src, std::size_t bytes) override { std::memcpy(dst, src, bytes); }
  void download(void* dst, const void* src, std::size_t bytes) override { std::memcpy(dst, src, bytes); }
  void synchronize() override {}
  void gemm(const gemm_call& call) override { gemm_(call); }

protected:
  void* allocate(std::size_t bytes) override { return pool_.get(bytes); }
  void free(void* data, std::size_t) noexcept override { pool_.put(data); }
  void* allocate_host(std::size_t bytes) override { return pool_.get(bytes); }
  void free_host(void* data, std::size_t) noexcept override { pool_.put(data); }
  void trim() noexcept override { pool_.trim(); }

private:
  std::vector<int> cores_;
  pool pool_;
  cpu_gemm gemm_;
};

} // namespace

std::shared_ptr<backend> make_cpu_backend(const slot_options& options) {
  return std::make_shared<cpu_backend>(options);
}

} // namespace troupe::gpu::internal
