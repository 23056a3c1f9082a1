#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "files.hpp"

namespace troupe::core::internal {

/// A file that only grows by whole lines: what a failed write left of a line is cut off again.
class line_file {
public:
  /// Opens or creates it, and cuts off a last line without its end.
  static result<line_file> open(const std::string& path);

  bool empty() const noexcept { return size_ == 0; }

  result<void> append(std::string_view lines);
  /// The same, and on disk; else the lines are cut off again.
  result<void> append_durably(std::string_view lines);
  result<void> sync();
  /// An error if the file does not have its name any more: what is written to it then is lost.
  result<void> check_name() const;

private:
  line_file(unique_fd fd, std::string path, std::uint64_t size) : fd_(std::move(fd)), path_(std::move(path)), size_(size) {}

  unique_fd fd_;
  std::string path_;
  std::uint64_t size_;
};

} // namespace troupe::core::internal
