#include "text.hpp"

#include <doctest/doctest.h>

#include <limits>

using namespace troupe;
using namespace troupe::cli;

TEST_CASE("texts are measured and cut by characters and not by bytes") {
  CHECK(width_of("abc") == 3);
  CHECK(width_of("\xC3\xA9t\xC3\xA9") == 3);
  CHECK(shortened("abcdef", 6) == "abcdef");
  CHECK(shortened("abcdef", 4) == "abc…");
  CHECK(shortened("\xC3\xA9\xC3\xA9\xC3\xA9", 2) == "\xC3\xA9…");
  CHECK(shortened("abc", 0) == "");
  CHECK(padded("\xC3\xA9", 3) == "\xC3\xA9  ");
  CHECK(padded("12", 4, true) == "  12");
  CHECK(padded("12345", 4) == "12345");
}

TEST_CASE("texts are measured and cut by the columns they take on a terminal") {
  CHECK(width_of("\u4e2d\u6587") == 4);     // CJK
  CHECK(width_of("\uff21") == 2);           // a full-width letter
  CHECK(width_of("\U0001F600") == 2);       // an emoji
  CHECK(width_of("\U0001FAE8") == 2);       // of Unicode 15, newer than some C libraries
  CHECK(width_of("e\u0301") == 1);          // with a combining accent
  CHECK(width_of("a\u200bb\ufe0f") == 2);   // of no width
  CHECK(width_of("\t\x1b\x7f\u009b") == 0); // control characters
  CHECK(width_of("\xff\xc3(\xe4\xb8") == 5); // no UTF-8: a column for each byte
  CHECK(width_of("") == 0);
  CHECK(shortened("\u4e2d\u6587", 4) == "\u4e2d\u6587");
  CHECK(shortened("\u4e2d\u6587", 3) == "\u4e2d…");
  CHECK(shortened("\u4e2d\u6587", 2) == "…"); // half a character cannot be shown
  CHECK(shortened("ae\u0301bcd", 3) == "ae\u0301…");
  CHECK(padded("\U0001F600", 4) == "\U0001F600  ");
  CHECK(padded("\u4e2d", 1) == "\u4e2d");
}

TEST_CASE("columns stay in line under wide characters and line ends") {
  text_table t{{{"trainer"}, {"step", true}}};
  t.add({"\u6df1\u5c64\u5b66\u7fd2\U0001F680", "7"});
  t.add({"e\u0301t\u00e9", "12"});
  t.add({"two\nlines", "1"});
  CHECK(t.str() == "trainer     step\n"
                   "----------  ----\n"
                   "\u6df1\u5c64\u5b66\u7fd2\U0001F680     7\n"
                   "e\u0301t\u00e9           12\n"
                   "two lines      1\n");
}

TEST_CASE("metrics have four decimals unless they are very large or small") {
  CHECK(metric_text(0.87123) == "0.8712");
  CHECK(metric_text(0) == "0.0000");
  CHECK(metric_text(1e-5) == "1e-05");
  CHECK(metric_text(123456) == "1.23e+05");
  CHECK(metric_text(-2.5) == "-2.5000");
  CHECK(metric_text(std::numeric_limits<double>::quiet_NaN()) == "-");
  CHECK(metric_text(std::numeric_limits<double>::infinity()) == "inf");
}

TEST_CASE("times are told in the units that fit") {
  CHECK(seconds_text(0.254) == "0.25 s");
  CHECK(seconds_text(12.34) == "12.3 s");
  CHECK(seconds_text(245) == "4 min 05 s");
  CHECK(seconds_text(7380) == "2 h 03 min");
  CHECK(seconds_text(-1) == "-");
  CHECK(seconds_text(std::numeric_limits<double>::quiet_NaN()) == "-");
  CHECK(seconds_text(std::numeric_limits<double>::infinity()) != "");
}

TEST_CASE("sizes are told in powers of 1024") {
  CHECK(bytes_text(0) == "0 B");
  CHECK(bytes_text(1023) == "1023 B");
  CHECK(bytes_text(1536) == "1.5 KiB");
  CHECK(bytes_text(std::uint64_t{5} << 30) == "5.0 GiB");
  CHECK(bytes_text(UINT64_MAX) == "16.0 EiB");
}

TEST_CASE("hyperparameters are told as they would be pushed") {
  CHECK(hyperparameters_text({{"lr", 0.0123456}, {"n", std::int64_t{3}}, {"opt", "adam"}}) == "lr=0.01235 n=3 opt=adam");
  CHECK(hyperparameters_text({}) == "");
}

TEST_CASE("a table aligns its columns and leaves empty ones out") {
  text_table t{{{"name"}, {"step", true}, {"never"}, {"note"}}};
  t.add({"a", "10", "", "first"});
  t.add({"longer", "2000", "", ""});
  CHECK(t.str(2) == "  name    step  note\n"
                    "  ------  ----  -----\n"
                    "  a         10  first\n"
                    "  longer  2000\n");
}
