#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/value.hpp"

/// Numbers and tables as people read them.
namespace troupe::cli {

/// Columns that UTF-8 text takes on a terminal: two for each wide character (CJK, emoji), none for combining marks, joiners and control
/// characters, one for a byte that is no UTF-8. A sequence of emoji that are joined into one counts as its parts, as most terminals do.
std::size_t width_of(std::string_view text);
/// At most `width` columns; what is cut off is shown by "…". A mark stays with the character it belongs to.
std::string shortened(std::string_view text, std::size_t width);
std::string padded(std::string_view text, std::size_t width, bool right = false);

std::string metric_text(double x);               ///< "0.8712", "1.2e-05", "-" for NaN
std::string seconds_text(double s);              ///< "0.25 s", "12.3 s", "4 min 05 s", "2 h 03 min"
std::string bytes_text(std::uint64_t n);         ///< "512 B", "1.5 GiB"
std::string value_text(const core::value& x);    ///< doubles with four significant digits
std::string hyperparameters_text(const core::hyperparameters& xs); ///< "lr=0.01 momentum=0.9"
std::string count_text(std::uint64_t n, std::string_view one, std::string_view many); ///< "1 trainer", "3 trainers"

/// A table in plain text: a header, a rule, rows; columns as wide as their widest cell.
class text_table {
public:
  struct column {
    std::string title;
    bool right = false; ///< numbers
  };
  explicit text_table(std::vector<column> columns) : columns_(std::move(columns)) {}
  void add(std::vector<std::string> cells);
  /// Each line begins with `indent` blanks and ends with a newline. Columns in which every cell is empty are left out.
  std::string str(std::size_t indent = 0) const;

private:
  std::vector<column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

} // namespace troupe::cli
