#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "troupe/core/checkpoint.hpp"
#include "troupe/core/result.hpp"

/// The bytes between tensor client and server. All numbers little endian.
///
///   client                                            server
///   hello    magic u32, version u16, 0 u16, token[32]
///                                                     welcome  magic u32, version u16, status u16,
///                                                              text_bytes u32, 0 u32; text (why it was refused)
///   request  1 u32, 0 u32, id u64, accept_bytes u64
///                                                     answer   status u16, 0 u16, header_bytes u32, chunk_bytes u32, 0 u32,
///                                                              data_bytes u64, checksum u64 (of the 24 bytes before it
///                                                              and of the header)
///                                                     header   names, types, shapes, texts (or why it was refused)
///                                                     chunk    chunk_bytes (the last: the rest) of tensor data,
///                                                              checksum u64 of them; repeated
///   next request …
namespace troupe::net::wire {

inline constexpr std::uint32_t magic = 0x54505254; // "TRPT"
inline constexpr std::uint16_t version = 1;
inline constexpr std::size_t hello_bytes = 40, welcome_bytes = 16, request_bytes = 24, answer_bytes = 32;
inline constexpr std::uint32_t fetch_request = 1;
inline constexpr std::uint32_t min_chunk_bytes = 64u << 10, max_chunk_bytes = 16u << 20;
inline constexpr std::uint32_t max_header_bytes = 16u << 20, max_text_bytes = 4096;
inline constexpr std::uint32_t max_tensors = 1u << 20, max_rank = 16;

enum class status : std::uint16_t { ok, wrong_version, wrong_token, busy, not_found, too_large, failed };

/// XXH64 as specified in xxHash's doc/xxhash_spec.md (Collet, version 0.2.0): some 10 GB/s on one core, where FNV-1a, byte by
/// byte, makes less than 1.
class checksum {
public:
  explicit checksum(std::uint64_t seed = 0) noexcept;
  void add(std::span<const std::byte> bytes) noexcept;
  std::uint64_t value() const noexcept;

private:
  std::uint64_t seed_, total_ = 0;
  std::array<std::uint64_t, 4> lane_;
  std::array<std::byte, 32> tail_;
  std::size_t tail_size_ = 0;
};

/// Appends numbers and texts.
class writer {
public:
  explicit writer(std::vector<std::byte>& out) : out_(out) {}
  template <class T>
  void number(T x) {
    for (std::size_t i = 0; i < sizeof(T); ++i)
      out_.push_back(static_cast<std::byte>(static_cast<std::uint64_t>(x) >> (8 * i)));
  }
  void text(std::string_view x);

private:
  std::vector<std::byte>& out_;
};

/// Takes numbers and texts off; after the first thing that is not there, `good()` is false and all else is zero.
class reader {
public:
  explicit reader(std::span<const std::byte> in) : in_(in) {}
  template <class T>
  T number() {
    std::uint64_t x = 0;
    const auto b = take(sizeof(T));
    for (std::size_t i = 0; i < b.size(); ++i)
      x |= static_cast<std::uint64_t>(b[i]) << (8 * i);
    return static_cast<T>(x);
  }
  std::string text();
  bool good() const noexcept { return good_; }
  std::size_t left() const noexcept { return in_.size(); }

private:
  std::span<const std::byte> take(std::size_t n);
  std::span<const std::byte> in_;
  bool good_ = true;
};

/// Everything of a checkpoint but the tensors' bytes.
std::vector<std::byte> encode_header(const core::checkpoint& x);

/// What `encode_header` wrote; the tensors' bytes are still to come.
struct blob_header {
  std::vector<core::checkpoint::tensor> tensors; ///< bytes empty
  std::vector<std::uint64_t> sizes;              ///< of each tensor, in bytes
  std::vector<std::pair<std::string, std::string>> texts;
};
/// Trusts nothing; `data_bytes` must be the sum of the tensors' sizes.
core::result<blob_header> decode_header(std::span<const std::byte> bytes, std::uint64_t data_bytes);

} // namespace troupe::net::wire
