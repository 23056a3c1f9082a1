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

/// RUN/control.json. Written to a temporary name and renamed, mode 0600.
core::result<void> write_control_record(const std::string& run_dir, const control_record& x);
/// not_found: there is none. io: it is no record.
core::result<control_record> read_control_record(const std::string& run_dir);
void remove_control_record(const std::string& run_dir) noexcept;

/// A folder that only this user can enter: `wanted`, or $XDG_RUNTIME_DIR, or /tmp/troupe-<uid> (made if need be).
core::result<std::string> private_socket_dir(const std::string& wanted);

/// Connects to a Unix domain socket without blocking for longer than the kernel's queue takes; the error has errno's text.
core::result<unique_fd> connect_unix(const std::string& path);

} // namespace troupe::net
