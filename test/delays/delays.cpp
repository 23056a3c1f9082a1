/// Preloaded into a test, it makes one in so many locks, unlocks, transfers and looks at the clock wait for a while, as a busy
/// machine would now and then: tests that depend on luck fail soon. `script/test-with-delays` uses it.
///
/// TROUPE_DELAY_EVERY: one call in so many waits (300). TROUPE_DELAY_US: for up to so many microseconds (1500).
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <ctime>

#include <dlfcn.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

std::uint64_t setting(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  const auto n = text ? std::strtoull(text, nullptr, 10) : 0;
  return n > 0 ? n : otherwise;
}

// Threads start before constructors of other libraries have run: no static initialisation here.
std::uint64_t every = 0, microseconds = 0;

__attribute__((constructor)) void read_settings() {
  microseconds = setting("TROUPE_DELAY_US", 1500);
  every = setting("TROUPE_DELAY_EVERY", 300);
}

/// May wait. Uses system calls alone: the functions around them are replaced here.
void maybe_wait() {
  thread_local std::uint64_t state = 0;
  if (every == 0)
    return;
  if (state == 0) {
    timespec now{};
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    state = (static_cast<std::uint64_t>(now.tv_nsec) ^ (static_cast<std::uint64_t>(syscall(SYS_gettid)) << 32)) | 1;
  }
  state ^= state << 13; // xorshift64, Marsaglia 2003
  state ^= state >> 7;
  state ^= state << 17;
  if (state % every != 0)
    return;
  const auto us = (state >> 20) % microseconds;
  const timespec time{static_cast<time_t>(us / 1'000'000), static_cast<long>(us % 1'000'000 * 1000)};
  const int kept = errno;
  syscall(SYS_nanosleep, &time, nullptr);
  errno = kept;
}

template <class F>
F next(F, const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

} // namespace

#define TROUPE_DELAYED(result, name, parameters, arguments) \
  extern "C" __attribute__((visibility("default"))) result name parameters { \
    static const auto real = next(&name, #name); \
    maybe_wait(); \
    return real arguments; \
  }

TROUPE_DELAYED(int, pthread_mutex_lock, (pthread_mutex_t * m) noexcept, (m))
TROUPE_DELAYED(int, clock_gettime, (clockid_t id, timespec* out) noexcept, (id, out))
TROUPE_DELAYED(ssize_t, read, (int fd, void* to, size_t n), (fd, to, n))
TROUPE_DELAYED(ssize_t, write, (int fd, const void* from, size_t n), (fd, from, n))
TROUPE_DELAYED(ssize_t, recv, (int fd, void* to, size_t n, int flags), (fd, to, n, flags))
TROUPE_DELAYED(ssize_t, send, (int fd, const void* from, size_t n, int flags), (fd, from, n, flags))
TROUPE_DELAYED(ssize_t, recvmsg, (int fd, msghdr* to, int flags), (fd, to, flags))
TROUPE_DELAYED(ssize_t, sendmsg, (int fd, const msghdr* from, int flags), (fd, from, flags))

/// After the unlock: whoever comes next is let in before this thread goes on.
extern "C" __attribute__((visibility("default"))) int pthread_mutex_unlock(pthread_mutex_t* m) noexcept {
  static const auto real = next(&pthread_mutex_unlock, "pthread_mutex_unlock");
  const int out = real(m);
  maybe_wait();
  return out;
}
