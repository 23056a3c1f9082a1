#include "json_text.hpp"

#include <array>
#include <charconv>
#include <cmath>

namespace troupe::core::internal {

namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";

/// Length of the well-formed sequence at the start of `s` (RFC 3629, table 3-7 of the Unicode standard); 0: malformed.
std::size_t sequence_length(std::string_view s) noexcept {
  auto at = [&](std::size_t i) { return static_cast<unsigned char>(s[i]); };
  auto within = [&](std::size_t i, unsigned lo, unsigned hi) { return i < s.size() && at(i) >= lo && at(i) <= hi; };
  unsigned c = at(0);
  if (c < 0x80)
    return 1;
  if (c >= 0xC2 && c <= 0xDF)
    return within(1, 0x80, 0xBF) ? 2 : 0;
  if (c >= 0xE0 && c <= 0xEF)
    return within(1, c == 0xE0 ? 0xA0 : 0x80, c == 0xED ? 0x9F : 0xBF) && within(2, 0x80, 0xBF) ? 3 : 0;
  if (c >= 0xF0 && c <= 0xF4)
    return within(1, c == 0xF0 ? 0x90 : 0x80, c == 0xF4 ? 0x8F : 0xBF) && within(2, 0x80, 0xBF) && within(3, 0x80, 0xBF)
               ? 4
               : 0;
  return 0;
}

template <class T>
void append_chars(std::string& out, T x) {
  std::array<char, 32> buffer;
  auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), x).ptr;
  out.append(buffer.data(), end);
}

} // namespace

std::size_t valid_utf8_prefix(std::string_view text) noexcept {
  std::size_t i = 0;
  while (i < text.size()) {
    auto n = sequence_length(text.substr(i));
    if (n == 0)
      break;
    i += n;
  }
  return i;
}

std::string repair_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (;;) {
    auto n = valid_utf8_prefix(text);
    out.append(text.substr(0, n));
    if (n == text.size())
      return out;
    out.append(replacement);
    text.remove_prefix(n + 1);
  }
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (std::size_t i = 0; i < text.size();) {
    unsigned char c = static_cast<unsigned char>(text[i]);
    if (c >= 0x80) {
      auto n = sequence_length(text.substr(i));
      out.append(n == 0 ? replacement : text.substr(i, n));
      i += n == 0 ? 1 : n;
      continue;
    }
    ++i;
    switch (c) {
    case '"': out += "\\\""; break;
    case '\\': out += "\\\\"; break;
    case '\n': out += "\\n"; break;
    case '\r': out += "\\r"; break;
    case '\t': out += "\\t"; break;
    default:
      if (c < 0x20) {
        constexpr std::string_view digits = "0123456789abcdef";
        out += "\\u00";
        out += digits[c >> 4];
        out += digits[c & 15];
      } else {
        out += static_cast<char>(c);
      }
    }
  }
  out += '"';
}

void append_json(std::string& out, std::uint64_t x) { append_chars(out, x); }
void append_json(std::string& out, std::int64_t x) { append_chars(out, x); }

void append_json(std::string& out, double x) {
  if (!std::isfinite(x)) {
    out += std::isnan(x) ? "\"nan\"" : x > 0 ? "\"inf\"" : "\"-inf\"";
    return;
  }
  auto begin = out.size();
  append_chars(out, x);
  if (out.find_first_of(".e", begin) == std::string::npos)
    out += ".0";
}

} // namespace troupe::core::internal
