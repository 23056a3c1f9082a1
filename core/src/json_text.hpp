#pragma once

#include <cstdint>
#include <string>
#include <string_view>

/// JSON written straight into a string: for what is written too often to build a document first.
namespace troupe::core::internal {

/// Length of the well-formed UTF-8 prefix of `text` (`text.size()` if it is all well-formed).
std::size_t valid_utf8_prefix(std::string_view text) noexcept;
/// `text` with every malformed byte replaced by U+FFFD.
std::string repair_utf8(std::string_view text);

/// Appends `text` in quotes, escaped; malformed UTF-8 is replaced as above.
void append_json_string(std::string& out, std::string_view text);
void append_json(std::string& out, std::uint64_t x);
void append_json(std::string& out, std::int64_t x);
/// The shortest text that reads back as the same double; "nan", "inf" and "-inf" in quotes. Always recognisable as a
/// number with a fraction ("1.0"), so that it reads back as a double.
void append_json(std::string& out, double x);

} // namespace troupe::core::internal
