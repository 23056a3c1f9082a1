#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "troupe/core/result.hpp"

namespace troupe::core::internal {

using json = nlohmann::json;

/// "<pointer>: <text>" as an `invalid_argument`.
error fault_at(std::string_view where, std::string_view text);

/// "a number", "an object", … for error texts.
std::string_view kind_of(const json& j) noexcept;

/// Parses JSON with // and /* */ comments. What is no JSON is one fault with line and column; a key that occurs twice in an
/// object, or nesting deeper than 64, is a fault with its pointer.
std::optional<json> parse_document(std::string_view text, std::vector<error>& faults);

/// Reads an object key by key and gathers every fault with its JSON pointer. A fault leaves the target unchanged, so that
/// reading goes on and all faults are reported together. Keys nobody asked for are faults (`finish`).
class object_reader {
public:
  object_reader(const json& j, std::string where, std::vector<error>& faults);

  bool is_object() const noexcept { return object_ != nullptr; }
  /// Null if absent.
  const json* raw(std::string_view key);
  bool has(std::string_view key) { return raw(key) != nullptr; }

  void text(std::string_view key, std::string& into);
  void boolean(std::string_view key, bool& into);
  /// A whole number from `low` to `high`; "10.0" and "1e4" are whole numbers too.
  template <class UInt>
  void whole(std::string_view key, UInt& into, std::uint64_t low, std::uint64_t high) {
    if (auto* j = raw(key))
      if (auto x = whole_number(*j, pointer(key), low, high))
        into = static_cast<UInt>(*x);
  }
  /// `above`: `low` itself is out of range.
  void real(std::string_view key, double& into, double low, double high, bool above = false);

  std::optional<std::uint64_t> whole_number(const json& j, const std::string& where, std::uint64_t low, std::uint64_t high);
  void fault(std::string_view key, std::string_view text);
  std::string pointer(std::string_view key) const;
  void finish();

private:
  const json* object_ = nullptr;
  std::string where_;
  std::vector<error>& faults_;
  std::vector<std::string_view> known_;
};

} // namespace troupe::core::internal
