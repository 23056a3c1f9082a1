#include <fstream>
#include <limits>
#include <sstream>

#include <doctest/doctest.h>

#include "troupe/core/experiment.hpp"

// The example of docs/policies.md; a test below compares the two.
// -- begin of the example
#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "troupe/core/policy.hpp"

namespace core = troupe::core;

/// At each sync point the worse half of the trainers stops, until `keep` are left.
class better_half : public core::policy {
public:
  better_half(std::string metric, std::size_t keep) : metric_(std::move(metric)), keep_(keep) {}

  std::map<core::trainer_id, core::decision> decide(const core::policy_input& in,
                                                    core::random_stream&) const override {
    std::vector<const core::metadata*> ranked;
    for (const auto& m : in.reports)
      if (std::isfinite(m.number(metric_)))
        ranked.push_back(&m);
    std::stable_sort(ranked.begin(), ranked.end(),
                     [this](auto* a, auto* b) { return a->number(metric_) > b->number(metric_); });
    std::map<core::trainer_id, core::decision> out;
    for (std::size_t i = std::max(keep_, (ranked.size() + 1) / 2); i < ranked.size(); ++i) {
      auto& d = out[ranked[i]->trainer];
      d.act = core::decision::action::stop;
      d.reason = "is in the worse half by " + metric_;
    }
    return out;
  }

  static std::unique_ptr<core::policy> make(const nlohmann::json& options, const core::search_space&,
                                            std::span<const std::string>, std::string_view where,
                                            std::vector<core::error>& faults) {
    const auto fault = [&](const std::string& text) {
      faults.push_back({core::errc::invalid_argument, std::string(where) + text});
    };
    for (const auto& [key, unused] : options.items())
      if (key != "keep")
        fault("/" + key + ": is no known key");
    const auto keep = options.value("keep", nlohmann::json(1u));
    if (!keep.is_number_unsigned() || keep < 1)
      fault("/keep: must be a whole number above 0");
    return faults.empty() ? std::make_unique<better_half>("accuracy", keep.get<std::size_t>()) : nullptr;
  }

private:
  std::string metric_;
  std::size_t keep_;
};
// -- end of the example

using namespace troupe::core;

namespace {

policy_registry with_example() {
  auto policies = builtin_policies();
  policies.add("better_half", better_half::make);
  return policies;
}

std::string read(const std::string& path) {
  std::ifstream in{path};
  REQUIRE(in);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

} // namespace

TEST_CASE("a policy of the user's own is made by its name and decides") {
  std::vector<error> faults;
  const auto p = with_example().make("better_half", nlohmann::json{{"keep", 2u}}, {}, {}, "/policy", faults);
  REQUIRE(p);
  CHECK(faults.empty());
  CHECK_FALSE(p->moves_weights());
  std::vector<metadata> reports(5);
  for (trainer_id t = 0; t < 5; ++t) {
    reports[t].trainer = t;
    reports[t].accuracy = 0.1 * t;
  }
  reports[0].accuracy = std::numeric_limits<double>::quiet_NaN();
  random_stream rng{1, "policy"};
  const auto d = p->decide({0, reports, {}, {}}, rng);
  REQUIRE(d.size() == 2);
  CHECK(d.at(1).act == decision::action::stop);
  CHECK(d.at(2).act == decision::action::stop);
  CHECK(p->decide({1, std::span{reports}.last(2), {}, {}}, rng).empty());
}

TEST_CASE(
    "an experiment file may name a policy of the user's own and its faults are reported with the others") {
  const auto policies = with_example();
  experiment_checkers checkers;
  checkers.policies = &policies;
  const auto text = [](const char* policy) {
    return std::string{
               R"({"name": "x", "trainers": [{"name": "a", "workload": {"type": "idle"}, "stop_step": 10}],
                           "sync": {"every_steps": 5}, "policy": )"} +
           policy + "}";
  };
  const auto good = parse_experiment(text(R"({"type": "better_half", "keep": 1})"), checkers);
  REQUIRE(std::holds_alternative<experiment>(good));
  CHECK(std::get<experiment>(good).policy_type == "better_half");
  const auto bad = parse_experiment(text(R"({"type": "better_half", "keep": 0, "half": true})"), checkers);
  REQUIRE(std::holds_alternative<std::vector<error>>(bad));
  const auto& faults = std::get<std::vector<error>>(bad);
  REQUIRE(faults.size() == 2);
  CHECK(faults[0].text == "/policy/half: is no known key");
  CHECK(faults[1].text == "/policy/keep: must be a whole number above 0");
}

TEST_CASE("the example in the documentation is the one that is compiled here") {
  const std::string folder = TROUPE_SOURCE_DIR;
  const auto source = read(folder + "/test/core/custom_policy_test.cpp");
  const auto begin =
      source.find("// -- begin of the example\n") + std::string{"// -- begin of the example\n"}.size();
  const auto example = source.substr(begin, source.find("// -- end of the example\n") - begin);
  CHECK(example.size() > 1000);
  CHECK(read(folder + "/docs/policies.md").find("```cpp\n" + example + "```\n") != std::string::npos);
}
