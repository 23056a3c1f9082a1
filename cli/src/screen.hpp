#pragma once

#include <iosfwd>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::cli {

/// A terminal with lines at its bottom that are redrawn in place, below text that stays. Without `live` (no terminal) the
/// lines are not shown. Thread-safe.
class screen {
public:
  screen(std::ostream& out, bool live) : out_(out), live_(live) {}
  /// As `clear`.
  ~screen();
  screen(const screen&) = delete;
  screen& operator=(const screen&) = delete;

  bool live() const noexcept { return live_; }
  /// Replaces the lines at the bottom. Each must fit the terminal's width.
  void show(std::vector<std::string> lines);
  /// Text that stays; whole lines.
  void print(std::string_view text);
  /// Takes the lines at the bottom away.
  void clear();

private:
  void draw(std::string_view text, const std::vector<std::string>& lines);

  std::ostream& out_;
  const bool live_;
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

struct terminal_size {
  std::size_t columns = 80, rows = 24;
};
/// Of standard output, now.
terminal_size size_of_terminal();
/// Standard output is a terminal that understands cursor movements.
bool is_live_terminal();

} // namespace troupe::cli
