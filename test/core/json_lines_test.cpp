#include "troupe/core/json_lines.hpp"

#include <doctest/doctest.h>

#include <limits>

#include <nlohmann/json.hpp>

using namespace troupe::core;
using nlohmann::json;

namespace {

metadata sample(trainer_id t) {
  metadata m;
  m.trainer = t;
  m.name = "net \"" + std::to_string(t) + "\"\n\xC3\xA9";
  m.incarnation = 1;
  m.sync = 4;
  m.step = 1234567890123;
  m.epoch = 0.1;
  m.samples = 77;
  m.loss = 1e-300;
  m.grad_norm = std::numeric_limits<double>::infinity();
  m.compute_seconds = 3;
  m.memory_bytes = UINT64_MAX;
  m.numbers = {{"f1", 0.3}, {"bad", -std::numeric_limits<double>::infinity()}};
  m.hp = {{"lr", 0.1}, {"n", std::int64_t{-3}}, {"on", true}, {"none", value{}}, {"opt", "adam"}, {"big", 1e22}};
  return m;
}

} // namespace

TEST_CASE("metadata written as text is what the document would be") {
  for (auto m : {sample(3), metadata{}}) {
    std::string out;
    append_json(out, m);
    CHECK(json::parse(out) == to_json(m));
  }
}

TEST_CASE("whole doubles stay doubles through text") {
  metadata m = sample(0);
  std::string out;
  append_json(out, m);
  auto back = metadata_from_json(json::parse(out), "");
  REQUIRE(back);
  CHECK(back->hp == m.hp);
  CHECK(back->compute_seconds == 3.0);
  CHECK(back->loss == m.loss);
}

TEST_CASE("decisions written as text are what the document would be") {
  decision d;
  d.changes = {{"lr", 0.5}};
  d.copy_from = 2;
  d.average_of = {1, 2, 3};
  d.reason = "exploits \"b\"";
  for (auto& x : {d, decision{}, decision{decision::action::stop, {}, {}, {}, "worst"}}) {
    std::string out;
    append_json(out, x);
    auto back = decision_from_json(json::parse(out), "");
    REQUIRE(back);
    CHECK(*back == x);
    CHECK(json::parse(out) == to_json(x));
  }
}

TEST_CASE("a sync point lists each report with its decision and decisions for others apart") {
  std::string out = "{";
  decision stop{decision::action::stop, {}, {}, {}, ""};
  append_sync_point(out, 3, {sample(0), sample(1)}, {{1, stop}, {9, stop}});
  auto j = json::parse(out + "}");
  CHECK(j["index"] == 3);
  CHECK(j["step"] == 1234567890123);
  REQUIRE(j["trainers"].size() == 2);
  CHECK(j["trainers"][0]["decision"]["action"] == "go_on");
  CHECK(j["trainers"][1]["decision"]["action"] == "stop");
  CHECK(j["trainers"][1]["name"] == sample(1).name);
  REQUIRE(j["others"].size() == 1);
  CHECK(j["others"][0]["trainer"] == 9);
  out = "{";
  append_sync_point(out, 0, {}, {});
  CHECK(json::parse(out + "}") == json::parse(R"({"index": 0, "step": 0, "trainers": []})"));
}

TEST_CASE("times are written in UTC with milliseconds") {
  using namespace std::chrono;
  CHECK(utc_text(sys_days{2026y / 11 / 30} + 9h + 5min + 7s + 42ms) == "2026-11-30T09:05:07.042Z");
}
