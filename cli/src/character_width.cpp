#include "character_width.hpp"

#include <clocale>
#include <optional>
#include <utility>

#include <locale.h>
#include <wchar.h>

namespace troupe::cli {

namespace {

/// Lets `wcwidth` know all of Unicode on this thread, whatever the user's locale is.
class unicode_locale {
public:
  unicode_locale() {
    static const locale_t utf8 = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", locale_t{});
    if (utf8 != locale_t{})
      before_ = ::uselocale(utf8);
  }
  unicode_locale(const unicode_locale&) = delete;
  unicode_locale& operator=(const unicode_locale&) = delete;
  ~unicode_locale() {
    if (before_ != locale_t{})
      ::uselocale(before_);
  }
  /// False on a system without that locale.
  bool known() const noexcept { return before_ != locale_t{}; }

private:
  locale_t before_{};
};

/// The code point at the start of `text` and its bytes; nullopt: it is no UTF-8.
std::optional<std::pair<char32_t, std::size_t>> first_of(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  const std::size_t bytes = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if ((lead >= 0x80 && lead < 0xC2) || lead >= 0xF5 || bytes > text.size())
    return std::nullopt;
  char32_t c = bytes == 1 ? lead : lead & (0x7Fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xC0) != 0x80)
      return std::nullopt;
    c = c << 6 | (next & 0x3Fu);
  }
  return std::pair{c, bytes};
}

} // namespace

void each_character(std::string_view text, const std::function<bool(std::string_view, std::size_t)>& visit) {
  std::optional<unicode_locale> unicode; // most texts need none
  while (!text.empty()) {
    const auto found = first_of(text);
    const auto [c, bytes] = found.value_or(std::pair{char32_t{'?'}, std::size_t{1}});
    std::size_t columns = 1;
    if (c < 0x20 || c == 0x7F) {
      columns = 0;
    } else if (c >= 0x80) {
      if (!unicode)
        unicode.emplace();
      if (const int width = unicode->known() ? ::wcwidth(static_cast<wchar_t>(c)) : 1; width >= 0)
        columns = static_cast<std::size_t>(width);
      else // control characters, and what is newer than the C library's Unicode, where emoji are those of this block
        columns = c < 0xA0 ? 0 : c >= 0x1F300 && c < 0x1FB00 ? 2 : 1;
    }
    if (!visit(text.substr(0, bytes), columns))
      return;
    text.remove_prefix(bytes);
  }
}

} // namespace troupe::cli
