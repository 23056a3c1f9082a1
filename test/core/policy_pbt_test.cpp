#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "troupe/core/policy.hpp"

using namespace troupe::core;
using json = nlohmann::json;

namespace {

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();
constexpr double inf = std::numeric_limits<double>::infinity();

search_space lr_space() {
  return std::get<search_space>(search_space::from_json(
      json::parse(
          R"({"lr": {"type": "log_uniform", "low": 1e-4, "high": 1},
                    "layers": {"type": "integer", "low": 1, "high": 9}})"),
      ""));
}

std::unique_ptr<policy> pbt(const char* options = "{}", std::size_t trainers = 16) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < trainers; ++i)
    names.push_back("t" + std::to_string(i));
  std::vector<error> faults;
  auto out = builtin_policies().make("pbt", json::parse(options), lr_space(), names, "/policy", faults);
  for (const auto& f : faults)
    FAIL(f.text);
  return out;
}

std::vector<metadata> reports_of(const std::vector<double>& accuracies) {
  std::vector<metadata> out(accuracies.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i].trainer = static_cast<trainer_id>(i);
    out[i].name = "t" + std::to_string(i);
    out[i].step = 1000;
    out[i].loss = 1;
    out[i].accuracy = accuracies[i];
    out[i].hp = {
        {"lr", 0.01 + 0.001 * static_cast<double>(i)}, {"layers", std::int64_t{3}}, {"momentum", 0.9}};
  }
  return out;
}

std::map<trainer_id, decision> decided(const policy& p, const policy_input& in, std::uint64_t seed = 1) {
  random_stream rng{seed, "policy", in.index};
  return p.decide(in, rng);
}

std::set<trainer_id> exploited(const std::map<trainer_id, decision>& d) {
  std::set<trainer_id> out;
  for (const auto& [t, x] : d)
    if (x.copy_from)
      out.insert(t);
  return out;
}

/// Training in one line: loss falls along a bowl; a state is the weight, and the trace is all losses so far.
struct toy_trainer {
  double weight = 1, lr = 0.01;
  std::uint64_t step = 0;
  std::uint64_t first_exploited = std::numeric_limits<std::uint64_t>::max(); ///< at this step
  std::vector<double> trace;

  void train(int steps) {
    for (int i = 0; i < steps; ++i) {
      weight -= 0.02 * lr * weight;
      ++step;
      trace.push_back(weight * weight);
    }
  }
};

struct toy_run {
  std::vector<toy_trainer> trainers;
  std::size_t reported = 0, decisions = 0, stops = 0;
  std::vector<std::size_t> exploits_per_round;
};

toy_run run_toy(const policy& p, std::size_t n, int rounds) {
  toy_run out;
  out.trainers.resize(n);
  for (std::size_t i = 0; i < n; ++i)
    out.trainers[i].lr = 0.001 * static_cast<double>(i + 1);
  for (int k = 0; k < rounds; ++k) {
    auto reports = reports_of(std::vector<double>(n, 0));
    for (std::size_t i = 0; i < n; ++i) {
      auto& t = out.trainers[i];
      t.train(10);
      reports[i].step = t.step;
      reports[i].loss = t.trace.back();
      reports[i].accuracy = -std::log(t.trace.back());
      reports[i].hp.set("lr", t.lr);
    }
    out.reported += reports.size();
    const policy_input in{static_cast<sync_index>(k), reports, {}, {}};
    auto decisions = decided(p, in);
    sanitize(decisions, in);
    out.decisions += decisions.size();
    const auto parked = out.trainers;
    auto& exploits = out.exploits_per_round.emplace_back(0);
    for (const auto& [t, d] : decisions) {
      out.stops += d.act == decision::action::stop ? 1 : 0;
      if (d.copy_from) {
        ++exploits;
        out.trainers[t].first_exploited = std::min(out.trainers[t].first_exploited, out.trainers[t].step);
        out.trainers[t].weight = parked[*d.copy_from].weight;
      }
      if (const auto* lr = d.changes.find("lr"))
        out.trainers[t].lr = std::get<double>(*lr);
    }
  }
  return out;
}

} // namespace

TEST_CASE("the bottom quantile copies from the top quantile and nobody else changes") {
  const auto p = pbt(R"({"quantile": 0.25})");
  CHECK(p->moves_weights());
  const auto reports = reports_of({0.5, 0.9, 0.1, 0.6, 0.2, 0.8, 0.4, 0.7});
  std::set<trainer_id> donors;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const auto d = decided(*p, {0, reports, {}, {}}, seed);
    REQUIRE(d.size() == 8);
    CHECK(exploited(d) == std::set<trainer_id>{2, 4});
    for (const auto& [t, x] : d) {
      CHECK(x.act == decision::action::go_on);
      if (x.copy_from)
        donors.insert(*x.copy_from);
      else
        CHECK(x == decision{});
    }
  }
  CHECK(donors == std::set<trainer_id>{1, 5});
}

TEST_CASE("an exploited trainer goes on with the donor's hyperparameters perturbed") {
  const auto p = pbt(R"({"resample_probability": 0, "factor": 2})");
  auto reports = reports_of({0.87, 0.81});
  reports[0].hp = {{"lr", 0.1}, {"layers", std::int64_t{4}}, {"momentum", 0.9}, {"decay", 0.01}};
  const auto d = decided(*p, {0, reports, {}, {}});
  CHECK(d.at(0) == decision{});
  const auto& x = d.at(1);
  CHECK(x.copy_from == trainer_id{0});
  CHECK(x.reason == "exploits t0 (accuracy 0.87 > 0.81)");
  const double lr = std::get<double>(*x.changes.find("lr"));
  CHECK((lr == 0.2 || lr == 0.05));
  const auto layers = std::get<std::int64_t>(*x.changes.find("layers"));
  CHECK((layers == 8 || layers == 2));
  CHECK(x.changes.find("momentum") == nullptr); // the same already
  CHECK(*x.changes.find("decay") == value{0.01});
}

TEST_CASE("row 14: over 20 rounds a trainer trains as without a policy until it is itself exploited") {
  const auto with = run_toy(*pbt(R"({"recipients": ["t0", "t1", "t2", "t3", "t4"]})"), 8, 20);
  std::vector<error> faults;
  const auto none = builtin_policies().make("none", json::object(), {}, {}, "", faults);
  const auto without = run_toy(*none, 8, 20);
  std::size_t never = 0, changed = 0;
  for (trainer_id t = 0; t < 8; ++t) {
    const auto &a = with.trainers[t], &b = without.trainers[t];
    CHECK(a.step == b.step);
    const auto same = std::min<std::uint64_t>(a.first_exploited, a.step);
    CHECK(std::equal(a.trace.begin(), a.trace.begin() + static_cast<std::ptrdiff_t>(same), b.trace.begin()));
    never += same == a.step ? 1 : 0;
    changed += a.trace != b.trace ? 1 : 0;
  }
  CHECK(never >= 3);
  CHECK(changed > 0);
  CHECK(never + changed == 8);
}

TEST_CASE("row 14: the best trainer is never exploited") {
  const auto p = pbt(R"({"quantile": 0.5})");
  random_stream rng{1, "best"};
  for (int i = 0; i < 200; ++i) {
    std::vector<double> accuracies(2 + rng.below(7));
    for (auto& a : accuracies)
      a = rng.uniform();
    const auto best = std::max_element(accuracies.begin(), accuracies.end()) - accuracies.begin();
    const auto d = decided(*p, {0, reports_of(accuracies), {}, {}}, static_cast<std::uint64_t>(i));
    CHECK(d.at(static_cast<trainer_id>(best)) == decision{});
    CHECK_FALSE(exploited(d).empty());
  }
}

TEST_CASE("row 15: with widths 32 and 64 donors have the recipient's signature") {
  const auto p = pbt(R"({"quantile": 0.25})");
  const auto width = [](trainer_id t) -> std::string_view { return t < 4 ? "mlp 64" : "mlp 32"; };
  // All wide trainers beat all narrow ones: each width is a population of its own.
  const auto reports = reports_of({0.91, 0.92, 0.93, 0.94, 0.1, 0.2, 0.3, 0.4});
  auto d = decided(*p, {0, reports, width, {}});
  CHECK(exploited(d) == std::set<trainer_id>{0, 4});
  CHECK(d[0].copy_from == trainer_id{3});
  CHECK(d[4].copy_from == trainer_id{7});
  const auto before = d;
  sanitize(d, {0, reports, width, {}});
  CHECK(d == before);
}

TEST_CASE("row 15: a trainer alone with its signature is told why it exploits nobody") {
  const auto p = pbt();
  const auto reports = reports_of({0.1, 0.9, 0.5});
  const auto d =
      decided(*p, {0, reports, [](trainer_id t) -> std::string_view { return t == 0 ? "x" : "y"; }, {}});
  CHECK_FALSE(d.at(0).copy_from);
  CHECK(d.at(0).changes.empty());
  CHECK(d.at(0).reason.find("same signature") != std::string::npos);
  CHECK(d.at(2).copy_from == trainer_id{1});
}

TEST_CASE("row 19: NaN and infinities never win and never stop healthy trainers in either mode") {
  for (const char* options :
       {R"({"metric": "score", "mode": "max"})", R"({"metric": "score", "mode": "min"})"}) {
    const auto p = pbt(options);
    const bool max = std::string_view{options}.find("max") != std::string_view::npos;
    auto reports = reports_of(std::vector<double>(8, 0.5));
    const std::vector<double> scores{nan_value, inf, -inf, 0.1, 0.2, 0.3, 0.4, 0.5};
    for (std::size_t i = 0; i < 8; ++i)
      reports[i].numbers["score"] = scores[i];
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
      const auto d = decided(*p, {0, reports, {}, {}}, seed);
      for (const auto& [t, x] : d) {
        CHECK(x.act == decision::action::go_on);
        if (x.copy_from)
          CHECK((max ? *x.copy_from >= 6 : (*x.copy_from == 3 || *x.copy_from == 4)));
      }
      // The bottom quarter is two of those that are not finite; the healthy five go on untouched.
      CHECK(exploited(d) == std::set<trainer_id>{1, 2});
      for (trainer_id t = 3; t < 8; ++t)
        CHECK(d.at(t) == decision{});
    }
  }
}

TEST_CASE("row 19: a trainer whose loss is not finite is no donor however good its metric") {
  const auto p = pbt(R"({"quantile": 0.5})");
  auto reports = reports_of({0.99, 0.98, 0.5, 0.4, 0.3, 0.2});
  reports[0].loss = nan_value;
  reports[1].loss = -inf;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const auto d = decided(*p, {0, reports, {}, {}}, seed);
    CHECK(exploited(d) == std::set<trainer_id>{0, 1, 5});
    for (trainer_id t : {0u, 1u, 5u})
      CHECK((*d.at(t).copy_from >= 2 && *d.at(t).copy_from <= 4));
    CHECK(d.at(0).reason.find("its own loss is nan") != std::string::npos);
  }
}

TEST_CASE("with fewer than two healthy trainers nobody is exploited") {
  const auto p = pbt();
  for (const auto& accuracies :
       {std::vector<double>{0.5, nan_value, nan_value, inf}, std::vector<double>{nan_value, nan_value},
        std::vector<double>{0.5, nan_value}, std::vector<double>{0.5}, std::vector<double>{}}) {
    const auto d = decided(*p, {0, reports_of(accuracies), {}, {}});
    CHECK(d.size() == accuracies.size());
    CHECK(exploited(d).empty());
    for (const auto& [t, x] : d)
      CHECK(x.changes.empty());
  }
}

TEST_CASE("with two or three trainers the worst copies from the best") {
  const auto p = pbt();
  CHECK(decided(*p, {0, reports_of({0.1, 0.2}), {}, {}}).at(0).copy_from == trainer_id{1});
  const auto d = decided(*p, {0, reports_of({0.2, 0.1, 0.3}), {}, {}});
  CHECK(exploited(d) == std::set<trainer_id>{1});
  CHECK(d.at(1).copy_from == trainer_id{2});
}

TEST_CASE("a tie is broken by trainer number and gains nothing") {
  const auto p = pbt();
  CHECK(exploited(decided(*p, {0, reports_of({0.5, 0.5, 0.5, 0.5}), {}, {}})).empty());
  const auto d = decided(*p, {0, reports_of({0.5, 0.9, 0.9, 0.5}), {}, {}});
  CHECK(exploited(d) == std::set<trainer_id>{3});
  CHECK(d.at(3).copy_from == trainer_id{1});
}

TEST_CASE("a loss is minimised unless the mode says otherwise") {
  auto reports = reports_of({0, 0});
  reports[0].loss = 0.5;
  reports[1].loss = 0.25;
  const auto d = decided(*pbt(R"({"metric": "loss"})"), {0, reports, {}, {}});
  CHECK(d.at(0).copy_from == trainer_id{1});
  CHECK(d.at(0).reason == "exploits t1 (loss 0.25 < 0.5)");
  CHECK(exploited(decided(*pbt(R"({"metric": "loss", "mode": "max"})"), {0, reports, {}, {}})) ==
        std::set<trainer_id>{1});
}

TEST_CASE("rhythm and burn in and recipients limit who is exploited") {
  auto reports = reports_of({0.1, 0.2, 0.3, 0.4});
  const auto every = pbt(R"({"every": 3})");
  for (sync_index k = 0; k < 9; ++k)
    CHECK(exploited(decided(*every, {k, reports, {}, {}})).empty() == (k % 3 != 2));
  reports[0].step = 1499;
  for (std::size_t i = 1; i < 4; ++i)
    reports[i].step = 1500;
  CHECK(exploited(decided(*pbt(R"({"burn_in_steps": 1500})"), {0, reports, {}, {}})) ==
        std::set<trainer_id>{1});
  CHECK(exploited(decided(*pbt(R"({"burn_in_steps": 1501})"), {0, reports, {}, {}})).empty());
  CHECK(exploited(decided(*pbt(R"({"quantile": 0.5, "recipients": ["t1"]})"), {0, reports, {}, {}})) ==
        std::set<trainer_id>{1});
}

TEST_CASE("an asynchronous decision concerns one trainer and uses the newest of all") {
  const auto p = pbt();
  const auto reports = reports_of({0.1, 0.2, 0.3, 0.4});
  const auto worst = decided(*p, {5, reports, {}, trainer_id{0}});
  REQUIRE(worst.size() == 1);
  CHECK(worst.at(0).copy_from == trainer_id{3});
  const auto other = decided(*p, {5, reports, {}, trainer_id{1}});
  REQUIRE(other.size() == 1);
  CHECK(other.at(1) == decision{});
}

TEST_CASE("row 21: five trainers over 20 rounds give 100 decisions and later generations still exploit") {
  const auto run = run_toy(*pbt(), 5, 20);
  CHECK(run.reported == 100);
  CHECK(run.decisions == 100);
  CHECK(run.stops == 0);
  for (const auto exploits : run.exploits_per_round)
    CHECK(exploits == 1);
}

TEST_CASE("the same input and stream give the same decisions") {
  const auto p = pbt(R"({"quantile": 0.5})"), again = pbt(R"({"quantile": 0.5})");
  random_stream draws{3, "replay"};
  std::set<std::string> distinct;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<double> accuracies(12);
    for (auto& a : accuracies)
      a = draws.below(10) == 0 ? nan_value : draws.uniform();
    const auto reports = reports_of(accuracies);
    const policy_input in{static_cast<sync_index>(seed),
                          reports,
                          [](trainer_id t) -> std::string_view { return t % 3 == 0 ? "x" : "y"; },
                          {}};
    const auto first = decided(*p, in, seed);
    REQUIRE(first == decided(*again, in, seed));
    const auto others = decided(*p, in, seed + 1000);
    CHECK(exploited(others) == exploited(first)); // who is in the bottom is no matter of chance
    for (const auto& [t, d] : first)
      if (d.copy_from)
        distinct.insert(to_json(d.changes).dump());
  }
  CHECK(distinct.size() > 100);
}

TEST_CASE("changes stay inside the search space over many generations") {
  const auto p = pbt(R"({"factor": 1.5})");
  const auto space = lr_space();
  auto reports = reports_of({0.1, 0.2, 0.3, 0.4});
  random_stream rng{1, "generations"};
  for (sync_index k = 0; k < 2000; ++k) {
    for (auto& m : reports)
      m.accuracy = rng.uniform();
    for (const auto& [t, d] : decided(*p, {k, reports, {}, {}})) {
      REQUIRE(space.check(d.changes, "").empty());
      reports[t].hp.update(d.changes);
    }
  }
}

TEST_CASE("faults of population based training are reported together with their pointers") {
  std::vector<error> faults;
  const auto p = builtin_policies().make(
      "pbt",
      json::parse(
          R"({"metric": "", "mode": "best", "quantile": 0.6, "factor": 1, "resample_probability": 1.5,
                    "every": 0,
                    "burn_in_steps": -1, "recipients": ["x"], "perturb": 2})"),
      {}, std::vector<std::string>{"a"}, "/policy", faults);
  CHECK(p == nullptr);
  for (const char* at : {"/metric", "/mode", "/quantile", "/factor", "/resample_probability", "/every",
                         "/burn_in_steps", "/recipients/0", "/perturb", ""}) {
    CAPTURE(at);
    const auto start = "/policy" + std::string{at} + ": ";
    CHECK(std::count_if(faults.begin(), faults.end(),
                        [&](const error& f) { return f.text.starts_with(start); }) == 1);
  }
  CHECK(faults.size() == 10);
}
