#include <cmath>
#include <limits>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "troupe/core/value.hpp"

using namespace troupe::core;
using json = nlohmann::json;
using limits = std::numeric_limits<double>;
using ints = std::numeric_limits<std::int64_t>;

namespace {

value round_trip(const value& x) {
  auto back = value_from_json(json::parse(to_json(x).dump()), "/x");
  REQUIRE(back);
  return *back;
}

} // namespace

TEST_CASE("values survive JSON text with type and bits intact") {
  for (const value& x :
       {value{}, value{true}, value{false}, value{std::int64_t{0}}, value{ints::max()}, value{ints::min()},
        value{0.0}, value{1.0}, value{0.1}, value{limits::denorm_min()}, value{limits::max()},
        value{limits::lowest()}, value{limits::infinity()}, value{-limits::infinity()}, value{"sgd"},
        value{""}, value{"\xc3\xa4 \"quoted\"\n"}}) {
    CAPTURE(to_string(x));
    CHECK(round_trip(x) == x);
  }
  CHECK(std::signbit(std::get<double>(round_trip(-0.0))));
  CHECK(std::isnan(std::get<double>(round_trip(limits::quiet_NaN()))));
}

TEST_CASE("an integer and a double of the same value are different values") {
  CHECK(value{std::int64_t{1}} != value{1.0});
  CHECK(to_string(value{std::int64_t{1}}) == "1");
  CHECK(to_string(value{1.0}) == "1.0");
  CHECK(to_string(value{"adamw"}) == "\"adamw\"");
  CHECK(to_string(value{}) == "null");
  CHECK(to_string(value{-limits::infinity()}) == "-inf");
}

TEST_CASE("a value that is no scalar or no 64 bit integer is an error that says where") {
  for (const char* text : {"[1]", "{}", "9223372036854775808"}) {
    const auto bad = value_from_json(json::parse(text), "/trainers/0/hyperparameters/lr");
    REQUIRE_FALSE(bad);
    CHECK(bad.error().code == errc::invalid_argument);
    CHECK(bad.error().text.starts_with("/trainers/0/hyperparameters/lr: "));
  }
}

TEST_CASE("hyperparameters keep integers and doubles apart through JSON") {
  const hyperparameters hp{
      {"lr", 0.01}, {"batch", std::int64_t{32}}, {"momentum", 1.0}, {"clip", {}}, {"opt", "sgd"}};
  const auto text = to_json(hp).dump();
  CHECK(text == R"({"batch":32,"clip":null,"lr":0.01,"momentum":1.0,"opt":"sgd"})");
  const auto back = hyperparameters_from_json(json::parse(text), "");
  REQUIRE(back);
  CHECK(*back == hp);
}

TEST_CASE("all faults of hyperparameters are reported together with their pointers") {
  const auto bad = hyperparameters_from_json(json::parse(R"({"a/b": [1], "c~": {}, "lr": 1, "": 2})"), "/hp");
  REQUIRE_FALSE(bad);
  CHECK(bad.error().text.find("/hp/a~1b: ") != std::string::npos);
  CHECK(bad.error().text.find("/hp/c~0: ") != std::string::npos);
  CHECK(bad.error().text.find("needs a name") != std::string::npos);
  CHECK_FALSE(hyperparameters_from_json(json::parse("[]"), "/hp"));
}

TEST_CASE("update takes over key by key and erase forgets") {
  hyperparameters hp{{"lr", 0.1}, {"batch", std::int64_t{32}}};
  hp.update({{"lr", 0.2}, {"momentum", 0.9}});
  CHECK(hp == hyperparameters{{"lr", 0.2}, {"batch", std::int64_t{32}}, {"momentum", 0.9}});
  hp.erase("batch");
  hp.erase("no such key");
  CHECK(hp.size() == 2);
  CHECK(hp.find("batch") == nullptr);
}

TEST_CASE("typed readings fall back when absent or null and name the key when wrong") {
  const hyperparameters hp{{"lr", 0.01},    {"batch", std::int64_t{32}},
                           {"whole", 64.0}, {"none", {}},
                           {"opt", "sgd"},  {"on", true},
                           {"huge", 1e19},  {"nan", limits::quiet_NaN()}};
  CHECK(hp.number("lr", 1).value() == 0.01);
  CHECK(hp.number("batch", 1).value() == 32.0);
  CHECK(hp.number("absent", 7).value() == 7.0);
  CHECK(hp.number("none", 7).value() == 7.0);
  CHECK(hp.integer("batch", 1).value() == 32);
  CHECK(hp.integer("whole", 1).value() == 64);
  CHECK(hp.integer("none", 5).value() == 5);
  CHECK(hp.boolean("on", false).value());
  CHECK_FALSE(hp.boolean("absent", false).value());
  CHECK(hp.text("opt", "").value() == "sgd");
  CHECK(hp.text("absent", "adamw").value() == "adamw");
  for (const char* key : {"lr", "opt", "huge", "nan", "on"}) {
    const auto bad = hp.integer(key, 1);
    REQUIRE_FALSE(bad);
    CHECK(bad.error().text.find(key) != std::string::npos);
  }
  CHECK_FALSE(hp.number("opt", 1));
  CHECK_FALSE(hp.number("on", 1));
  CHECK_FALSE(hp.boolean("batch", true));
  CHECK_FALSE(hp.text("lr", ""));
}

TEST_CASE("an assignment is a JSON scalar or else a string") {
  const auto parsed = [](std::string_view text) { return parse_assignment(text).value(); };
  CHECK(parsed("lr=0.01") == std::pair<std::string, value>{"lr", 0.01});
  CHECK(parsed("batch=64") == std::pair<std::string, value>{"batch", std::int64_t{64}});
  CHECK(parsed("lr=1e-3").second == value{1e-3});
  CHECK(parsed("on=true").second == value{true});
  CHECK(parsed("clip=null").second == value{});
  CHECK(parsed("clip=inf").second == value{limits::infinity()});
  CHECK(parsed("optimizer=adamw").second == value{"adamw"});
  CHECK(parsed("name=\"64\"").second == value{"64"});
  CHECK(parsed(" a.b = x=y ") == std::pair<std::string, value>{"a.b", "x=y"});
  CHECK(parsed("list=[1,2]").second == value{"[1,2]"});
  CHECK(parsed("empty=\"\"").second == value{""});
  CHECK(parsed("n=99999999999999999999").second == value{1e20});
  for (const char* text : {"", "lr", "lr=", "lr= ", "lr=1e999", "lr=-1e999", "=0.1", " =1", "n=9223372036854775808", "s=\xff", "\xff=1"})
    CHECK_FALSE(parse_assignment(text));
}
