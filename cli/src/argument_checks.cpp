#include "argument_checks.hpp"

#include <array>
#include <charconv>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace troupe::cli {

namespace {

/// The whole text as a number; nullopt: it is none, or one that `T` cannot hold.
template <class T>
std::optional<T> number(std::string_view text) {
  T x{};
  const auto end = text.data() + text.size();
  const auto [stop, fault] = std::from_chars(text.data(), end, x);
  return fault == std::errc{} && stop == end ? std::optional{x} : std::nullopt;
}

std::string shown(double x) {
  std::array<char, 32> buffer;
  return {buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), x).ptr};
}

CLI::Validator validator(std::function<std::string(std::string&)> check) { return CLI::Validator{std::move(check), ""}; }

} // namespace

CLI::Validator whole_number(std::uint64_t low, std::uint64_t high) {
  return validator([low, high](std::string& text) {
    const auto x = number<std::uint64_t>(text);
    if (!x || *x < low || *x > high)
      return "must be a whole number from " + std::to_string(low) + " to " + std::to_string(high) + ", but is '" + text + "'";
    text = std::to_string(*x); // without the zeros in front that make C read it as octal
    return std::string{};
  });
}

CLI::Validator real_number(double low, double high) {
  return validator([low, high](const std::string& text) {
    const auto x = number<double>(text);
    return x && *x >= low && *x <= high // not so of nan
               ? std::string{}
               : "must be a number from " + shown(low) + " to " + shown(high) + ", but is '" + text + "'";
  });
}

CLI::Validator some_text() {
  return validator([](const std::string& text) { return text.empty() ? std::string{"must not be empty"} : std::string{}; });
}

CLI::Validator some_value() {
  return validator([](const std::string& text) {
    if (text.empty())
      return std::string{"must not be empty"};
    return text.front() == '-' ? "needs a value, and '" + text + "' is an option" : std::string{};
  });
}

} // namespace troupe::cli
