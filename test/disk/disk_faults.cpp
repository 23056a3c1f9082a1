/// Preloaded into a test's process, it makes calls fail that change files in one folder, as a disk would that is full or broken.
///
/// TROUPE_DISK_FOLDER: the folder's absolute path. TROUPE_DISK_FAIL_AT: the number of the call that fails, from 1. TROUPE_DISK_ERRNO: with
/// what. TROUPE_DISK_STAYS: set: all calls after it fail too, and a write that is the first to fail takes half of its bytes.
/// TROUPE_DISK_LOG: a file that gets a line for each call that failed.
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

char folder[PATH_MAX] = "", log_path[PATH_MAX] = "";
long fail_at = 0;
int failure = ENOSPC;
bool stays = false;
std::atomic<long> calls{0};

__attribute__((constructor)) void read_settings() {
  const auto text = [](const char* name) {
    const char* x = std::getenv(name);
    return x ? x : "";
  };
  std::snprintf(folder, sizeof folder, "%s", text("TROUPE_DISK_FOLDER"));
  std::snprintf(log_path, sizeof log_path, "%s", text("TROUPE_DISK_LOG"));
  fail_at = std::atol(text("TROUPE_DISK_FAIL_AT"));
  failure = std::atoi(text("TROUPE_DISK_ERRNO"));
  stays = *text("TROUPE_DISK_STAYS") != 0;
}

bool inside(const char* path) {
  const auto n = std::strlen(folder);
  if (n == 0 || !path)
    return false;
  if (path[0] == '/')
    return std::strncmp(path, folder, n) == 0 && (path[n] == '/' || path[n] == 0);
  // Relative to the folder that the process was started in.
  char whole[2 * PATH_MAX];
  if (!::getcwd(whole, PATH_MAX))
    return false;
  const auto at = std::strlen(whole);
  std::snprintf(whole + at, sizeof whole - at, "/%s", path);
  return std::strncmp(whole, folder, n) == 0 && (whole[n] == '/' || whole[n] == 0);
}

bool inside(int fd) {
  char link[64], path[PATH_MAX];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const auto n = ::readlink(link, path, sizeof path - 1);
  if (n <= 0)
    return false;
  path[n] = 0;
  return inside(path);
}

void note(const char* what, long number) {
  char line[128];
  const int n = std::snprintf(line, sizeof line, "%ld %s\n", number, what);
  const auto fd = syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0)
    return;
  (void)!syscall(SYS_write, fd, line, n);
  syscall(SYS_close, fd);
}

/// Counts the call; its number if it fails, else 0.
template <class Where>
long fails(const char* what, Where where) {
  if (fail_at == 0 || !inside(where))
    return 0;
  const auto n = ++calls;
  if (n != fail_at && !(stays && n > fail_at))
    return 0;
  note(what, n);
  errno = failure;
  return n;
}

template <class F>
F next(F, const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

mode_t mode_of(int flags, va_list more) { return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0; }

} // namespace

#define TROUPE_FAILING(name, parameters, arguments, where)            \
  extern "C" __attribute__((visibility("default"))) int name parameters { \
    static const auto real = next(&name, #name);                      \
    return fails(#name, where) ? -1 : real arguments;                 \
  }

TROUPE_FAILING(fsync, (int fd), (fd), fd)
TROUPE_FAILING(fdatasync, (int fd), (fd), fd)
TROUPE_FAILING(syncfs, (int fd) noexcept, (fd), fd)
TROUPE_FAILING(rename, (const char* from, const char* to) noexcept, (from, to), to)
TROUPE_FAILING(mkdir, (const char* path, mode_t mode) noexcept, (path, mode), path)
TROUPE_FAILING(mkostemp, (char* path, int flags), (path, flags), path)
TROUPE_FAILING(mkostemp64, (char* path, int flags), (path, flags), path)

extern "C" __attribute__((visibility("default"))) int open(const char* path, int flags, ...) {
  static const auto real = next(&open, "open");
  va_list more;
  va_start(more, flags);
  const auto mode = mode_of(flags, more);
  va_end(more);
  return (flags & O_CREAT) != 0 && fails("open", path) ? -1 : real(path, flags, mode);
}

extern "C" __attribute__((visibility("default"))) int open64(const char* path, int flags, ...) {
  static const auto real = next(&open64, "open64");
  va_list more;
  va_start(more, flags);
  const auto mode = mode_of(flags, more);
  va_end(more);
  return (flags & O_CREAT) != 0 && fails("open", path) ? -1 : real(path, flags, mode);
}

extern "C" __attribute__((visibility("default"))) ssize_t write(int fd, const void* from, size_t n) {
  static const auto real = next(&write, "write");
  const auto number = fails("write", fd);
  if (number == 0)
    return real(fd, from, n);
  return stays && number == fail_at && n > 1 ? real(fd, from, n / 2) : -1;
}
