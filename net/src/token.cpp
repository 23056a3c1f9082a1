#include "troupe/net/token.hpp"

#include <cerrno>
#include <system_error>

#include <sys/random.h>

namespace troupe::net {

token token::random() {
  bytes_type bytes;
  std::size_t have = 0;
  while (have < bytes.size()) {
    const auto n = ::getrandom(bytes.data() + have, bytes.size() - have, 0);
    if (n > 0)
      have += static_cast<std::size_t>(n);
    else if (errno != EINTR)
      throw std::system_error(errno, std::generic_category(), "getrandom");
  }
  return token{bytes};
}

core::result<token> token::from_hex(std::string_view text) {
  const auto digit = [](char c) -> int {
    if (c >= '0' && c <= '9')
      return c - '0';
    if (c >= 'a' && c <= 'f')
      return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
      return c - 'A' + 10;
    return -1;
  };
  if (text.size() != 2 * size)
    return core::error{core::errc::invalid_argument,
                       "a token has 64 hexadecimal digits, this text has " + std::to_string(text.size())
                         + " characters"};
  bytes_type bytes;
  for (std::size_t i = 0; i < size; ++i) {
    const int hi = digit(text[2 * i]), lo = digit(text[2 * i + 1]);
    if (hi < 0 || lo < 0)
      return core::error{core::errc::invalid_argument,
                         "a token has 64 hexadecimal digits, this text has something else"};
    bytes[i] = static_cast<std::uint8_t>(hi * 16 + lo);
  }
  return token{bytes};
}

std::string token::to_hex() const {
  static constexpr char digits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * size);
  for (const auto b : bytes_) {
    text += digits[b >> 4];
    text += digits[b & 15];
  }
  return text;
}

bool token::empty() const noexcept {
  return matches(token{});
}

bool token::matches(const token& other) const noexcept {
  volatile std::uint8_t differ = 0; // volatile: the loop must not end early
  for (std::size_t i = 0; i < size; ++i)
    differ = differ | (bytes_[i] ^ other.bytes_[i]);
  return differ == 0;
}

} // namespace troupe::net
