#pragma once

#include <string>

#include <sys/types.h>

#include "control_files.hpp"
#include "troupe/core/result.hpp"
#include "unique_fd.hpp"

namespace troupe::net {

/// Where a run can be reached: a listening socket in a private folder, and RUN/control.json, which names it. Both may be removed
/// by others while the run goes on (a log-out clears the user's folder); this tells so and makes them anew.
class control_address {
public:
  /// `socket_dir` as in `private_socket_dir`. Errors: io.
  static core::result<control_address> of(const std::string& run_dir, std::string socket_dir);

  /// A new socket under a new name, which listens. Errors: refused (no private folder), invalid_argument (path too long), io.
  core::result<unique_fd> listen();
  /// Writes control.json. Errors: io.
  core::result<void> announce() const;
  const std::string& path() const noexcept { return path_; }

  bool socket_is_there() const;
  bool is_announced() const;
  /// What is there of ours.
  void remove() const noexcept;

private:
  control_address(run_folder run, std::string socket_dir) : run_(std::move(run)), socket_dir_(std::move(socket_dir)) {}

  run_folder run_;
  std::string socket_dir_, path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

} // namespace troupe::net
