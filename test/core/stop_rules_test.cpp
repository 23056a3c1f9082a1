#include <doctest/doctest.h>

#include <limits>

#include <nlohmann/json.hpp>

#include "troupe/core/experiment.hpp"
#include "troupe/core/stop_rules.hpp"

using namespace troupe::core;
using json = nlohmann::json;

namespace {

metadata at(sync_index k, double accuracy, double loss = 1) {
  metadata m;
  m.sync = k;
  m.step = 100 * (k + 1);
  m.accuracy = accuracy;
  m.loss = loss;
  return m;
}

stop_rules rules(const char* text) {
  stop_rules out;
  std::vector<error> faults;
  read_stop_rules(json::parse(text), "/stop", out, faults);
  for (const auto& f : faults)
    FAIL(f.text);
  return out;
}

/// After how many of these it stops; all of them and one: never.
std::size_t stops_after(const char* text, const std::vector<double>& accuracies) {
  stop_watch w(rules(text));
  for (std::size_t i = 0; i < accuracies.size(); ++i)
    if (w.observe(at(static_cast<sync_index>(i), accuracies[i])))
      return i + 1;
  return accuracies.size() + 1;
}

} // namespace

TEST_CASE("a trainer stops at its target and says so") {
  stop_watch w(rules(R"({"target": {"metric": "accuracy", "at_least": 0.9}})"));
  CHECK(!w.observe(at(0, 0.8)));
  CHECK(w.observe(at(1, 0.91)) == "reached its target: accuracy 0.91 >= 0.9");
  stop_watch low(rules(R"({"target": {"metric": "loss", "at_most": 0.5}})"));
  CHECK(!low.observe(at(0, 1, 0.6)));
  CHECK(low.observe(at(1, 1, 0.5)) == "reached its target: loss 0.5 <= 0.5");
}

TEST_CASE("what is not finite reaches no target and is no improvement") {
  constexpr double inf = std::numeric_limits<double>::infinity(),
                   nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(stops_after(R"({"target": {"at_least": 0.9}})", {inf, nan, -inf, 0.5}) == 5);
  CHECK(stops_after(R"({"plateau": {"patience": 3}})", {nan, inf, 0.5, nan, inf, -inf}) == 6);
  CHECK(stops_after(R"({"plateau": {"patience": 3}})", {nan, nan, nan}) == 3);
}

TEST_CASE("a plateau is patience sync points without an improvement by more than delta") {
  CHECK(stops_after(R"({"plateau": {"patience": 2}})", {0.5, 0.5, 0.51, 0.51, 0.51}) == 5);
  CHECK(stops_after(R"({"plateau": {"patience": 2, "delta": 0.05}})", {0.5, 0.52, 0.54, 0.6}) == 3);
  CHECK(stops_after(R"({"plateau": {"patience": 3, "delta": 0.05}})", {0.5, 0.52, 0.56, 0.57, 0.58, 0.6}) ==
        6);
  CHECK(stops_after(R"({"plateau": {"patience": 2, "mode": "min"}})", {0.5, 0.4, 0.3, 0.2}) == 5);
  stop_watch w(rules(R"({"plateau": {"metric": "loss", "patience": 2}})"));
  CHECK(!w.observe(at(0, 0, 1.5)));
  CHECK(!w.observe(at(1, 0, 1.5)));
  CHECK(w.observe(at(2, 0, 1.6)) == "is on a plateau: its best loss is 1.5 since 2 sync points");
}

TEST_CASE("nothing counts before the burn-in is over") {
  CHECK(stops_after(R"({"burn_in_steps": 300, "target": {"at_least": 0.5}})", {0.9, 0.9, 0.9, 0.9}) == 3);
  CHECK(stops_after(R"({"burn_in_steps": 300, "plateau": {"patience": 2}})", {0.9, 0.9, 0.5, 0.5, 0.5}) == 5);
}

TEST_CASE("a sync point that a trainer comes to again counts once") {
  stop_watch w(rules(R"({"plateau": {"patience": 2}})"));
  CHECK(!w.observe(at(0, 0.5)));
  CHECK(!w.observe(at(1, 0.5)));
  CHECK(!w.observe(at(1, 0.5)));
  CHECK(!w.observe(at(0, 0.5)));
  CHECK(w.observe(at(2, 0.5)));
}

TEST_CASE("rules of a trainer lie over those of the defaults key by key and survive being written") {
  const char* text = R"({
    "defaults": {"workload": {"type": "idle"}, "stop_step": 9,
                 "stop": {"seconds": 5, "target": {"metric": "loss", "at_most": 0.1}, "burn_in_steps": 3}},
    "trainers": [{"name": "a"}, {"name": "b", "priority": -3, "stop": {"seconds": 7, "plateau": {"patience": 4, "delta": 0.5}}}],
    "sync": {"every_steps": 3},
    "stop": {"seconds": 60.5, "steps": 1000, "target": {"at_least": 0.99}}})";
  const auto parsed = parse_experiment(text, {});
  REQUIRE(std::holds_alternative<experiment>(parsed));
  const auto& x = std::get<experiment>(parsed);
  CHECK(x.trainers[0].stop.seconds == 5);
  CHECK(x.trainers[0].stop.target->text() == "loss <= 0.1");
  CHECK(!x.trainers[0].stop.plateau);
  CHECK(x.trainers[1].stop.seconds == 7);
  CHECK(x.trainers[1].stop.target->text() == "loss <= 0.1");
  CHECK(x.trainers[1].stop.plateau->patience == 4);
  CHECK(x.trainers[1].stop.burn_in_steps == 3);
  CHECK(x.trainers[1].priority == -3);
  CHECK(x.stop.seconds == 60.5);
  CHECK(x.stop.steps == 1000);
  CHECK(x.stop.target->text() == "accuracy >= 0.99");
  const auto again = parse_experiment(experiment_text(x), {});
  REQUIRE(std::holds_alternative<experiment>(again));
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(std::get<experiment>(again).trainers[i].stop == x.trainers[i].stop);
    CHECK(std::get<experiment>(again).trainers[i].priority == x.trainers[i].priority);
  }
  CHECK(std::get<experiment>(again).stop.target == x.stop.target);
}

TEST_CASE("wrong rules are refused with the key") {
  const auto first_fault = [](const std::string& stop) {
    const auto x = parse_experiment(
        R"({"trainers": [{"workload": {"type": "idle"}, "stop_step": 9, "stop": )" + stop + "}]}", {});
    auto* faults = std::get_if<std::vector<error>>(&x);
    return faults ? faults->front().text : std::string{};
  };
  CHECK(first_fault("{}") == "");
  CHECK(first_fault("3").starts_with("/trainers/0/stop: must be an object"));
  CHECK(first_fault(R"({"second": 3})").starts_with("/trainers/0/stop/second: "));
  CHECK(first_fault(R"({"seconds": 0})").starts_with("/trainers/0/stop/seconds: "));
  CHECK(first_fault(R"({"target": {}})") ==
        "/trainers/0/stop/target/at_least: is missing: give at_least or at_most");
  CHECK(first_fault(R"({"target": {"at_least": 1, "at_most": 2}})")
            .starts_with("/trainers/0/stop/target/at_least: cannot"));
  CHECK(first_fault(R"({"target": {"metric": "", "at_least": 1}})")
            .starts_with("/trainers/0/stop/target/metric: "));
  CHECK(first_fault(R"({"plateau": {"patience": 0}})").starts_with("/trainers/0/stop/plateau/patience: "));
  CHECK(first_fault(R"({"plateau": {"mode": "up"}})").starts_with("/trainers/0/stop/plateau/mode: "));
  CHECK(first_fault(R"({"plateau": {"delta": -1}})").starts_with("/trainers/0/stop/plateau/delta: "));
}

TEST_CASE("rules that are looked at at sync points are refused where there are none") {
  const auto faults_of = [](const std::string& defaults, const std::string& trainer, const std::string& more) {
    const auto x = parse_experiment(R"({"defaults": {"workload": {"type": "idle"}, "stop_step": 9)" + defaults +
                                        R"(}, "trainers": [{"count": 2)" + trainer + "}]" + more + "}",
                                    {});
    std::vector<std::string> out;
    if (auto* faults = std::get_if<std::vector<error>>(&x))
      for (const auto& f : *faults)
        out.push_back(f.text.substr(0, f.text.find(':')));
    return out;
  };
  using list = std::vector<std::string>;
  const std::string target = R"(, "stop": {"target": {"at_least": 1}})", plateau = R"(, "stop": {"plateau": {}})";
  CHECK(faults_of("", target, "") == list{"/trainers/0/stop/target"});
  CHECK(faults_of(target, plateau, "") == list{"/defaults/stop/target", "/trainers/0/stop/plateau"});
  CHECK(faults_of("", "", R"(, "stop": {"steps": 9, "target": {"at_least": 1}})") == list{"/stop/target", "/stop/steps"});
  CHECK(faults_of(target, plateau, R"(, "sync": {"at_steps": [3]})").empty());
  CHECK(faults_of(target, "", R"(, "sync": {"every_steps": -1})") == list{"/sync/every_steps"});
  CHECK(faults_of("", R"(, "stop": {"seconds": 3})", R"(, "stop": {"seconds": 3})").empty());
  const auto of = parse_experiment(R"({"trainers": [{"workload": {"type": "idle"}, "stop_step": 9}]})", {});
  const auto added = parse_trainer(R"({"name": "b", "workload": {"type": "idle"}, "stop_step": 9)" + target + "}",
                                   std::get<experiment>(of), {});
  REQUIRE(std::holds_alternative<std::vector<error>>(added));
  CHECK(std::get<std::vector<error>>(added).front().text.starts_with("/stop/target: is looked at at sync points"));
}
