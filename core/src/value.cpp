#include "troupe/core/value.hpp"

#include <charconv>
#include <cmath>

#include <nlohmann/json.hpp>

#include "json_path.hpp"

namespace troupe::core {

namespace {

using json = nlohmann::json;

std::string_view text_of_nonfinite(double x) noexcept {
  if (std::isnan(x))
    return "nan";
  return x > 0 ? "inf" : "-inf";
}

std::optional<double> nonfinite_of_text(std::string_view text) noexcept {
  if (text == "nan")
    return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf")
    return std::numeric_limits<double>::infinity();
  if (text == "-inf")
    return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

error invalid(std::string text) { return {errc::invalid_argument, std::move(text)}; }

bool is_utf8(const std::string& text) {
  try {
    (void)json(text).dump();
    return true;
  } catch (const json::exception&) {
    return false;
  }
}

std::string_view trimmed(std::string_view text) noexcept {
  constexpr std::string_view blanks = " \t\r\n";
  const auto first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos)
    return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

error wrong_type(std::string_view name, const value& x, std::string_view expected) {
  return invalid("hyperparameter \"" + std::string{name} + "\" is " + to_string(x) + ", but must be " +
                 std::string{expected});
}

} // namespace

std::string to_string(const value& x) {
  if (const auto* d = std::get_if<double>(&x); d != nullptr && !std::isfinite(*d))
    return std::string{text_of_nonfinite(*d)};
  return to_json(x).dump(-1, ' ', false, json::error_handler_t::replace);
}

std::optional<double> as_number(const value& x) noexcept {
  if (const auto* i = std::get_if<std::int64_t>(&x))
    return static_cast<double>(*i);
  if (const auto* d = std::get_if<double>(&x))
    return *d;
  return std::nullopt;
}

result<value> value_from_json(const json& j, std::string_view where) {
  switch (j.type()) {
  case json::value_t::null:
    return value{};
  case json::value_t::boolean:
    return value{j.get<bool>()};
  case json::value_t::number_integer:
    return value{j.get<std::int64_t>()};
  case json::value_t::number_unsigned: {
    const auto u = j.get<std::uint64_t>();
    if (u > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      return invalid(std::string{where} + ": " + std::to_string(u) +
                     " does not fit into a signed 64-bit integer; write it with a decimal point");
    return value{static_cast<std::int64_t>(u)};
  }
  case json::value_t::number_float:
    return value{j.get<double>()};
  case json::value_t::string: {
    const auto& text = j.get_ref<const std::string&>();
    if (const auto d = nonfinite_of_text(text))
      return value{*d};
    return value{text};
  }
  default:
    return invalid(std::string{where} + ": must be null, a boolean, a number or a string, but is an " +
                   std::string{j.type_name()});
  }
}

json to_json(const value& x) {
  struct visitor {
    json operator()(std::monostate) const { return nullptr; }
    json operator()(bool b) const { return b; }
    json operator()(std::int64_t i) const { return i; }
    json operator()(double d) const {
      if (std::isfinite(d))
        return d;
      return std::string{text_of_nonfinite(d)};
    }
    json operator()(const std::string& s) const { return s; }
  };
  return std::visit(visitor{}, x);
}

const value* hyperparameters::find(std::string_view name) const noexcept {
  const auto it = values_.find(name);
  return it == values_.end() ? nullptr : &it->second;
}

void hyperparameters::set(std::string_view name, value x) {
  values_.insert_or_assign(std::string{name}, std::move(x));
}

void hyperparameters::erase(std::string_view name) {
  if (const auto it = values_.find(name); it != values_.end())
    values_.erase(it);
}

void hyperparameters::update(const hyperparameters& patch) {
  for (const auto& [name, x] : patch)
    values_.insert_or_assign(name, x);
}

result<double> hyperparameters::number(std::string_view name, double fallback) const {
  const value* x = find(name);
  if (x == nullptr || std::holds_alternative<std::monostate>(*x))
    return fallback;
  if (const auto d = as_number(*x))
    return *d;
  return wrong_type(name, *x, "a number");
}

result<std::int64_t> hyperparameters::integer(std::string_view name, std::int64_t fallback) const {
  const value* x = find(name);
  if (x == nullptr || std::holds_alternative<std::monostate>(*x))
    return fallback;
  if (const auto* i = std::get_if<std::int64_t>(x))
    return *i;
  // 2^63 is a double, 2^63 - 1 is not: the range is checked before the cast.
  if (const auto* d = std::get_if<double>(x);
      d != nullptr && std::trunc(*d) == *d && *d >= -0x1p63 && *d < 0x1p63)
    return static_cast<std::int64_t>(*d);
  return wrong_type(name, *x, "a whole number");
}

result<bool> hyperparameters::boolean(std::string_view name, bool fallback) const {
  const value* x = find(name);
  if (x == nullptr || std::holds_alternative<std::monostate>(*x))
    return fallback;
  if (const auto* b = std::get_if<bool>(x))
    return *b;
  return wrong_type(name, *x, "true or false");
}

result<std::string> hyperparameters::text(std::string_view name, std::string_view fallback) const {
  const value* x = find(name);
  if (x == nullptr || std::holds_alternative<std::monostate>(*x))
    return std::string{fallback};
  if (const auto* s = std::get_if<std::string>(x))
    return *s;
  return wrong_type(name, *x, "a string");
}

result<hyperparameters> hyperparameters_from_json(const json& j, std::string_view where) {
  if (!j.is_object())
    return invalid(std::string{where} + ": must be an object of hyperparameters, but is " + j.type_name());
  hyperparameters out;
  std::string faults;
  for (const auto& [name, x] : j.items()) {
    auto parsed = name.empty()
                      ? result<value>{invalid(std::string{where} + "/: a hyperparameter needs a name")}
                      : value_from_json(x, json_child(where, name));
    if (parsed)
      out.set(name, std::move(*parsed));
    else
      faults += (faults.empty() ? "" : "; ") + parsed.error().text;
  }
  if (!faults.empty())
    return invalid(std::move(faults));
  return out;
}

json to_json(const hyperparameters& x) {
  auto out = json::object();
  for (const auto& [name, v] : x)
    out[name] = to_json(v);
  return out;
}

result<std::pair<std::string, value>> parse_assignment(std::string_view text) {
  const auto eq = text.find('=');
  const auto name = trimmed(text.substr(0, eq));
  if (eq == std::string_view::npos || name.empty())
    return invalid("\"" + std::string{text} + "\" is no assignment; write name=value, such as lr=0.01");
  const std::string right{trimmed(text.substr(eq + 1))};
  if (right.empty())
    return invalid("'" + std::string{name} + "' is given no value; an empty text is " + std::string{name} + "=\"\"");
  if (!is_utf8(std::string{name}) || !is_utf8(right))
    return invalid("an assignment must be UTF-8 text");
  double number = 0;
  if (const auto x = std::from_chars(right.data(), right.data() + right.size(), number);
      x.ec == std::errc::result_out_of_range && x.ptr == right.data() + right.size())
    return invalid(std::string{name} + ": " + right + " is out of the range of numbers");
  auto j = json::parse(right, nullptr, false);
  if (j.is_discarded() || j.is_structured())
    j = right;
  auto parsed = value_from_json(j, name);
  if (!parsed)
    return parsed.error();
  return std::pair{std::string{name}, std::move(*parsed)};
}

} // namespace troupe::core
