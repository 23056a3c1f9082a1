#pragma once

#include <chrono>
#include <string>

#include <sys/types.h>

#include "troupe/core/result.hpp"

/// What control server and client agree on beside the lines they exchange.
namespace troupe::net {

struct control_record {
  long pid = 0;
  std::string socket;
};

/// RUN/control.json. Written to a temporary name and renamed, mode 0600.
core::result<void> write_control_record(const std::string& run_dir, const control_record& x);
/// not_found: there is none. io: it is no record.
core::result<control_record> read_control_record(const std::string& run_dir);
void remove_control_record(const std::string& run_dir) noexcept;

/// A folder that only this user can enter: `wanted`, or $XDG_RUNTIME_DIR, or /tmp/troupe-<uid> (made if need be).
core::result<std::string> private_socket_dir(const std::string& wanted);

/// Owns a file descriptor.
class unique_fd {
public:
  unique_fd() = default;
  explicit unique_fd(int fd) noexcept : fd_(fd) {}
  unique_fd(unique_fd&& other) noexcept : fd_(other.release()) {}
  unique_fd& operator=(unique_fd&& other) noexcept;
  ~unique_fd() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  int release() noexcept;
  void reset() noexcept;

private:
  int fd_ = -1;
};

/// Connects to a Unix domain socket without blocking for longer than the kernel's queue takes; the error has errno's text.
core::result<unique_fd> connect_unix(const std::string& path);

} // namespace troupe::net
