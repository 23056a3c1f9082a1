#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <stdexcept>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "troupe/core/search_space.hpp"

using namespace troupe::core;
using json = nlohmann::json;

namespace {

constexpr int rounds = 1000000;
constexpr auto int_min = std::numeric_limits<std::int64_t>::min();
constexpr auto int_max = std::numeric_limits<std::int64_t>::max();

search_space space_of(const char* text) {
  auto made = search_space::from_json(json::parse(text), "/search_space");
  if (const auto* faults = std::get_if<std::vector<error>>(&made))
    for (const auto& f : *faults)
      FAIL(f.text);
  return std::get<search_space>(made);
}

std::vector<error> faults_of(const char* text) {
  auto made = search_space::from_json(json::parse(text), "/search_space");
  auto* faults = std::get_if<std::vector<error>>(&made);
  return faults == nullptr ? std::vector<error>{} : *faults;
}

/// How often a perturbation of `from` went down, stood still and went up.
struct moves {
  int down = 0, still = 0, up = 0;
};

moves count_moves(const search_space& space, double from, value start, int n, double factor = 1.2) {
  moves out;
  random_stream rng{1, "moves"};
  for (int i = 0; i < n; ++i) {
    const auto hp = space.perturb({{"x", start}}, {factor, 0}, rng);
    const double to = *as_number(*hp.find("x"));
    ++(to < from ? out.down : to > from ? out.up : out.still);
  }
  return out;
}

} // namespace

TEST_CASE("row 16: a million perturbations of a uniform value stay in bounds") {
  const auto space = space_of(R"({"x": {"type": "uniform", "low": 0, "high": 0.95}})");
  random_stream rng{1, "row 16"};
  hyperparameters hp{{"x", 0.9}};
  for (int i = 0; i < rounds; ++i) {
    hp = space.perturb(hp, {1.2, 0.1}, rng);
    const double x = std::get<double>(*hp.find("x"));
    REQUIRE((x >= 0 && x <= 0.95));
  }
}

TEST_CASE("row 16: a million perturbations of a log uniform value stay in bounds") {
  const auto space = space_of(R"({"x": {"type": "log_uniform", "low": 1e-4, "high": 0.1}})");
  random_stream rng{1, "row 16"};
  hyperparameters hp{{"x", 0.05}};
  for (int i = 0; i < rounds; ++i) {
    hp = space.perturb(hp, {1.5, 0.01}, rng);
    const double x = std::get<double>(*hp.find("x"));
    REQUIRE((x >= 1e-4 && x <= 0.1));
  }
}

TEST_CASE("row 16: a million perturbations of an integer stay in bounds and never stand still") {
  for (const char* text : {R"({"x": {"type": "integer", "low": -3, "high": 64}})",
                           R"({"x": {"type": "integer", "low": 1, "high": 1000, "log": true}})"}) {
    const auto space = space_of(text);
    const auto d = std::get<integer_domain>(space.domains().begin()->second);
    random_stream rng{1, "row 16"};
    hyperparameters hp{{"x", std::int64_t{1}}};
    for (int i = 0; i < rounds; ++i) {
      const auto before = std::get<std::int64_t>(*hp.find("x"));
      hp = space.perturb(hp, {1.2, 0}, rng);
      const auto x = std::get<std::int64_t>(*hp.find("x"));
      REQUIRE((x >= d.low && x <= d.high && x != before));
    }
  }
}

TEST_CASE("row 16: a million perturbations of a quantised value stay on its grid and never stand still") {
  const auto space = space_of(R"({"x": {"type": "uniform", "low": 0.1, "high": 0.95, "quantum": 0.1}})");
  std::set<double> grid;
  for (int k = 0; k < 9; ++k)
    grid.insert(0.1 + k * 0.1);
  random_stream rng{1, "row 16"};
  hyperparameters hp{{"x", 0.5}};
  std::set<double> seen;
  for (int i = 0; i < rounds; ++i) {
    const auto before = std::get<double>(*hp.find("x"));
    hp = space.perturb(hp, {1.2, 0}, rng);
    const double x = std::get<double>(*hp.find("x"));
    REQUIRE((grid.contains(x) && x != before));
    seen.insert(x);
  }
  CHECK(seen == grid);
}

TEST_CASE("row 17: a choice of null text and numbers is perturbed into its members only") {
  const auto space = space_of(R"({"x": {"type": "choice", "values": [null, "sgd", 3, 0.5]}})");
  const std::set<value> members{value{}, "sgd", std::int64_t{3}, 0.5};
  random_stream rng{1, "row 17"};
  for (const auto& from : members) {
    std::set<value> reached;
    for (int i = 0; i < 1000; ++i)
      reached.insert(*space.perturb({{"x", from}}, {1.2, 0}, rng).find("x"));
    auto others = members;
    others.erase(from);
    CHECK(reached == others);
  }
  random_stream draws{1, "row 17"};
  std::set<value> drawn;
  for (int i = 0; i < 1000; ++i)
    drawn.insert(*space.perturb({{"x", "sgd"}}, {1.2, 1}, draws).find("x"));
  CHECK(drawn == members);
}

TEST_CASE("row 17: only an ordered choice moves to its neighbours") {
  const auto space = space_of(R"({"x": {"type": "choice", "values": [16, 32, 64, 128], "ordered": true}})");
  random_stream rng{1, "row 17"};
  const auto reached = [&](std::int64_t from) {
    std::set<value> out;
    for (int i = 0; i < 200; ++i)
      out.insert(*space.perturb({{"x", from}}, {1.2, 0}, rng).find("x"));
    return out;
  };
  CHECK(reached(16) == std::set<value>{std::int64_t{32}});
  CHECK(reached(64) == std::set<value>{std::int64_t{32}, std::int64_t{128}});
  CHECK(reached(128) == std::set<value>{std::int64_t{64}});
}

TEST_CASE("row 18: faulty bounds are refused together and each text names its key") {
  const auto faults = faults_of(R"({
    "reversed": {"type": "uniform", "low": 1, "high": 0},
    "reversed_whole": {"type": "integer", "low": 9, "high": 8},
    "nan": {"type": "uniform", "low": "nan", "high": 1},
    "infinite": {"type": "log_uniform", "low": 1, "high": "inf"},
    "zero": {"type": "log_uniform", "low": 0, "high": 1},
    "zero_whole": {"type": "integer", "low": 0, "high": 8, "log": true},
    "fraction": {"type": "integer", "low": 0.5, "high": 8},
    "open": {"type": "uniform", "low": 0},
    "empty": {"type": "choice", "values": []},
    "none": {"type": "choice"},
    "twice": {"type": "choice", "values": [1, 2, 1.0]},
    "nested": {"type": "choice", "values": [[1]]},
    "not_a_number": {"type": "choice", "values": ["nan"]},
    "coarse": {"type": "uniform", "low": 0, "high": 1, "quantum": 2},
    "backward": {"type": "uniform", "low": 0, "high": 1, "quantum": -0.1},
    "fine": {"type": "uniform", "low": 0, "high": 1, "quantum": 1e-300},
    "wide": {"type": "uniform", "low": -1e308, "high": 1e308},
    "stray": {"type": "uniform", "low": 0, "high": 1, "log": true},
    "unknown": {"type": "normal", "mean": 0},
    "flag": {"type": "choice", "values": [1], "ordered": 1},
    "text": {"type": "uniform", "low": "small", "high": 1},
    "plain": 3, "bare": {}, "a/b": {"type": "uniform", "low": 2, "high": 1}})");
  for (const char* at : {"reversed",
                         "reversed_whole",
                         "nan/low",
                         "infinite/high",
                         "zero/low",
                         "zero_whole/low",
                         "fraction/low",
                         "open/high",
                         "empty/values",
                         "none/values",
                         "twice/values/2",
                         "nested/values/0",
                         "not_a_number/values/0",
                         "coarse/quantum",
                         "backward/quantum",
                         "fine/quantum",
                         "wide",
                         "stray/log",
                         "unknown/type",
                         "flag/ordered",
                         "text/low",
                         "plain",
                         "bare",
                         "a~1b"}) {
    CAPTURE(at);
    const auto start = "/search_space/" + std::string{at} + ": ";
    CHECK(std::count_if(faults.begin(), faults.end(),
                        [&](const error& f) { return f.text.starts_with(start); }) == 1);
  }
  CHECK(faults.size() == 24);
  CHECK(faults_of("[]").size() == 1);
  CHECK(faults_of(R"({"": {"type": "choice", "values": [1]}})").size() == 1);
}

TEST_CASE("an integer can move both ways from any value of its domain") {
  for (const bool log : {false, true}) {
    const auto space = space_of(log ? R"({"x": {"type": "integer", "low": 1, "high": 40, "log": true}})"
                                    : R"({"x": {"type": "integer", "low": -40, "high": 40}})");
    const std::int64_t low = log ? 1 : -40, high = 40;
    for (auto from = low; from <= high; ++from) {
      CAPTURE(from);
      for (double factor : {1.0001, 1.2, 50.0}) {
        const auto m = count_moves(space, static_cast<double>(from), from, 200, factor);
        CHECK(m.still == 0);
        if (from == low)
          CHECK(m.up == 200);
        else if (from == high)
          CHECK(m.down == 200);
        else
          CHECK(std::abs(m.up - 100) < 45); // 6 deviations
      }
    }
  }
}

TEST_CASE("an integer of 1 with factor 1.2 goes to 2 and to 0 equally often") {
  const auto space = space_of(R"({"x": {"type": "integer", "low": 0, "high": 10}})");
  const auto m = count_moves(space, 1, std::int64_t{1}, 10000);
  CHECK(m.still == 0);
  CHECK(std::abs(m.up - m.down) < 500);
}

TEST_CASE("integers keep their bounds at the ends of 64 bits") {
  json j;
  j["x"] = {{"type", "integer"}, {"low", int_min}, {"high", int_max}};
  const auto space = std::get<search_space>(search_space::from_json(j, ""));
  random_stream rng{1, "ends"};
  const auto next = [&](std::int64_t from, const perturbation& how) {
    return std::get<std::int64_t>(*space.perturb({{"x", from}}, how, rng).find("x"));
  };
  std::set<std::int64_t> seen;
  for (int i = 0; i < 1000; ++i) {
    CHECK(next(int_max, {1.2, 0}) < int_max);
    CHECK(next(int_min, {1.2, 0}) > int_min);
    CHECK(next(int_max - 1, {1.2, 0}) != int_max - 1);
    CHECK(next((std::int64_t{1} << 53) + 1, {1.0 + 1e-15, 0}) != (std::int64_t{1} << 53) + 1);
    seen.insert(std::get<std::int64_t>(*space.sample(rng).find("x")) >> 62);
  }
  CHECK(seen.size() == 4); // draws come from all quarters
}

TEST_CASE("a number moves by its factor and away from a bound that is in the way") {
  const auto space = space_of(R"({"x": {"type": "uniform", "low": 0, "high": 1}})");
  random_stream rng{1, "factor"};
  std::set<double> seen;
  for (int i = 0; i < 100; ++i)
    seen.insert(std::get<double>(*space.perturb({{"x", 0.5}}, {1.25, 0}, rng).find("x")));
  CHECK(seen == std::set<double>{0.4, 0.625});
  CHECK(count_moves(space, 1, 1.0, 100).down == 100);
  CHECK(count_moves(space, 0, 0.0, 100).up == 100);
  const auto around = space_of(R"({"x": {"type": "uniform", "low": -1, "high": 1}})");
  const auto from_zero = count_moves(around, 0, 0.0, 1000);
  CHECK(from_zero.still == 0);
  CHECK(std::abs(from_zero.up - 500) < 100);
  const auto negative = count_moves(around, -0.5, -0.5, 1000);
  CHECK(negative.still == 0);
  CHECK(std::abs(negative.up - 500) < 100);
}

TEST_CASE("a domain of one value stands still") {
  const auto space = space_of(R"({"a": {"type": "uniform", "low": 2, "high": 2},
                                  "b": {"type": "log_uniform", "low": 2, "high": 2},
                                  "c": {"type": "integer", "low": 2, "high": 2},
                                  "d": {"type": "choice", "values": [2]},
                                  "e": {"type": "choice", "values": [2], "ordered": true}})");
  random_stream rng{1, "still"};
  const auto hp = space.sample(rng);
  CHECK(hp.size() == 5);
  CHECK(space.perturb(hp, {1.2, 0.5}, rng) == hp);
}

TEST_CASE("a value that is missing or outside its domain is drawn afresh and others stay") {
  const auto space = space_of(
      R"({"x": {"type": "uniform", "low": 1, "high": 2}, "n": {"type": "integer", "low": 3, "high": 5},
                                  "c": {"type": "choice", "values": ["a", "b"]}})");
  random_stream rng{1, "afresh"};
  for (const value& bad :
       {value{}, value{"a lot"}, value{7.5}, value{std::numeric_limits<double>::quiet_NaN()},
        value{std::numeric_limits<double>::infinity()}, value{true}}) {
    const auto hp = space.perturb({{"x", bad}, {"n", bad}, {"c", bad}, {"other", 9.0}}, {1.2, 0}, rng);
    CHECK(space.check(hp, "").empty());
    CHECK(hp.size() == 4);
    CHECK(*hp.find("other") == value{9.0});
  }
  CHECK(space.perturb({}, {1.2, 0}, rng).size() == 3);
}

TEST_CASE("samples are inside every domain and reach both ends") {
  const auto space = space_of(R"({"u": {"type": "uniform", "low": -1, "high": 1},
                                  "q": {"type": "uniform", "low": 0, "high": 1, "quantum": 0.25},
                                  "l": {"type": "log_uniform", "low": 1e-4, "high": 1},
                                  "i": {"type": "integer", "low": 1, "high": 4},
                                  "k": {"type": "integer", "low": 1, "high": 64, "log": true},
                                  "c": {"type": "choice", "values": [null, "x"]}})");
  random_stream rng{1, "samples"};
  std::map<std::string, std::set<value>> seen;
  int small = 0;
  for (int i = 0; i < 10000; ++i) {
    const auto hp = space.sample(rng);
    REQUIRE(space.check(hp, "").empty());
    for (const char* key : {"q", "i", "k", "c"})
      seen[key].insert(*hp.find(key));
    small += std::get<double>(*hp.find("l")) < 1e-2 ? 1 : 0;
  }
  CHECK(seen["q"] == std::set<value>{0.0, 0.25, 0.5, 0.75, 1.0});
  CHECK(seen["i"].size() == 4);
  CHECK(seen["k"].size() == 64);
  CHECK(seen["c"].size() == 2);
  CHECK(std::abs(small - 5000) < 300); // half of the logarithm
}

TEST_CASE("the result has the type of the domain") {
  const auto space = space_of(
      R"({"x": {"type": "uniform", "low": 0, "high": 10}, "n": {"type": "integer", "low": 0, "high": 10}})");
  const hyperparameters hp{{"x", std::int64_t{5}}, {"n", 5.0}};
  CHECK(space.check(hp, "").empty());
  random_stream rng{1, "type"};
  const auto out = space.perturb(hp, {1.2, 0}, rng);
  CHECK(std::holds_alternative<double>(*out.find("x")));
  CHECK((*out.find("n") == value{std::int64_t{4}} || *out.find("n") == value{std::int64_t{6}}));
}

TEST_CASE("check names every value outside its domain and what is allowed") {
  const auto space = space_of(R"({"x": {"type": "uniform", "low": 0, "high": 1, "quantum": 0.5},
                                  "n": {"type": "integer", "low": 1, "high": 3}, "c": {"type": "choice", "values": ["a", 2]}})");
  const auto faults =
      space.check({{"x", 0.3}, {"n", std::int64_t{0}}, {"c", "b"}, {"other", 1.0}}, "/trainers/0/hp");
  REQUIRE(faults.size() == 3);
  CHECK(faults[0].text == "/trainers/0/hp/c: is \"b\", but the search space allows only one of \"a\", 2");
  CHECK(faults[1].text ==
        "/trainers/0/hp/n: is 0, but the search space allows only a whole number from 1 to 3");
  CHECK(
      faults[2].text ==
      "/trainers/0/hp/x: is 0.3, but the search space allows only a number from 0.0 to 1.0 in steps of 0.5");
  CHECK(space.check({}, "").empty());
}

TEST_CASE("the same stream gives the same samples and perturbations") {
  const auto space = space_of(
      R"({"x": {"type": "log_uniform", "low": 1e-5, "high": 1}, "n": {"type": "integer", "low": 1, "high": 99}})");
  random_stream a{5, "replay"}, b{5, "replay"};
  auto hp_a = space.sample(a), hp_b = space.sample(b);
  for (int i = 0; i < 100; ++i) {
    hp_a = space.perturb(hp_a, {}, a);
    hp_b = space.perturb(hp_b, {}, b);
    REQUIRE(hp_a == hp_b);
  }
}

TEST_CASE("a perturbation outside its limits is a broken precondition") {
  const auto space = space_of(R"({"x": {"type": "uniform", "low": 0, "high": 1}})");
  random_stream rng{1, "limits"};
  for (const perturbation& how :
       {perturbation{1, 0}, perturbation{0.5, 0}, perturbation{std::nan(""), 0}, perturbation{1.2, -0.1},
        perturbation{1.2, 1.1}, perturbation{1.2, std::nan("")}})
    CHECK_THROWS_AS(space.perturb({}, how, rng), std::invalid_argument);
}
