#include "line_file.hpp"

#include <algorithm>
#include <cerrno>
#include <span>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace troupe::core::internal {

result<line_file> line_file::open(const std::string& path) {
  auto fd = open_own_file(path, O_RDWR | O_CREAT | O_APPEND);
  if (!fd)
    return fd.error();
  struct stat st {};
  if (::fstat(fd->get(), &st) != 0)
    return file_error("open", path, errno);
  auto size = static_cast<std::uint64_t>(st.st_size);
  auto end = size;
  for (std::string block; end > 0;) {
    block.resize(std::min<std::uint64_t>(end, 1 << 16));
    auto begin = end - block.size();
    if (auto ok = read_exactly(fd->get(), begin, std::as_writable_bytes(std::span{block}), path); !ok)
      return ok.error();
    auto newline = block.rfind('\n');
    end = newline == std::string::npos ? begin : begin + newline + 1;
    if (newline != std::string::npos)
      break;
  }
  if (end != size && ::ftruncate(fd->get(), static_cast<off_t>(end)) != 0)
    return file_error("cut off the torn last line of", path, errno);
  return line_file{*std::move(fd), path, end};
}

result<void> line_file::append(std::string_view lines) {
  auto ok = write_all(fd_.get(), lines, path_);
  if (ok)
    size_ += lines.size();
  else if (::ftruncate(fd_.get(), static_cast<off_t>(size_)) != 0)
    return file_error("cut off an unfinished line of", path_, errno);
  return ok;
}

result<void> line_file::append_durably(std::string_view lines) {
  const auto before = size_;
  auto ok = append(lines);
  if (!ok)
    return ok;
  ok = sync();
  if (!ok && ::ftruncate(fd_.get(), static_cast<off_t>(before)) == 0)
    size_ = before;
  return ok;
}

result<void> line_file::sync() {
  if (::fdatasync(fd_.get()) != 0)
    return file_error("sync", path_, errno);
  return {};
}

result<void> line_file::check_name() const {
  struct stat ours {}, named {};
  if (::fstat(fd_.get(), &ours) != 0)
    return file_error("look at", path_, errno);
  if (::stat(path_.c_str(), &named) == 0 && named.st_dev == ours.st_dev && named.st_ino == ours.st_ino)
    return {};
  return error{errc::io, "'" + path_ + "' is gone: it was removed, moved or replaced while the run was going on, so nothing more "
                         "can be kept"};
}

} // namespace troupe::core::internal
