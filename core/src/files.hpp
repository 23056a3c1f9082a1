#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "troupe/core/result.hpp"

/// Small owners and helpers around POSIX files. Every error names the file, what was tried and the system's reason.
namespace troupe::core::internal {

/// Owns a file descriptor.
class unique_fd {
public:
  unique_fd() noexcept = default;
  explicit unique_fd(int fd) noexcept : fd_(fd) {}
  unique_fd(unique_fd&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  unique_fd& operator=(unique_fd&& other) noexcept;
  ~unique_fd();

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }

private:
  int fd_ = -1;
};

/// Opens a file of ours, created with mode 0644 where `flags` say so: a regular file, and no symbolic link, which somebody may have
/// laid there to have another file written.
result<unique_fd> open_own_file(const std::string& path, int flags);

/// `errc::io` (or `not_found` for ENOENT): "cannot <what> '<path>': <reason>".
error file_error(std::string_view what, std::string_view path, int err);

result<void> write_all(int fd, std::span<const std::byte> bytes, const std::string& path);
result<void> write_all(int fd, std::string_view text, const std::string& path);
/// Fills `into` from `offset`; a file that ends before is an error.
result<void> read_exactly(int fd, std::uint64_t offset, std::span<std::byte> into, const std::string& path);

/// The whole file; larger than `limit` is an error.
result<std::string> read_text_file(const std::string& path, std::uint64_t limit);

/// Makes renames and new names in `path`'s folder durable.
result<void> sync_parent_folder(const std::string& path);

/// A file that appears under its name whole and durable, or not at all.
class atomic_file {
public:
  static result<atomic_file> create(const std::string& path);
  atomic_file(atomic_file&& other) noexcept;
  atomic_file& operator=(atomic_file&&) = delete;
  /// Removes the temporary file unless it got its name.
  ~atomic_file();

  result<void> write(std::span<const std::byte> bytes) { return write_all(fd_.get(), bytes, path_); }
  /// All of the following: for a file alone.
  result<void> commit();

  // -- the same in steps, for many files --
  result<void> sync();
  void close() noexcept { fd_ = unique_fd{}; } ///< nothing can be written or synced any more
  result<void> publish();                      ///< gives it its name; the folder is to be synced after it

  /// True for the names that unfinished files of `name` have: `name`, ".tmp-" and six letters or digits. A crash can leave such
  /// files behind.
  static bool is_unfinished(std::string_view file, std::string_view name) noexcept;

private:
  atomic_file(unique_fd fd, std::string temporary, std::string path)
      : fd_(std::move(fd)), temporary_(std::move(temporary)), path_(std::move(path)) {}

  static constexpr std::string_view marker = ".tmp-";

  unique_fd fd_;
  std::string temporary_; ///< empty: published
  std::string path_;
};

/// Brings everything written to the file system of `folder` to disk.
result<void> sync_file_system(const std::string& folder);
/// The folder that `path` is in.
std::string parent_folder(const std::string& path);

} // namespace troupe::core::internal
