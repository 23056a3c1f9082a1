#include "option_reader.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include "troupe/core/suggest.hpp"

namespace troupe::gpu::internal {

using nlohmann::json;

namespace {

std::string shown(const json& j) {
  auto text = j.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

} // namespace

std::string pointer_token(std::string_view key) {
  std::string out;
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

std::string bound_text(double x) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.10g", x);
  return text.data();
}

option_reader::option_reader(const json& object, std::string where, std::vector<core::error>& faults)
  : object_(object), where_(std::move(where)), faults_(faults) {
  if (!object_.is_object())
    fault("", "must be an object, not " + shown(object_));
}

std::string option_reader::pointer(std::string_view key) const {
  return key.empty() ? where_ : where_ + "/" + pointer_token(key);
}

void option_reader::fault(std::string_view key, std::string text) {
  faults_.push_back({core::errc::invalid_argument, pointer(key) + ": " + std::move(text)});
}

const json* option_reader::find(std::string_view key) {
  if (std::find(known_.begin(), known_.end(), key) == known_.end())
    known_.emplace_back(key);
  if (!object_.is_object())
    return nullptr;
  auto i = object_.find(key);
  return i == object_.end() ? nullptr : &*i;
}

const json* option_reader::raw(std::string_view key) {
  return find(key);
}

bool option_reader::has(std::string_view key) const {
  return object_.is_object() && object_.contains(key);
}

std::int64_t option_reader::integer(std::string_view key, std::int64_t fallback, std::int64_t low, std::int64_t high) {
  const auto* j = find(key);
  if (j == nullptr)
    return fallback;
  const bool fits = j->is_number_integer()
                    && (!j->is_number_unsigned() || j->get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX));
  if (fits) {
    const auto x = j->get<std::int64_t>();
    if (x >= low && x <= high)
      return x;
  }
  fault(key, "must be a whole number from " + std::to_string(low) + " to " + std::to_string(high) + ", not " + shown(*j));
  return fallback;
}

double option_reader::number(std::string_view key, double fallback, double low, double high) {
  const auto* j = find(key);
  if (j == nullptr)
    return fallback;
  if (j->is_number()) {
    const auto x = j->get<double>();
    if (x >= low && x <= high)
      return x;
  }
  fault(key, "must be a number from " + bound_text(low) + " to " + bound_text(high) + ", not " + shown(*j));
  return fallback;
}

bool option_reader::boolean(std::string_view key, bool fallback) {
  const auto* j = find(key);
  if (j == nullptr)
    return fallback;
  if (j->is_boolean())
    return j->get<bool>();
  fault(key, "must be true or false, not " + shown(*j));
  return fallback;
}

std::string option_reader::text(std::string_view key, std::string_view fallback) {
  const auto* j = find(key);
  if (j == nullptr)
    return std::string(fallback);
  if (j->is_string())
    return j->get<std::string>();
  fault(key, "must be a text, not " + shown(*j));
  return std::string(fallback);
}

std::string option_reader::choice(std::string_view key, std::string_view fallback,
                                  std::initializer_list<std::string_view> allowed) {
  const auto* j = find(key);
  if (j == nullptr)
    return std::string(fallback);
  std::string list;
  for (auto x : allowed) {
    if (j->is_string() && j->get_ref<const std::string&>() == x)
      return std::string(x);
    list += (list.empty() ? "\"" : ", \"") + std::string(x) + "\"";
  }
  fault(key, "must be one of " + list + ", not " + shown(*j));
  return std::string(fallback);
}

std::vector<std::int64_t> option_reader::integers(std::string_view key, std::vector<std::int64_t> fallback, std::int64_t low,
                                                  std::int64_t high, std::size_t min_count, std::size_t max_count) {
  const auto* j = find(key);
  if (j == nullptr)
    return fallback;
  if (!j->is_array() || j->size() < min_count || j->size() > max_count) {
    const auto count = min_count == max_count ? std::to_string(min_count)
                                              : std::to_string(min_count) + " to " + std::to_string(max_count);
    fault(key, "must be an array of " + count + " whole numbers, not " + shown(*j));
    return fallback;
  }
  // Each element is read as a key of its own, so that its fault names its place.
  std::vector<std::int64_t> out;
  const auto before = faults_.size();
  for (std::size_t i = 0; i < j->size(); ++i) {
    const json holder = json::object({{std::to_string(i), (*j)[i]}});
    option_reader element(holder, pointer(key), faults_);
    out.push_back(element.integer(std::to_string(i), low, low, high));
  }
  return faults_.size() == before ? out : fallback;
}

void option_reader::finish() {
  if (!object_.is_object())
    return;
  const auto hint = [&](const std::string& key) {
    const auto near = core::closest(key, known_);
    return near.empty() ? std::string("known here: ") : "did you mean '" + std::string(near) + "'? Known here: ";
  };
  std::string list;
  for (const auto& k : known_)
    list += (list.empty() ? "" : ", ") + k;
  for (const auto& [key, unused] : object_.items())
    if (std::find(known_.begin(), known_.end(), key) == known_.end())
      fault(key, "unknown key; " + hint(key) + list);
}

} // namespace troupe::gpu::internal
