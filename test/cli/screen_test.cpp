#include "screen.hpp"

#include <doctest/doctest.h>

#include <sstream>

using namespace troupe::cli;

TEST_CASE("lines at the bottom are drawn over and cleared at the end") {
  std::ostringstream out;
  {
    screen s{out, true};
    s.show({"one", "two"});
    CHECK(out.str() == "one\ntwo\n");
    out.str("");
    s.show({"ONE"});
    CHECK(out.str() == "\033[2A\rONE\033[K\n\033[J");
    out.str("");
    s.print("stays\n");
    CHECK(out.str() == "\033[1A\rstays\033[K\nONE\033[K\n\033[J");
    out.str("");
  }
  CHECK(out.str() == "\033[1A\r\033[J");
}

TEST_CASE("without a terminal only the text that stays is printed") {
  std::ostringstream out;
  {
    screen s{out, false};
    s.show({"one"});
    s.print("stays\n");
  }
  CHECK(out.str() == "stays\n");
}
