#include <cmath>
#include <limits>
#include <set>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "troupe/core/refill.hpp"

using namespace troupe::core;
using json = nlohmann::json;

namespace {

search_space lr_space() {
  return std::get<search_space>(
      search_space::from_json(json::parse(R"({"lr": {"type": "uniform", "low": 0.01, "high": 1}})"), ""));
}

metadata healthy(trainer_id t, double lr = 0.1) {
  metadata m;
  m.trainer = t;
  m.name = "t" + std::to_string(t);
  m.loss = 1;
  m.hp = {{"lr", lr}, {"depth", std::int64_t{2}}};
  return m;
}

std::string_view odd_is_wide(trainer_id t) { return t % 2 == 1 ? "wide" : "narrow"; }

} // namespace

TEST_CASE("row 20: a population of which 30 percent of the draws throw is refilled to its size") {
  const auto space = lr_space();
  const auto throws = [](const hyperparameters& hp) { return *as_number(*hp.find("lr")) > 0.7; };
  constexpr std::size_t n = 20;
  random_stream draws{1, "draws"};
  std::vector<hyperparameters> population;
  for (std::size_t i = 0; i < n; ++i)
    population.push_back(space.sample(draws));
  // As a run goes: all start, those that throw are replaced, the replacements may throw again.
  std::set<trainer_id> alive;
  std::size_t failures = 0, copies = 0;
  for (int attempt = 0; alive.size() < n; ++attempt) {
    REQUIRE(attempt < 100);
    std::vector<trainer_id> failed;
    for (trainer_id t = 0; t < n; ++t)
      if (!alive.contains(t))
        (throws(population[t]) ? void(failed.push_back(t)) : void(alive.insert(t)));
    failures += failed.size();
    std::vector<metadata> reports;
    for (const auto t : alive)
      reports.push_back(healthy(t, *as_number(*population[t].find("lr"))));
    for (const auto t : failed) {
      random_stream rng{1, "refill", t + n * static_cast<std::uint64_t>(attempt)};
      const auto plan = plan_refill({t, population[t], {}, reports, {}}, space, {}, rng);
      REQUIRE(plan);
      CHECK(space.check(plan->hp, "").empty());
      copies += plan->copy_from ? 1 : 0;
      if (plan->copy_from)
        CHECK(alive.contains(*plan->copy_from));
      population[t] = plan->hp;
    }
  }
  CHECK(alive.size() == n);
  CHECK(failures > 0);
  CHECK(copies == failures);
}

TEST_CASE("row 20: without anyone healthy the place is filled by a fresh draw") {
  const auto space = lr_space();
  random_stream rng{1, "refill"};
  auto sick = healthy(1);
  sick.loss = std::numeric_limits<double>::quiet_NaN();
  const std::vector<metadata> reports{healthy(0), sick, healthy(3)};
  // 0 is the failed one itself, 1 is sick, 3 is of another signature.
  const auto plan = plan_refill(
      {0, {{"lr", 0.5}, {"depth", std::int64_t{7}}}, "narrow", reports, odd_is_wide}, space, {}, rng);
  REQUIRE(plan);
  CHECK_FALSE(plan->copy_from);
  CHECK(space.check(plan->hp, "").empty());
  CHECK(*plan->hp.find("lr") != value{0.5});
  CHECK(*plan->hp.find("depth") == value{std::int64_t{7}});
  CHECK(plan->reason.find("fresh draw") != std::string::npos);
}

TEST_CASE("a place is filled from donors of equal signature with perturbed hyperparameters") {
  const auto space = lr_space();
  const std::vector<metadata> reports{healthy(0), healthy(1, 0.2), healthy(2), healthy(3, 0.2)};
  std::set<trainer_id> donors;
  for (std::uint64_t i = 0; i < 50; ++i) {
    random_stream rng{1, "refill", i}, again{1, "refill", i};
    const refill_input in{5, {{"lr", 0.9}}, "wide", reports, odd_is_wide};
    const auto plan = plan_refill(in, space, {1.2, 0}, rng);
    REQUIRE(plan);
    REQUIRE(plan->copy_from);
    donors.insert(*plan->copy_from);
    const double lr = *as_number(*plan->hp.find("lr"));
    CHECK((lr == 0.2 * 1.2 || lr == 0.2 / 1.2));
    CHECK(*plan->hp.find("depth") == value{std::int64_t{2}});
    const auto same = plan_refill(in, space, {1.2, 0}, again);
    CHECK(same->copy_from == plan->copy_from);
    CHECK(same->hp == plan->hp);
  }
  CHECK(donors == std::set<trainer_id>{1, 3});
}

TEST_CASE("nothing is filled where the same trainer would only fail again") {
  random_stream rng{1, "refill"};
  CHECK_FALSE(plan_refill({0, {{"lr", 0.5}}, "narrow", {}, {}}, {}, {}, rng));
  const std::vector<metadata> reports{healthy(1)};
  const auto copy = plan_refill({0, {{"lr", 0.5}}, {}, reports, odd_is_wide}, {}, {}, rng);
  REQUIRE(copy);
  CHECK(copy->copy_from == trainer_id{1});
  CHECK(copy->hp == reports[0].hp);
}

TEST_CASE("a place is given up when those that filled it came no further so often in a row") {
  const auto space = lr_space();
  random_stream rng{1, "refill"};
  const std::vector<metadata> reports{healthy(1)};
  refill_input in{0, {{"lr", 0.5}}, {}, reports, {}, max_fruitless_refills - 1};
  CHECK(plan_refill(in, space, {}, rng));
  ++in.fruitless;
  CHECK_FALSE(plan_refill(in, space, {}, rng));
}
