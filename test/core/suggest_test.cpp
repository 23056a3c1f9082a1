#include "troupe/core/suggest.hpp"

#include <doctest/doctest.h>

using namespace troupe::core;

TEST_CASE("the edit distance counts insertions and deletions and replacements and swaps") {
  CHECK(edit_distance("", "", 5) == 0);
  CHECK(edit_distance("step", "step", 5) == 0);
  CHECK(edit_distance("step", "steps", 5) == 1);
  CHECK(edit_distance("step", "setp", 5) == 1);
  CHECK(edit_distance("step", "stop", 5) == 1);
  CHECK(edit_distance("kitten", "sitting", 5) == 3);
  CHECK(edit_distance("", "abc", 5) == 3);
}

TEST_CASE("an edit distance beyond the limit is not worked out") {
  CHECK(edit_distance("a", "abcdefgh", 2) == 3);
  CHECK(edit_distance("abcd", "efgh", 2) == 3);
}

TEST_CASE("the closest name forgives case and hyphens and a third of the letters") {
  std::vector<std::string> names{"stop_step", "hyperparameters", "seed", "slot"};
  CHECK(closest("Stop-Step", names) == "stop_step");
  CHECK(closest("stop_steps", names) == "stop_step");
  CHECK(closest("hyperparams", names) == "hyperparameters");
  CHECK(closest("sed", names) == "seed");
  CHECK(closest("optimizer", names) == "");
  CHECK(closest("x", names) == "");
  CHECK(suggestion("sede", names) == "; did you mean 'seed'?");
  CHECK(suggestion("optimizer", names) == "; known are stop_step, hyperparameters, seed, slot");
  CHECK(suggestion("x", std::vector<std::string>{}) == "");
}
