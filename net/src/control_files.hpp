#pragma once

#include <string>

#include "troupe/core/result.hpp"
#include "unique_fd.hpp"

/// What control server and client agree on beside the lines they exchange.
namespace troupe::net {

struct control_record {
  long pid = 0;
  std::string socket;
};

/// A run's directory and its control.json. It stays the same directory wherever it is moved, and is nobody else's when it is
/// removed and another has its name. Symbolic links in place of control.json are not followed.
class run_folder {
public:
  static core::result<run_folder> open(const std::string& path);

  /// To a temporary name, then renamed; mode 0600.
  core::result<void> write(const control_record& x) const;
  /// not_found: there is none. io: it is no record.
  core::result<control_record> read() const;
  void remove() const noexcept;

private:
  run_folder(unique_fd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  unique_fd fd_;
  std::string path_; ///< for errors
};

/// A folder that only this user can enter: `wanted`, or $XDG_RUNTIME_DIR, or /tmp/troupe-<uid> (made if need be).
core::result<std::string> private_socket_dir(const std::string& wanted);

/// A socket of this user under a name as a run gives it.
bool is_control_socket(const std::string& path) noexcept;

/// Removes `path` if it is such a socket and lies in `dir` itself, a folder as above. Anything else stays: that folder has other
/// programs' sockets too, and `path` may come from anybody.
void remove_control_socket(const std::string& dir, const std::string& path) noexcept;

/// Connects to a Unix domain socket without blocking for longer than the kernel's queue takes; the error has errno's text.
core::result<unique_fd> connect_unix(const std::string& path);

} // namespace troupe::net
