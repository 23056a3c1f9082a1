#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "troupe/core/result.hpp"

namespace troupe::net {

/// The shared secret of one run: 256 random bits that a peer shows before anything else is done for it.
///
/// Plain data. It never goes on a command line, into a log or into an actor message's text.
class token {
public:
  static constexpr std::size_t size = 32;
  using bytes_type = std::array<std::uint8_t, size>;

  /// All zero: "none". Servers refuse to start with it.
  token() = default;
  explicit token(const bytes_type& bytes) : bytes_(bytes) {}

  /// From the kernel's generator. Throws `std::system_error` if that fails.
  static token random();
  /// Exactly 64 hexadecimal digits; the error does not repeat the text.
  static core::result<token> from_hex(std::string_view text);

  std::string to_hex() const;
  const bytes_type& bytes() const noexcept { return bytes_; }
  bool empty() const noexcept;
  /// Takes the same time wherever the two differ, so that a guess cannot be improved byte by byte.
  bool matches(const token& other) const noexcept;

private:
  bytes_type bytes_{};
};

} // namespace troupe::net
