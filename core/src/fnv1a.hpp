#pragma once

#include <cstdint>
#include <string_view>

namespace troupe::core::internal {

/// FNV-1a, 64 bits (Fowler, Noll, Vo). No defence against forgery.
constexpr std::uint64_t fnv1a(std::string_view text) noexcept {
  std::uint64_t h = 0xcbf29ce484222325u;
  for (char c : text)
    h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return h;
}

} // namespace troupe::core::internal
