#include "text.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "character_width.hpp"

namespace troupe::cli {

namespace {

template <class... Args>
std::string formatted(const char* format, Args... args) {
  std::array<char, 64> text;
  auto n = std::snprintf(text.data(), text.size(), format, args...);
  return {text.data(), std::min<std::size_t>(static_cast<std::size_t>(std::max(n, 0)), text.size() - 1)};
}

} // namespace

std::size_t width_of(std::string_view text) {
  std::size_t columns = 0;
  each_character(text, [&](std::string_view, std::size_t width) {
    columns += width;
    return true;
  });
  return columns;
}

std::string shortened(std::string_view text, std::size_t width) {
  if (width_of(text) <= width)
    return std::string{text};
  if (width == 0)
    return {};
  std::size_t columns = 0, end = 0;
  each_character(text, [&](std::string_view character, std::size_t more) {
    if (columns + more > width - 1)
      return false;
    columns += more;
    end += character.size();
    return true;
  });
  return std::string{text.substr(0, end)} + "…";
}

std::string padded(std::string_view text, std::size_t width, bool right) {
  const auto used = width_of(text);
  const std::string blanks(width > used ? width - used : 0, ' ');
  return right ? blanks + std::string{text} : std::string{text} + blanks;
}

std::string metric_text(double x) {
  if (std::isnan(x))
    return "-";
  if (x == 0 || (std::abs(x) >= 0.001 && std::abs(x) < 10'000))
    return formatted("%.4f", x);
  return formatted("%.3g", x);
}

std::string seconds_text(double s) {
  if (!(s >= 0)) // a clock that went back, or no number
    return "-";
  if (s < 10)
    return formatted("%.2f s", s);
  if (s < 60)
    return formatted("%.1f s", s);
  auto whole = static_cast<unsigned long long>(std::min(s, 1e15));
  if (whole < 3600)
    return formatted("%llu min %02llu s", whole / 60, whole % 60);
  return formatted("%llu h %02llu min", whole / 3600, whole / 60 % 60);
}

std::string bytes_text(std::uint64_t n) {
  constexpr std::array units{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto x = static_cast<double>(n);
  std::size_t unit = 0;
  while (x >= 1024 && unit + 1 < units.size()) {
    x /= 1024;
    ++unit;
  }
  return formatted(unit == 0 ? "%.0f %s" : "%.1f %s", x, units[unit]);
}

std::string value_text(const core::value& x) {
  if (auto* d = std::get_if<double>(&x); d && std::isfinite(*d))
    return formatted("%.4g", *d);
  if (auto* s = std::get_if<std::string>(&x))
    return *s;
  return core::to_string(x);
}

std::string hyperparameters_text(const core::hyperparameters& xs) {
  std::string out;
  for (auto& [key, x] : xs)
    out += (out.empty() ? "" : " ") + key + "=" + value_text(x);
  return out;
}

std::string count_text(std::uint64_t n, std::string_view one, std::string_view many) {
  return std::to_string(n) + " " + std::string{n == 1 ? one : many};
}

void text_table::add(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  for (auto& cell : cells) // such as a failure's text of several lines
    std::ranges::replace_if(cell, [](unsigned char c) { return c < 0x20 || c == 0x7F; }, ' ');
  rows_.push_back(std::move(cells));
}

std::string text_table::str(std::size_t indent) const {
  std::vector<std::size_t> widths(columns_.size(), 0);
  for (auto& row : rows_)
    for (std::size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], width_of(row[i]));
  std::string out;
  auto line = [&](auto cell) {
    std::string text(indent, ' ');
    for (std::size_t i = 0, shown = 0; i < columns_.size(); ++i)
      if (widths[i] > 0)
        text += (shown++ ? "  " : "") + padded(cell(i), std::max(widths[i], width_of(columns_[i].title)), columns_[i].right);
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  };
  line([&](std::size_t i) { return columns_[i].title; });
  line([&](std::size_t i) { return std::string(std::max(widths[i], width_of(columns_[i].title)), '-'); });
  for (auto& row : rows_)
    line([&](std::size_t i) { return row[i]; });
  return out;
}

} // namespace troupe::cli
