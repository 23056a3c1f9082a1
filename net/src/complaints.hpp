#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>

namespace troupe::net {

/// What strangers give the gatekeeper to say: a line for the first of its kind from each of them, and a count for the rest, so
/// that nobody can fill a log.
class complaints {
public:
  enum class kind : std::uint8_t { unknown, refused };

  /// What to log about the newest one; empty: nothing.
  std::string about(kind what, const std::string& who, const std::string& text);
  /// A line about all of them; empty: there is nothing to add.
  std::string summary() const;

private:
  static constexpr std::size_t max_lines = 32;
  std::set<std::pair<kind, std::string>> told_;
  std::uint64_t unknown_ = 0, refused_ = 0;
};

} // namespace troupe::net
