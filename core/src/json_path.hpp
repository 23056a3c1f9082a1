#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace troupe::core {

/// The JSON pointer (RFC 6901) of a member of the object at `where`.
inline std::string json_child(std::string_view where, std::string_view key) {
  std::string out{where};
  out += '/';
  for (char c : key) {
    if (c == '~')
      out += "~0";
    else if (c == '/')
      out += "~1";
    else
      out += c;
  }
  return out;
}

/// The JSON pointer of an element of the array at `where`.
inline std::string json_child(std::string_view where, std::size_t index) {
  return std::string{where} + '/' + std::to_string(index);
}

} // namespace troupe::core
