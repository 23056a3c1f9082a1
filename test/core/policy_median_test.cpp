#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "troupe/core/policy.hpp"

using namespace troupe::core;
using json = nlohmann::json;

namespace {

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();
constexpr double inf = std::numeric_limits<double>::infinity();

std::unique_ptr<policy> median(const char* options = "{}") {
  std::vector<error> faults;
  auto out = builtin_policies().make("median", json::parse(options), {}, {}, "/policy", faults);
  for (const auto& f : faults)
    FAIL(f.text);
  return out;
}

/// Row k has every trainer's value at sync point k, of step 100 (k + 1).
struct past {
  std::vector<metadata> history;
  std::vector<metadata> now;

  explicit past(const std::vector<std::vector<double>>& rows) {
    for (std::size_t k = 0; k < rows.size(); ++k) {
      now.clear();
      for (std::size_t t = 0; t < rows[k].size(); ++t) {
        metadata m;
        m.trainer = static_cast<trainer_id>(t);
        m.sync = static_cast<sync_index>(k);
        m.step = 100 * (k + 1);
        m.loss = 1;
        m.accuracy = rows[k][t];
        history.push_back(m);
        now.push_back(m);
      }
    }
  }

  std::vector<trainer_id> stopped(const policy& p, std::optional<trainer_id> only = {}) const {
    policy_input in;
    in.index = now.front().sync;
    in.reports = now;
    in.history = history;
    in.only = only;
    random_stream rng(1, "test");
    std::vector<trainer_id> out;
    for (const auto& [t, d] : p.decide(in, rng))
      if (d.act == decision::action::stop)
        out.push_back(t);
    return out;
  }
};

} // namespace

TEST_CASE("whose best is worse than the median of the others averages stops") {
  // The others' averages for trainer 3: 0.55, 0.6 and 0.65; its best 0.5 is worse than 0.6.
  const past p({{0.5, 0.5, 0.6, 0.5}, {0.6, 0.7, 0.7, 0.4}});
  CHECK(p.stopped(*median()) == std::vector<trainer_id>{3});
  CHECK(p.stopped(*median(), 3) == std::vector<trainer_id>{3});
  CHECK(p.stopped(*median(), 2).empty());
}

TEST_CASE("its best counts and not its newest") {
  CHECK(past({{0.5, 0.5, 0.6, 0.9}, {0.6, 0.7, 0.7, 0.1}}).stopped(*median()).empty());
}

TEST_CASE("a best that equals the median is not worse") {
  CHECK(past({{0.5, 0.5, 0.5, 0.5}, {0.5, 0.5, 0.5, 0.5}}).stopped(*median()).empty());
}

TEST_CASE("smaller is better where the metric says so") {
  past p({{1, 1, 1, 1}, {1, 1, 1, 1}});
  for (auto* list : {&p.history, &p.now})
    for (auto& m : *list)
      m.loss = m.trainer == 1 ? 3.0 : 1.0;
  CHECK(p.stopped(*median(R"({"metric": "loss"})")) == std::vector<trainer_id>{1});
}

TEST_CASE("nobody stops before the burn-in or with few reports or few others") {
  const past p({{0.5, 0.5, 0.6, 0.1}, {0.6, 0.7, 0.7, 0.1}});
  CHECK(p.stopped(*median(R"({"burn_in_steps": 201})")).empty());
  CHECK(p.stopped(*median(R"({"burn_in_steps": 200})")).size() == 1);
  CHECK(p.stopped(*median(R"({"min_reports": 3})")).empty());
  CHECK(p.stopped(*median(R"({"min_trainers": 4})")).empty());
}

TEST_CASE("others that have not come so far do not count and those that ended do") {
  // Without waiting: trainers 0 and 1 are a sync point behind.
  past p({{0.9, 0.9, 0.6, 0.5}, {0.9, 0.9, 0.7, 0.5}});
  std::erase_if(p.history, [](const metadata& m) { return m.trainer < 2 && m.sync == 1; });
  CHECK(p.stopped(*median(R"({"min_trainers": 2})"), 3).empty());
  CHECK(p.stopped(*median(R"({"min_trainers": 1})"), 3).size() == 1);
  // Ended, but came this far: they are in the history and not among the reports.
  past ended({{0.9, 0.9, 0.6, 0.5}, {0.9, 0.9, 0.7, 0.5}});
  std::erase_if(ended.now, [](const metadata& m) { return m.trainer < 2; });
  CHECK(ended.stopped(*median()) == std::vector<trainer_id>{2, 3});
}

TEST_CASE("FAULTS row 19 healthy trainers are not stopped for what is not finite elsewhere") {
  for (const std::string mode : {"max", "min"}) {
    std::vector<double> row{0.5, 0.5, 0.5, 0.5, 0.5, nan_value, inf, -inf};
    const past p({row, row});
    const auto gone = p.stopped(*median((R"({"mode": ")" + mode + R"("})").c_str()));
    CHECK(gone == std::vector<trainer_id>{5, 6, 7});
  }
}

TEST_CASE("the median of the others is that of a plain reckoning for any number of trainers") {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    random_stream rng(seed, "median");
    const auto n = 4 + rng.below(9);
    std::vector<std::vector<double>> rows(1 + rng.below(4));
    for (auto& row : rows)
      for (std::uint64_t t = 0; t < n; ++t)
        row.push_back(rng.below(8) == 0 ? nan_value : static_cast<double>(rng.below(5)));
    std::vector<trainer_id> expected;
    for (trainer_id me = 0; me < n; ++me) {
      double best = -inf;
      std::vector<double> averages;
      for (trainer_id t = 0; t < n; ++t) {
        double sum = 0, count = 0;
        for (const auto& row : rows)
          if (std::isfinite(row[t])) {
            sum += row[t];
            ++count;
            if (t == me)
              best = std::max(best, row[t]);
          }
        if (t != me && count > 0)
          averages.push_back(sum / count);
      }
      std::sort(averages.begin(), averages.end());
      const auto half = averages.size() / 2;
      if (averages.size() >= 3 &&
          best < (averages.size() % 2 == 1 ? averages[half] : (averages[half - 1] + averages[half]) / 2))
        expected.push_back(me);
    }
    CAPTURE(seed);
    CHECK(past(rows).stopped(*median(R"({"min_reports": 1})")) == expected);
  }
}

TEST_CASE("wrong options of the median rule are refused with the key") {
  for (const auto& [text, where] : {std::pair{R"({"mode": "up"})", "/policy/mode: "},
                                    {R"({"min_reports": 0})", "/policy/min_reports: "},
                                    {R"({"min_trainers": -1})", "/policy/min_trainers: "},
                                    {R"({"grace": 3})", "/policy/grace: "}}) {
    std::vector<error> faults;
    CHECK(builtin_policies().make("median", json::parse(text), {}, {}, "/policy", faults) == nullptr);
    REQUIRE(faults.size() == 1);
    CHECK(faults[0].text.starts_with(where));
  }
}
