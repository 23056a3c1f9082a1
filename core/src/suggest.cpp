#include "troupe/core/suggest.hpp"

#include <algorithm>
#include <cstdint>

namespace troupe::core {

namespace {

std::string lower(std::string_view text) {
  std::string out{text};
  for (char& c : out)
    if (c >= 'A' && c <= 'Z')
      c = static_cast<char>(c - 'A' + 'a');
    else if (c == '-')
      c = '_';
  return out;
}

template <class Text>
std::string_view closest_of(std::string_view name, std::span<const Text> candidates) {
  std::string_view best;
  auto wanted = lower(name.substr(0, 100));
  auto nearest = SIZE_MAX;
  for (std::string_view c : candidates) {
    auto limit = std::max<std::size_t>(1, std::max(wanted.size(), c.size()) / 3);
    auto d = edit_distance(wanted, lower(c), limit);
    if (d <= limit && d < nearest) {
      nearest = d;
      best = c;
    }
  }
  return best;
}

template <class Text>
std::string suggestion_of(std::string_view name, std::span<const Text> candidates) {
  if (auto c = closest_of(name, candidates); !c.empty())
    return "; did you mean '" + std::string{c} + "'?";
  std::string out;
  for (std::string_view c : candidates) {
    out += out.empty() ? "; known are " : ", ";
    out += c;
  }
  return out;
}

} // namespace

std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t limit) {
  if ((a.size() > b.size() ? a.size() - b.size() : b.size() - a.size()) > limit)
    return limit + 1;
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j)
    last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return std::min(last[b.size()], limit + 1);
}

std::string_view closest(std::string_view name, std::span<const std::string> candidates) {
  return closest_of(name, candidates);
}
std::string_view closest(std::string_view name, std::span<const std::string_view> candidates) {
  return closest_of(name, candidates);
}
std::string suggestion(std::string_view name, std::span<const std::string> candidates) {
  return suggestion_of(name, candidates);
}
std::string suggestion(std::string_view name, std::span<const std::string_view> candidates) {
  return suggestion_of(name, candidates);
}

} // namespace troupe::core
