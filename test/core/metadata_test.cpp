#include <cmath>
#include <limits>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "troupe/core/metadata.hpp"

using namespace troupe::core;
using json = nlohmann::json;

namespace {

metadata example() {
  metadata m;
  m.trainer = 3;
  m.name = "wide";
  m.incarnation = 1;
  m.sync = 4;
  m.step = std::numeric_limits<std::uint64_t>::max();
  m.epoch = 2;
  m.samples = 1u << 20;
  m.loss = 0.1 + 0.2;
  m.accuracy = 0.875;
  m.grad_norm = std::numeric_limits<double>::infinity();
  m.compute_seconds = 1.5;
  m.wait_seconds = 0.25;
  m.sync_seconds = 1e-9;
  m.memory_bytes = 1ull << 40;
  m.numbers = {{"recall/top5", 0.5}, {"worst", -std::numeric_limits<double>::infinity()}};
  m.hp = {{"lr", 0.01}, {"batch", std::int64_t{64}}};
  return m;
}

} // namespace

TEST_CASE("metadata survives JSON text") {
  const auto m = example();
  const auto text = to_json(m).dump();
  const auto back = metadata_from_json(json::parse(text), "");
  REQUIRE(back);
  CHECK(to_json(*back).dump() == text);
  CHECK(back->trainer == m.trainer);
  CHECK(back->name == m.name);
  CHECK(back->step == m.step);
  CHECK(back->loss == m.loss);
  CHECK(back->grad_norm == m.grad_norm);
  CHECK(back->memory_bytes == m.memory_bytes);
  CHECK(back->numbers == m.numbers);
  CHECK(back->hp == m.hp);
  CHECK(metadata_from_json(to_json(m), ""));
}

TEST_CASE("what was not measured is NaN before and after JSON") {
  metadata m;
  const auto back = metadata_from_json(json::parse(to_json(m).dump()), "");
  REQUIRE(back);
  CHECK(std::isnan(back->loss));
  CHECK(std::isnan(back->accuracy));
  CHECK(std::isnan(back->grad_norm));
}

TEST_CASE("a number is found by its name") {
  const auto m = example();
  CHECK(m.number("loss") == m.loss);
  CHECK(m.number("accuracy") == 0.875);
  CHECK(m.number("epoch") == 2.0);
  CHECK(m.number("step") == static_cast<double>(m.step));
  CHECK(m.number("recall/top5") == 0.5);
  CHECK(std::isnan(m.number("no such number")));
}

TEST_CASE("all faults of metadata are reported together with their pointers") {
  const auto bad = metadata_from_json(
      json::parse(
          R"({"trainer": -1, "incarnation": 4294967296, "step": 1.5, "loss": "low", "name": 3, "colour": 1,
                    "numbers": {"a/b": null}, "hyperparameters": {"lr": []}})"),
      "/reports/2");
  REQUIRE_FALSE(bad);
  for (const char* at : {"trainer", "incarnation", "step", "loss", "name", "colour", "numbers/a~1b",
                         "hyperparameters/lr", "sync"})
    CHECK(bad.error().text.find("/reports/2/" + std::string{at} + ": ") != std::string::npos);
  CHECK_FALSE(metadata_from_json(json::parse("[]"), ""));
}
