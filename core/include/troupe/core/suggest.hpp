#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::core {

/// Number of insertions, deletions, replacements and swaps of neighbours that turn `a` into `b` (optimal string alignment
/// distance), but at most `limit + 1`.
std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t limit);

/// The candidate that `name` was probably meant to be; empty if none is near (a third of the letters may differ, case does
/// not count). The first of equals.
std::string_view closest(std::string_view name, std::span<const std::string> candidates);
std::string_view closest(std::string_view name, std::span<const std::string_view> candidates);

/// "; did you mean 'x'?", or else "; known are a, b, c" (empty without candidates): the end of an error text about an
/// unknown name.
std::string suggestion(std::string_view name, std::span<const std::string> candidates);
std::string suggestion(std::string_view name, std::span<const std::string_view> candidates);

} // namespace troupe::core
