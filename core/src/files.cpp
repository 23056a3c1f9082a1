#include "files.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace troupe::core::internal {

unique_fd& unique_fd::operator=(unique_fd&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0)
      ::close(fd_);
    fd_ = other.fd_;
    other.fd_ = -1;
  }
  return *this;
}

unique_fd::~unique_fd() {
  if (fd_ >= 0)
    ::close(fd_);
}

result<unique_fd> open_own_file(const std::string& path, int flags) {
  // Without O_NONBLOCK a pipe under this name would hold us up.
  unique_fd fd{::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644)};
  if (!fd && errno == ELOOP)
    return error{errc::io, "cannot open '" + path + "': it is a symbolic link, and files of a run are not written through links"};
  struct stat st {};
  if (!fd || ::fstat(fd.get(), &st) != 0)
    return file_error("open", path, errno);
  if (!S_ISREG(st.st_mode))
    return error{errc::io, "cannot open '" + path + "': it is not a regular file"};
  return fd;
}

error file_error(std::string_view what, std::string_view path, int err) {
  std::string text = "cannot ";
  text += what;
  text += " '";
  text += path;
  text += "': ";
  text += std::generic_category().message(err);
  return {err == ENOENT ? errc::not_found : errc::io, std::move(text)};
}

result<void> write_all(int fd, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    auto n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      return file_error("write", path, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

result<void> write_all(int fd, std::string_view text, const std::string& path) {
  return write_all(fd, std::as_bytes(std::span{text.data(), text.size()}), path);
}

result<void> read_exactly(int fd, std::uint64_t offset, std::span<std::byte> into, const std::string& path) {
  while (!into.empty()) {
    auto n = ::pread(fd, into.data(), into.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      return file_error("read", path, errno);
    if (n == 0)
      return error{errc::io, "cannot read '" + path + "': the file ends too early"};
    into = into.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return {};
}

result<std::string> read_text_file(const std::string& path, std::uint64_t limit) {
  unique_fd fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  struct stat st {};
  if (!fd || ::fstat(fd.get(), &st) != 0)
    return file_error("read", path, errno);
  if (S_ISDIR(st.st_mode))
    return file_error("read", path, EISDIR);
  std::string text;
  // Pipes and /dev/stdin have no size, so the end of the file decides.
  for (std::size_t used = 0;;) {
    text.resize(used + (S_ISREG(st.st_mode) ? static_cast<std::size_t>(st.st_size) + 1 : 65536));
    auto n = ::read(fd.get(), text.data() + used, text.size() - used);
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      return file_error("read", path, errno);
    used += static_cast<std::size_t>(n);
    if (used > limit)
      return error{errc::io, "cannot read '" + path + "': larger than " + std::to_string(limit) + " bytes"};
    if (n == 0) {
      text.resize(used);
      return text;
    }
  }
}

std::string parent_folder(const std::string& path) {
  auto slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

result<void> sync_parent_folder(const std::string& path) {
  auto folder = parent_folder(path);
  unique_fd fd{::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (!fd || ::fsync(fd.get()) != 0)
    return file_error("sync folder", folder, errno);
  return {};
}

result<void> sync_file_system(const std::string& folder) {
  unique_fd fd{::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (!fd || ::syncfs(fd.get()) != 0)
    return file_error("sync the file system of", folder, errno);
  return {};
}

result<atomic_file> atomic_file::create(const std::string& path) {
  std::string temporary = path + std::string{marker} + "XXXXXX";
  unique_fd fd{::mkostemp(temporary.data(), O_CLOEXEC)};
  if (!fd)
    return file_error("create", path, errno);
  ::fchmod(fd.get(), 0644); // mkostemp makes files that only the owner reads
  return atomic_file{std::move(fd), std::move(temporary), path};
}

atomic_file::atomic_file(atomic_file&& other) noexcept
    : fd_(std::move(other.fd_)), temporary_(std::move(other.temporary_)), path_(std::move(other.path_)) {
  other.temporary_.clear();
}

atomic_file::~atomic_file() {
  if (!temporary_.empty())
    ::unlink(temporary_.c_str());
}

bool atomic_file::is_unfinished(std::string_view file, std::string_view name) noexcept {
  constexpr std::size_t letters = 6;
  if (file.size() != name.size() + marker.size() + letters || !file.starts_with(name) ||
      file.substr(name.size(), marker.size()) != marker)
    return false;
  return std::ranges::all_of(file.substr(file.size() - letters), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  });
}

result<void> atomic_file::sync() {
  if (::fsync(fd_.get()) != 0)
    return file_error("sync", path_, errno);
  return {};
}

result<void> atomic_file::publish() {
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)
    return file_error("rename to", path_, errno);
  temporary_.clear();
  return {};
}

result<void> atomic_file::commit() {
  if (auto ok = sync(); !ok)
    return ok;
  close();
  if (auto ok = publish(); !ok)
    return ok;
  return sync_parent_folder(path_);
}

} // namespace troupe::core::internal
