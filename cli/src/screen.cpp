#include "screen.hpp"

#include <cstdlib>
#include <ostream>

#include <sys/ioctl.h>
#include <unistd.h>

namespace troupe::cli {

screen::~screen() { clear(); }

void screen::show(std::vector<std::string> lines) {
  std::lock_guard lock{mutex_};
  if (!live_)
    return;
  draw("", lines);
  lines_ = std::move(lines);
}

void screen::print(std::string_view text) {
  std::lock_guard lock{mutex_};
  draw(text, lines_);
}

void screen::clear() {
  std::lock_guard lock{mutex_};
  if (lines_.empty())
    return;
  draw("", {});
  lines_.clear();
}

void screen::draw(std::string_view text, const std::vector<std::string>& lines) {
  std::string all; // one write, and nothing cleared that is written again: it must not flicker
  bool over = !lines_.empty();
  if (over)
    all = "\033[" + std::to_string(lines_.size()) + "A\r";
  auto add = [&](char c) {
    if (c == '\n' && over)
      all += "\033[K";
    all += c;
  };
  for (char c : text)
    add(c);
  for (auto& line : lines) {
    all += line;
    add('\n');
  }
  if (over)
    all += "\033[J";
  out_ << all << std::flush;
}

terminal_size size_of_terminal() {
  winsize w{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) != 0 || w.ws_col == 0 || w.ws_row == 0)
    return {};
  return {w.ws_col, w.ws_row};
}

bool is_live_terminal() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDOUT_FILENO) == 1 && term && std::string_view{term} != "dumb";
}

} // namespace troupe::cli
