#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "troupe/core/result.hpp"

namespace troupe::core {

/// One hyperparameter's value. `std::monostate` is JSON's null. An integer and a double of the same value are
/// different values: a search space says which one a key has.
using value = std::variant<std::monostate, bool, std::int64_t, double, std::string>;

/// As JSON prints it, except that doubles that are not finite print as "nan", "inf", "-inf".
std::string to_string(const value& x);

/// Numeric reading of an integer or double; `nullopt` for anything else.
std::optional<double> as_number(const value& x) noexcept;

/// JSON scalar to value; arrays, objects and integers beyond 64 signed bits are an error that names `where`.
/// The strings "nan", "inf" and "-inf" are read as the doubles that `to_json` writes so.
result<value> value_from_json(const nlohmann::json& j, std::string_view where);
/// A double that is not finite becomes the strings "nan", "inf", "-inf".
nlohmann::json to_json(const value& x);

/// A set of named values, ordered by name. Plain data; any thread may own one.
class hyperparameters {
public:
  using map_type = std::map<std::string, value, std::less<>>;

  hyperparameters() = default;
  hyperparameters(std::initializer_list<map_type::value_type> xs) : values_(xs) {}

  bool empty() const noexcept { return values_.empty(); }
  std::size_t size() const noexcept { return values_.size(); }
  auto begin() const noexcept { return values_.begin(); }
  auto end() const noexcept { return values_.end(); }

  /// Null if there is no such key.
  const value* find(std::string_view name) const noexcept;
  void set(std::string_view name, value x);
  void erase(std::string_view name);
  /// Takes over every value of `patch`, key by key.
  void update(const hyperparameters& patch);

  /// The value as a number; `fallback` if the key is absent or null; an error text in the result if it is
  /// there but is no number (or, for `integer`, has a fraction).
  result<double> number(std::string_view name, double fallback) const;
  result<std::int64_t> integer(std::string_view name, std::int64_t fallback) const;
  result<bool> boolean(std::string_view name, bool fallback) const;
  result<std::string> text(std::string_view name, std::string_view fallback) const;

  bool operator==(const hyperparameters&) const = default;

private:
  map_type values_;
};

/// `where` is a JSON pointer for error texts, such as "/trainers/0/hyperparameters". All faults are in one
/// error's text.
result<hyperparameters> hyperparameters_from_json(const nlohmann::json& j, std::string_view where);
nlohmann::json to_json(const hyperparameters& x);

/// Parses "lr=0.01" or "optimizer=adamw" (a value that is no JSON scalar is taken as a string). Blanks around
/// name and value are dropped; a quoted value is a JSON string.
result<std::pair<std::string, value>> parse_assignment(std::string_view text);

} // namespace troupe::core
