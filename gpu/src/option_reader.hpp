#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "troupe/core/result.hpp"

namespace troupe::gpu::internal {

/// Reads a JSON object key by key and collects every fault with its JSON pointer. A fault yields the fallback, so that
/// reading goes on and all faults are reported together. Keys that nobody asked for are faults (`finish`).
class option_reader {
public:
  option_reader(const nlohmann::json& object, std::string where, std::vector<core::error>& faults);

  std::int64_t integer(std::string_view key, std::int64_t fallback, std::int64_t low, std::int64_t high);
  double number(std::string_view key, double fallback, double low, double high);
  bool boolean(std::string_view key, bool fallback);
  std::string text(std::string_view key, std::string_view fallback);
  /// One of `allowed`; the fallback is always allowed.
  std::string choice(std::string_view key, std::string_view fallback, std::initializer_list<std::string_view> allowed);
  std::vector<std::int64_t> integers(std::string_view key, std::vector<std::int64_t> fallback, std::int64_t low,
                                     std::int64_t high, std::size_t min_count, std::size_t max_count);
  /// The value, or null if absent; for what the other readers do not cover.
  const nlohmann::json* raw(std::string_view key);
  bool has(std::string_view key) const;

  /// Adds a fault at `key` (empty: the object itself).
  void fault(std::string_view key, std::string text);
  std::string pointer(std::string_view key) const;
  std::vector<core::error>& faults() noexcept { return faults_; }

  /// Reports the keys that were never asked for, each with the list of those that were.
  void finish();

private:
  const nlohmann::json* find(std::string_view key);

  const nlohmann::json& object_;
  std::string where_;
  std::vector<core::error>& faults_;
  std::vector<std::string> known_;
};

/// A key as a part of a JSON pointer (RFC 6901: ~ is ~0, / is ~1).
std::string pointer_token(std::string_view key);

/// A bound as people write it: 10, 0.5, 1e-06.
std::string bound_text(double x);

} // namespace troupe::gpu::internal
