#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

namespace troupe::cli {

/// Calls `visit(character, columns)` for each code point of UTF-8 text, with its bytes and the columns that it takes on a terminal, until
/// it returns false. A byte that is no UTF-8 is a character of one column.
void each_character(std::string_view text, const std::function<bool(std::string_view character, std::size_t columns)>& visit);

} // namespace troupe::cli
