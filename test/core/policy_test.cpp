#include <algorithm>
#include <limits>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "troupe/core/policy.hpp"

using namespace troupe::core;
using json = nlohmann::json;

namespace {

const std::vector<std::string> abc{"a", "b", "c"};

std::vector<metadata> reports_of(std::size_t n) {
  std::vector<metadata> out(n);
  for (std::size_t i = 0; i < n; ++i) {
    out[i].trainer = static_cast<trainer_id>(i);
    out[i].name = std::string(1, static_cast<char>('a' + i));
    out[i].loss = 1;
  }
  return out;
}

std::unique_ptr<policy> made(std::string_view type, const char* options, std::vector<error>& faults) {
  return builtin_policies().make(type, json::parse(options), {}, abc, "/policy", faults);
}

std::unique_ptr<policy> made(std::string_view type, const char* options) {
  std::vector<error> faults;
  auto out = made(type, options, faults);
  for (const auto& f : faults)
    FAIL(f.text);
  return out;
}

/// All of these pointers, each once, and no other.
void check_faults(std::string_view type, const char* options, const std::vector<std::string>& pointers) {
  std::vector<error> faults;
  CHECK(made(type, options, faults) == nullptr);
  CHECK(faults.size() == pointers.size());
  for (const auto& at : pointers) {
    CAPTURE(at);
    CHECK(std::count_if(faults.begin(), faults.end(),
                        [&](const error& f) { return f.text.starts_with(at + ": "); }) == 1);
  }
}

std::map<trainer_id, decision> decided(const policy& p, const policy_input& in) {
  random_stream rng{1, "policy", in.index};
  return p.decide(in, rng);
}

std::string_view odd_is_wide(trainer_id t) { return t % 2 == 1 ? "wide" : "narrow"; }

} // namespace

TEST_CASE("decisions survive JSON and say nothing of what is empty") {
  decision d;
  CHECK(to_json(d).dump() == R"({"action":"go_on"})");
  d.act = decision::action::stop;
  d.changes = {{"lr", std::numeric_limits<double>::infinity()}, {"batch", std::int64_t{8}}};
  d.copy_from = 3;
  d.average_of = {0, std::numeric_limits<trainer_id>::max()};
  d.reason = "because";
  const auto back = decision_from_json(json::parse(to_json(d).dump()), "");
  REQUIRE(back);
  CHECK(*back == d);
  CHECK(*decision_from_json(to_json(decision{}), "") == decision{});
}

TEST_CASE("faults of a decision's JSON are reported together with their pointers") {
  const auto bad = decision_from_json(
      json::parse(
          R"({"action": "wait", "changes": {"lr": []}, "copy_from": -1, "average_of": [0, 4294967296],
                      "x": 1, "reason": 2})"),
      "/decisions/0");
  REQUIRE_FALSE(bad);
  for (const char* at : {"action", "changes/lr", "copy_from", "average_of/1", "x", "reason"})
    CHECK(bad.error().text.find("/decisions/0/" + std::string{at} + ": ") != std::string::npos);
  CHECK_FALSE(decision_from_json(json::parse("{}"), ""));
  CHECK_FALSE(decision_from_json(json::parse("[]"), ""));
  CHECK_FALSE(decision_from_json(json::parse(R"({"action": "go_on", "average_of": 1})"), ""));
}

TEST_CASE("the built in policies are known by name and others are refused") {
  CHECK(builtin_policies().names() == std::vector<std::string>{"asha", "average", "halving", "median", "none", "pb2", "pbt", "schedule"});
  std::vector<error> faults;
  CHECK(made("ptb", "{}", faults) == nullptr);
  REQUIRE(faults.size() == 1);
  CHECK(faults[0].text == "/policy/type: \"ptb\" is no known policy; did you mean 'pbt'?");
}

TEST_CASE("the policy none decides nothing and takes no options") {
  const auto p = made("none", "{}");
  const auto reports = reports_of(3);
  CHECK(decided(*p, {0, reports, {}, {}}).empty());
  CHECK_FALSE(p->moves_weights());
  std::vector<error> faults;
  (void)made("none", R"({"every": 1})", faults);
  CHECK(faults.size() == 1);
}

TEST_CASE("a schedule sets what is listed for one or several or all trainers at its sync point") {
  const auto p =
      made("schedule", R"({"at": [{"sync": 0, "trainer": "all", "set": {"lr": 0.1, "momentum": 0.5}},
                                             {"sync": 0, "trainer": "b", "set": {"lr": 0.2}},
                                             {"sync": 2, "trainer": ["a", "c"], "set": {"batch": 64}},
                                             {"sync": 3, "set": {"lr": 0.01}}]})");
  CHECK_FALSE(p->moves_weights());
  const auto reports = reports_of(4); // the fourth was added later
  auto d = decided(*p, {0, reports, {}, {}});
  REQUIRE(d.size() == 4);
  CHECK(d[0].changes == hyperparameters{{"lr", 0.1}, {"momentum", 0.5}});
  CHECK(d[1].changes == hyperparameters{{"lr", 0.2}, {"momentum", 0.5}});
  CHECK(d[3].changes == d[0].changes);
  CHECK(d[0].act == decision::action::go_on);
  CHECK(decided(*p, {1, reports, {}, {}}).empty());
  d = decided(*p, {2, reports, {}, {}});
  REQUIRE(d.size() == 2);
  CHECK(d[0].changes == hyperparameters{{"batch", std::int64_t{64}}});
  CHECK(d.contains(2));
  CHECK(decided(*p, {3, reports, {}, {}}).size() == 4);
  CHECK(decided(*p, {3, reports, {}, trainer_id{1}}).size() == 1);
  CHECK(decided(*p, {3, std::span{reports}.first(2), {}, {}}).size() == 2);
}

TEST_CASE("faults of a schedule are reported together with their pointers") {
  check_faults("schedule", "{}", {"/policy/at"});
  check_faults("schedule", "[]", {"/policy"});
  check_faults("schedule", R"({"at": {}, "every": 1})", {"/policy/at", "/policy/every"});
  check_faults("schedule", R"({"at": [{"sync": -1, "trainer": "a", "set": {"lr": 1}},
                                      {"trainer": "d", "set": {"lr": [1]}},
                                      {"sync": 1.5, "trainer": ["a", "x", 3], "set": {}},
                                      {"sync": 4294967296, "trainer": [], "set": []},
                                      {"sync": 1, "trainer": 1, "sett": {}}, 7]})",
               {"/policy/at/0/sync", "/policy/at/1/sync", "/policy/at/1/trainer", "/policy/at/1/set/lr",
                "/policy/at/2/sync", "/policy/at/2/trainer/1", "/policy/at/2/trainer/2", "/policy/at/2/set",
                "/policy/at/3/sync", "/policy/at/3/trainer", "/policy/at/3/set", "/policy/at/4/trainer",
                "/policy/at/4/set", "/policy/at/4/sett", "/policy/at/5"});
}

TEST_CASE("averaging takes all trainers of the same signature") {
  const auto p = made("average", "{}");
  CHECK(p->moves_weights());
  const auto reports = reports_of(5);
  auto d = decided(*p, {0, reports, odd_is_wide, {}});
  REQUIRE(d.size() == 5);
  CHECK(d[0].average_of == std::vector<trainer_id>{0, 2, 4});
  CHECK(d[4].average_of == d[0].average_of);
  CHECK(d[1].average_of == std::vector<trainer_id>{1, 3});
  CHECK(d[0].reason == "takes the mean weights of a, c, e");
  const auto only = decided(*p, {0, reports, odd_is_wide, trainer_id{1}});
  REQUIRE(only.size() == 1);
  CHECK(only.at(1) == d[1]);
  CHECK(decided(*p, {0, std::span{reports}.first(2), odd_is_wide, {}}).empty());
}

TEST_CASE("averaging keeps to its groups and its rhythm") {
  const auto p = made("average", R"({"groups": [["c", "a"]], "every": 2})");
  const auto reports = reports_of(3);
  CHECK(decided(*p, {0, reports, {}, {}}).empty());
  const auto d = decided(*p, {1, reports, {}, {}});
  REQUIRE(d.size() == 2);
  CHECK(d.at(0).average_of == std::vector<trainer_id>{0, 2});
  CHECK(d.at(2).average_of == std::vector<trainer_id>{0, 2});
}

TEST_CASE("row 15: averaging across signatures is refused with the reason") {
  const auto p = made("average", R"({"groups": [["a", "b", "c"]]})");
  const auto reports = reports_of(3);
  const auto d = decided(*p, {0, reports, odd_is_wide, {}});
  REQUIRE(d.size() == 3);
  for (const auto& [t, x] : d) {
    CHECK(x.average_of.empty());
    CHECK(x.act == decision::action::go_on);
    CHECK(x.reason.find("a and b have workloads of different signatures") != std::string::npos);
  }
}

TEST_CASE("row 19: a trainer whose loss is not finite is kept out of the average") {
  const auto p = made("average", "{}");
  auto reports = reports_of(3);
  reports[1].loss = std::numeric_limits<double>::quiet_NaN();
  auto d = decided(*p, {0, reports, {}, {}});
  CHECK(d[0].average_of == std::vector<trainer_id>{0, 2});
  CHECK(d[1].average_of.empty());
  CHECK(d[1].reason == "not averaged: its loss is nan");
  reports[2].loss = -std::numeric_limits<double>::infinity();
  d = decided(*p, {0, reports, {}, {}});
  for (const auto& [t, x] : d) {
    CHECK(x.average_of.empty());
    CHECK(x.act == decision::action::go_on);
  }
}

TEST_CASE("faults of an average are reported together with their pointers") {
  check_faults("average", R"({"every": 0, "groups": [["a"], "b", ["a", "x"], ["b", "a"]], "evry": 1})",
               {"/policy/every", "/policy/groups/0", "/policy/groups/1", "/policy/groups/2/1",
                "/policy/groups/3/1", "/policy/evry"});
  check_faults("average", R"({"groups": []})", {"/policy/groups"});
  check_faults("average", R"({"groups": "a"})", {"/policy/groups"});
}

TEST_CASE("sanitize keeps what can be done and leaves chains alone") {
  const auto reports = reports_of(4);
  std::map<trainer_id, decision> d;
  d[0].copy_from = 1;
  d[0].changes = {{"lr", 0.1}};
  d[1].copy_from = 2; // 0 still gets what 1 had when parked
  d[2].average_of = {2, 3, 3};
  d[3].changes = {{"lr", 0.2}};
  auto expected = d;
  expected[2].average_of = {2, 3};
  sanitize(d, {0, reports, {}, {}});
  CHECK(d == expected);
}

TEST_CASE("sanitize refuses weights that cannot be given and says why") {
  auto reports = reports_of(6);
  reports[4].loss = std::numeric_limits<double>::quiet_NaN();
  std::map<trainer_id, decision> d;
  for (trainer_id t = 0; t < 6; ++t)
    d[t].changes = {{"lr", 0.1}};
  d[0].copy_from = 9;
  d[1].copy_from = 2;
  d[2].copy_from = 4;
  d[3].copy_from = 3;
  d[4].average_of = {9, 1, 4};
  d[5].average_of = {5};
  sanitize(d, {0, reports, odd_is_wide, {}});
  REQUIRE(d.size() == 6);
  for (const auto& [t, x] : d) {
    CAPTURE(t);
    CHECK_FALSE(x.copy_from);
    CHECK(x.average_of.empty());
    CHECK(x.changes.empty());
  }
  CHECK(d[0].reason == "no copy: trainer 9 did not report");
  CHECK(d[1].reason == "no copy: c is of another signature");
  CHECK(d[2].reason == "no copy: e's loss is nan");
  CHECK(d[3].reason == "no copy: it is its own donor");
  CHECK(d[4].reason.find("trainer 9 did not report") != std::string::npos);
  CHECK(d[4].reason.find("b is of another signature") != std::string::npos);
  CHECK(d[4].reason.ends_with("no average: nobody is left to average with"));
  CHECK(d[5].reason == "no average: nobody is left to average with");
}

TEST_CASE("sanitize keeps an average that loses some of its donors") {
  const auto reports = reports_of(3);
  std::map<trainer_id, decision> d;
  d[0].average_of = {0, 1, 2};
  d[0].changes = {{"lr", 0.1}};
  sanitize(d, {0, reports, odd_is_wide, {}});
  CHECK(d[0].average_of == std::vector<trainer_id>{0, 2});
  CHECK(d[0].changes.size() == 1);
  CHECK(d[0].reason == "left out of the average: b is of another signature");
}

TEST_CASE("sanitize gives a copy precedence over an average and nothing to who stops") {
  const auto reports = reports_of(3);
  std::map<trainer_id, decision> d;
  d[0].copy_from = 1;
  d[0].average_of = {1, 2};
  d[1].act = decision::action::stop;
  d[1].copy_from = 0;
  d[1].average_of = {0, 2};
  d[1].changes = {{"lr", 1.0}};
  d[2].copy_from = 7;
  d[2].average_of = {0, 1};
  d[2].changes = {{"lr", 1.0}};
  sanitize(d, {0, reports, {}, {}});
  CHECK(d[0].copy_from == trainer_id{1});
  CHECK(d[0].average_of.empty());
  decision stop;
  stop.act = decision::action::stop;
  CHECK(d[1] == stop);
  CHECK_FALSE(d[2].copy_from);
  CHECK(d[2].average_of.size() == 2);
  CHECK(d[2].changes.size() == 1);
}

TEST_CASE("sanitize drops decisions about trainers that nobody asked about") {
  const auto reports = reports_of(2);
  std::map<trainer_id, decision> d;
  d[0].act = d[1].act = d[7].act = decision::action::stop;
  auto async = d;
  sanitize(d, {0, reports, {}, {}});
  CHECK(d.size() == 2);
  CHECK_FALSE(d.contains(7));
  sanitize(async, {0, reports, {}, trainer_id{1}});
  CHECK(async.size() == 1);
  CHECK(async.contains(1));
}
