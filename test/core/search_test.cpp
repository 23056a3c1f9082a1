/// One entry of an experiment that stands for many trainers: random and grid search.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "troupe/core/experiment.hpp"

using namespace troupe::core;

namespace {

std::string with_search(const std::string& search, const std::string& space, const std::string& entry = "") {
  return R"({"seed": 3, "trainers": [{"name": "x", "workload": {"type": "idle"}, "stop_step": 9, "search": )" +
         search + entry + "}]" + (space.empty() ? "" : R"(, "search_space": )" + space) + "}";
}

experiment parsed(const std::string& text) {
  auto x = parse_experiment(text, {});
  if (auto* faults = std::get_if<std::vector<error>>(&x))
    FAIL(faults->front().text);
  return std::get<experiment>(std::move(x));
}

std::string first_fault(const std::string& text) {
  auto x = parse_experiment(text, {});
  auto* faults = std::get_if<std::vector<error>>(&x);
  return faults ? faults->front().text : "";
}

std::string shown(const trainer_spec& t) {
  std::string out;
  for (const auto& [key, x] : t.hp)
    out += key + "=" + to_string(x) + " ";
  return out;
}

const char* lr_space = R"({"lr": {"type": "log_uniform", "low": 0.001, "high": 0.1}})";

} // namespace

TEST_CASE("a random search draws so many trainers from the search space and the same from the same seed") {
  const auto text = with_search(R"({"type": "random", "draws": 50})", lr_space,
                                R"(, "hyperparameters": {"momentum": 0.9})");
  const auto x = parsed(text), again = parsed(text);
  REQUIRE(x.trainers.size() == 50);
  std::set<std::string> values;
  for (std::size_t i = 0; i < 50; ++i) {
    CHECK(x.trainers[i].name == "x-" + std::to_string(i));
    CHECK(x.trainers[i].hp == again.trainers[i].hp);
    CHECK(*x.trainers[i].hp.find("momentum") == value{0.9});
    const auto lr = as_number(*x.trainers[i].hp.find("lr")).value();
    CHECK(lr >= 0.001);
    CHECK(lr <= 0.1);
    values.insert(shown(x.trainers[i]));
  }
  CHECK(values.size() == 50);
  // As experiment files: what was drawn is spelled out.
  const auto spelled = parsed(experiment_text(x));
  for (std::size_t i = 0; i < 50; ++i)
    CHECK(spelled.trainers[i].hp == x.trainers[i].hp);
}

TEST_CASE("a grid search takes every combination of the listed values") {
  const auto x = parsed(with_search(
      R"({"type": "grid", "values": {"lr": [0.1, 0.01], "optimizer": ["sgd", "adamw", null]}, "repeats": 2})",
      ""));
  REQUIRE(x.trainers.size() == 12);
  CHECK(shown(x.trainers[0]) == "lr=0.1 optimizer=\"sgd\" ");
  CHECK(shown(x.trainers[1]) == "lr=0.1 optimizer=\"adamw\" ");
  CHECK(shown(x.trainers[2]) == "lr=0.1 optimizer=null ");
  CHECK(shown(x.trainers[3]) == "lr=0.01 optimizer=\"sgd\" ");
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(x.trainers[i].hp == x.trainers[i + 6].hp);
    CHECK(x.trainers[i].seed != x.trainers[i + 6].seed);
  }
}

TEST_CASE("a grid over the search space takes lists whole and points of everything else") {
  const char* space = R"({"lr": {"type": "log_uniform", "low": 0.001, "high": 0.1},
                          "layers": {"type": "integer", "low": 1, "high": 2},
                          "act": {"type": "choice", "values": ["relu", "tanh"]}})";
  const auto x = parsed(with_search(R"({"type": "grid", "points": 3})", space));
  REQUIRE(x.trainers.size() == 2 * 2 * 3); // there are only two whole numbers from 1 to 2
  std::set<std::string> values;
  for (const auto& t : x.trainers)
    values.insert(shown(t));
  CHECK(values.size() == 12);
  std::set<double> lrs;
  for (const auto& t : x.trainers)
    lrs.insert(as_number(*t.hp.find("lr")).value());
  REQUIRE(lrs.size() == 3);
  CHECK(*lrs.begin() == doctest::Approx(0.001));
  CHECK(*std::next(lrs.begin()) == doctest::Approx(0.01));
  CHECK(*lrs.rbegin() == doctest::Approx(0.1));
  // What the trainer gives itself stays, and what the grid lists is no draw.
  const auto fixed = parsed(with_search(R"({"type": "grid", "values": {"lr": [0.002, 0.02]}})",
                                        R"({"lr": {"type": "log_uniform", "low": 0.001, "high": 0.1},
                                            "layers": {"type": "integer", "low": 1, "high": 9}})",
                                        R"(, "hyperparameters": {"layers": 4})"));
  REQUIRE(fixed.trainers.size() == 2);
  CHECK(shown(fixed.trainers[0]) == "layers=4 lr=0.002 ");
  CHECK(shown(fixed.trainers[1]) == "layers=4 lr=0.02 ");
}

TEST_CASE("a wrong search is refused with the key") {
  const auto fault = [](const std::string& search, const std::string& space = lr_space,
                        const std::string& entry = "") {
    return first_fault(with_search(search, space, entry));
  };
  CHECK(fault("3").starts_with("/trainers/0/search: must be an object"));
  CHECK(fault("{}").starts_with("/trainers/0/search/type: is missing"));
  CHECK(fault(R"({"type": "bayes"})").starts_with("/trainers/0/search/type: 'bayes' is no known search"));
  CHECK(fault(R"({"type": "random"})").starts_with("/trainers/0/search/draws: is missing"));
  CHECK(fault(R"({"type": "random", "draws": 0})").starts_with("/trainers/0/search/draws: "));
  CHECK(fault(R"({"type": "random", "draws": 5, "points": 3})").starts_with("/trainers/0/search/points: "));
  CHECK(fault(R"({"type": "random", "draws": 5})", "")
            .starts_with("/trainers/0/search/type: draws from the search space"));
  CHECK(fault(R"({"type": "grid"})").starts_with("/trainers/0/search/points: is missing: 'lr'"));
  for (const std::string points : {"0", "-1", "\"three\""})
    CHECK(fault(R"({"type": "grid", "points": )" + points + "}").starts_with("/trainers/0/search/points: must be a whole"));
  CHECK(fault(R"({"type": "grid"})", "").starts_with("/trainers/0/search/values: is missing"));
  CHECK(fault(R"({"type": "grid", "values": {"lr": []}})")
            .starts_with("/trainers/0/search/values/lr: must be a list"));
  CHECK(fault(R"({"type": "grid", "values": {"lr": [0.01, 0.5]}})")
            .starts_with("/trainers/0/search/values/lr/1: 0.5 is outside the search space"));
  CHECK(fault(R"({"type": "grid", "values": {"lr": [0.01, 0.01]}})")
            .starts_with("/trainers/0/search/values/lr/1: "));
  CHECK(
      fault(R"({"type": "grid", "values": {"lr": [0.01]}})", lr_space, R"(, "hyperparameters": {"lr": 0.01})")
          .starts_with("/trainers/0/search/values/lr: is given as a hyperparameter already"));
  CHECK(fault(R"({"type": "random", "draws": 5})", lr_space, R"(, "count": 2)")
            .starts_with("/trainers/0/search: says how many"));
  CHECK(fault(R"({"type": "grid", "points": 1000000, "repeats": 1000000})")
            .starts_with("/trainers/0: makes more than"));
}

TEST_CASE("a place within a domain and its value belong together") {
  const auto space = std::get<search_space>(
      search_space::from_json(nlohmann::json::parse(R"({"u": {"type": "uniform", "low": -1, "high": 3},
        "q": {"type": "uniform", "low": 0, "high": 1, "quantum": 0.25}, "l": {"type": "log_uniform", "low": 0.01, "high": 1},
        "i": {"type": "integer", "low": 1, "high": 5}, "g": {"type": "integer", "low": 1, "high": 100, "log": true},
        "c": {"type": "choice", "values": ["a", "b", "c"], "ordered": true}, "one": {"type": "integer", "low": 7, "high": 7}})"),
                              ""));
  const auto at = [&](const char* name, double unit) {
    return value_at(space.domains().find(name)->second, unit);
  };
  const auto unit = [&](const char* name, value x) { return unit_of(space.domains().find(name)->second, x); };
  CHECK(at("u", 0.5) == value{1.0});
  CHECK(at("q", 0.4) == value{0.5});
  CHECK(as_number(at("l", 0.5)).value() == doctest::Approx(0.1));
  CHECK(at("i", 0.5) == value{std::int64_t{3}});
  CHECK(at("g", 0.5) == value{std::int64_t{10}});
  CHECK(at("c", 0.6) == value{std::string{"b"}});
  CHECK(at("u", -3) == value{-1.0});
  CHECK(at("u", 7) == value{3.0});
  for (const char* name : {"u", "q", "l", "i", "g", "c"})
    for (const double x : {0.0, 0.5, 1.0}) {
      CAPTURE(name);
      CHECK(unit(name, at(name, x)).value() == doctest::Approx(x).epsilon(1e-9));
    }
  CHECK(unit("one", std::int64_t{7}) == 0.5);
  CHECK(unit("u", 4.0) == std::nullopt);
  CHECK(unit("c", std::string{"d"}) == std::nullopt);
}
