#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include <zlib.h>

#include "troupe/gpu/dataset.hpp"

namespace troupe::gpu {

namespace {

constexpr std::int64_t max_bytes = std::int64_t{1} << 30;

struct gz_closer {
  void operator()(gzFile f) const noexcept { gzclose_r(f); }
};
using gz_file = std::unique_ptr<gzFile_s, gz_closer>;

core::error fault(const std::string& path, const std::string& what) {
  return {core::errc::io, path + ": " + what};
}

std::string zlib_text(gzFile f) {
  int code = Z_OK;
  const char* text = gzerror(f, &code);
  if (code == Z_ERRNO)
    return std::strerror(errno);
  return text != nullptr && *text != '\0' ? text : "unexpected end of file";
}

/// Exactly `n` bytes, or what went wrong.
std::string read_exactly(gzFile f, std::uint8_t* to, std::size_t n) {
  while (n > 0) {
    const auto part = static_cast<unsigned>(std::min<std::size_t>(n, 1U << 24));
    const int got = gzread(f, to, part);
    if (got <= 0)
      return got == 0 ? "ends too early" : "cannot be read: " + zlib_text(f);
    to += got;
    n -= static_cast<std::size_t>(got);
  }
  return {};
}

std::int64_t big_endian(const std::uint8_t* p) {
  return (std::int64_t{p[0]} << 24) | (std::int64_t{p[1]} << 16) | (std::int64_t{p[2]} << 8) | p[3];
}

} // namespace

core::result<idx_bytes> read_idx(const std::string& path, std::size_t dimensions) {
  errno = 0;
  gz_file file{gzopen(path.c_str(), "rb")};
  if (!file)
    return core::error{errno == ENOENT ? core::errc::not_found : core::errc::io,
                       path + ": cannot be opened: " + (errno != 0 ? std::strerror(errno) : "out of memory")};
  std::array<std::uint8_t, 4> magic{};
  if (auto bad = read_exactly(file.get(), magic.data(), magic.size()); !bad.empty())
    return fault(path, bad + " (no idx header)");
  if (magic[0] != 0 || magic[1] != 0 || magic[2] != 8)
    return fault(path, "is not an idx file of bytes: it does not begin with 00 00 08");
  if (magic[3] != dimensions)
    return fault(path, "has " + std::to_string(magic[3]) + " dimensions where " + std::to_string(dimensions) + " were expected");
  idx_bytes out;
  std::int64_t total = 1;
  for (std::size_t i = 0; i < dimensions; ++i) {
    std::array<std::uint8_t, 4> size{};
    if (auto bad = read_exactly(file.get(), size.data(), size.size()); !bad.empty())
      return fault(path, bad + " (in the idx header)");
    const auto n = big_endian(size.data());
    if (n == 0 || n > max_bytes / total)
      return fault(path, "the header's size " + std::to_string(n) + " in dimension " + std::to_string(i)
                           + " is zero or makes the file larger than 1 GiB");
    total *= n;
    out.shape.push_back(n);
  }
  // Grows with what is really there, so that a header that lies takes no memory.
  while (static_cast<std::int64_t>(out.bytes.size()) < total) {
    const auto at = out.bytes.size();
    out.bytes.resize(at + static_cast<std::size_t>(std::min<std::int64_t>(total - static_cast<std::int64_t>(at), 1 << 24)));
    if (auto bad = read_exactly(file.get(), out.bytes.data() + at, out.bytes.size() - at); !bad.empty())
      return fault(path, bad + " (the header promises " + std::to_string(total) + " bytes)");
  }
  std::uint8_t more = 0;
  const int rest = gzread(file.get(), &more, 1);
  if (rest > 0)
    return fault(path, "is longer than the " + std::to_string(total) + " bytes that its header promises");
  if (rest < 0)
    return fault(path, "cannot be read: " + zlib_text(file.get()));
  if (gzclose_r(file.release()) != Z_OK)
    return fault(path, "ends too early (within the compressed data)");
  return out;
}

} // namespace troupe::gpu
