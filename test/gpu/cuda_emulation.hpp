#pragma once

#include <ucontext.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernel_table.hpp"

/// Enough of CUDA's execution model to run kernels/launch_cuda.hpp on the CPU, so that indices, strides, barriers and
/// the order of sums are tested where there is no GPU. The threads of a block are coroutines of one thread; they change
/// hands where they wait. A block whose threads wait for different things (a barrier that some never reach, a shuffle in
/// a diverged warp) is reported.
namespace cuda_emulation {

struct index3 {
  unsigned x = 0, y = 0, z = 0;
};

enum class waits_for : std::uint8_t { nothing, warp, block, over };

class block_runner {
public:
  /// Runs `body` as every thread of the block.
  template <class F>
  void run(index3 block_dim, bool cooperating, F body);

  void wait(waits_for what) {
    threads_[now_].state = what;
    swapcontext(&threads_[now_].context, &scheduler_);
    index = threads_[now_].index;
  }
  template <class T>
  T exchange(T value, unsigned mask) {
    static_assert(sizeof(T) <= 8);
    std::memcpy(&threads_[now_].slot, &value, sizeof value);
    wait(waits_for::warp);
    T other;
    std::memcpy(&other, &threads_[now_ ^ mask].slot, sizeof other);
    wait(waits_for::warp); // nobody overwrites its slot before all have read
    return other;
  }

  index3 index, block, block_dim, grid_dim;

private:
  struct coroutine {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    index3 index;
    waits_for state = waits_for::nothing;
    std::uint64_t slot = 0;
  };
  static constexpr std::size_t stack_bytes = 32 * 1024;

  static void enter(unsigned low, unsigned high) {
    auto* self = reinterpret_cast<block_runner*>(std::uintptr_t(low) | std::uintptr_t(high) << 32);
    self->body_(self->argument_);
    self->threads_[self->now_].state = waits_for::over;
    swapcontext(&self->threads_[self->now_].context, &self->scheduler_);
  }
  void schedule(std::size_t count);
  /// Lets threads go on that all wait for the same; false if there are none.
  bool release(std::size_t begin, std::size_t end, waits_for what);

  std::vector<coroutine> threads_;
  ucontext_t scheduler_;
  std::size_t now_ = 0;
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
};

inline bool block_runner::release(std::size_t begin, std::size_t end, waits_for what) {
  bool any = false;
  for (std::size_t i = begin; i < end; ++i)
    if (threads_[i].state == what)
      any = true;
    else if (threads_[i].state != waits_for::over || what == waits_for::warp)
      return false; // shuffles name all 32 lanes, so all must be there
  for (std::size_t i = begin; any && i < end; ++i)
    if (threads_[i].state == what)
      threads_[i].state = waits_for::nothing;
  return any;
}

inline void block_runner::schedule(std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    coroutine& t = threads_[i];
    if (!t.stack)
      t.stack = std::make_unique<char[]>(stack_bytes);
    t.state = waits_for::nothing;
    t.index = {unsigned(i) % block_dim.x, unsigned(i) / block_dim.x % block_dim.y, unsigned(i) / block_dim.x / block_dim.y};
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = t.stack.get();
    t.context.uc_stack.ss_size = stack_bytes;
    t.context.uc_link = nullptr;
    const auto self = reinterpret_cast<std::uintptr_t>(this);
    makecontext(&t.context, reinterpret_cast<void (*)()>(&enter), 2, unsigned(self), unsigned(self >> 32));
  }
  for (;;) {
    bool all_over = true, progress = false;
    for (std::size_t i = 0; i < count; ++i) {
      if (threads_[i].state == waits_for::nothing) {
        now_ = i;
        index = threads_[i].index;
        swapcontext(&scheduler_, &threads_[i].context);
        progress = true;
      }
      all_over = all_over && threads_[i].state == waits_for::over;
    }
    if (all_over)
      return;
    for (std::size_t w = 0; w < count; w += 32)
      progress = release(w, w + 32 < count ? w + 32 : count, waits_for::warp) || progress;
    progress = release(0, count, waits_for::block) || progress;
    if (!progress)
      throw std::logic_error("threads of a block wait for each other for ever");
  }
}

template <class F>
void block_runner::run(index3 dim, bool cooperating, F body) {
  block_dim = dim;
  const std::size_t count = std::size_t(dim.x) * dim.y * dim.z;
  if (!cooperating) {
    for (std::size_t i = 0; i < count; ++i) {
      index = {unsigned(i) % dim.x, unsigned(i) / dim.x % dim.y, unsigned(i) / dim.x / dim.y};
      body();
    }
    return;
  }
  if (threads_.size() < count)
    threads_.resize(count);
  body_ = [](void* f) { (*static_cast<F*>(f))(); };
  argument_ = &body;
  schedule(count);
}

/// The block that runs now; kernels have no other way to name it.
inline block_runner& runner() {
  static thread_local block_runner r;
  return r;
}

/// ThreadSanitizer knows no coroutines: with it, tests run no kernel whose threads wait for each other.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool available = false;
#else
inline constexpr bool available = true;
#endif

/// The table whose kernels run this way.
const troupe::gpu::internal::kernel_table& table();

} // namespace cuda_emulation
