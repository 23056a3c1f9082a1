#pragma once

#include <string>

#include "troupe/core/result.hpp"

namespace troupe::cli {

/// A text file, or standard input for "-"; at most 256 MiB. An error names the file and the reason.
core::result<std::string> read_text(const std::string& path);

/// The folder against which relative paths in a file count, absolute: the one that holds it. For standard input and pipes, which lie
/// nowhere, the current one; "." if that is gone.
std::string folder_of(const std::string& path);

/// Something is there that can hold a run and may be looked into; an error says what it is instead.
core::result<void> check_run_directory(const std::string& path);

/// A run's directory that this command took for a new run.
class claimed_directory {
public:
  /// `wanted`: from the command line; empty: runs/NAME-1, or with the first number that is free, which is taken by making the directory:
  /// of several that start at once each gets its own. `errc::invalid_argument`: such a directory cannot be had by anyone.
  static core::result<claimed_directory> claim(const std::string& wanted, const std::string& name);
  claimed_directory(claimed_directory&& other) noexcept;
  claimed_directory& operator=(claimed_directory&&) = delete;
  /// A directory that was made here and is still empty is removed: no run began in it.
  ~claimed_directory();

  const std::string& path() const noexcept { return path_; }

private:
  claimed_directory(std::string path, bool made) : path_(std::move(path)), made_(made) {}

  std::string path_;
  bool made_;
};

} // namespace troupe::cli
