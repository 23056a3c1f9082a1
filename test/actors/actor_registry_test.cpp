#include "troupe/actors/actor_registry.hpp"

#include <stdexcept>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;

namespace {

actor_registry make_registry() {
  actor_registry out;
  out.add(
      "constant",
      [](const actor_context& ctx, const nlohmann::json& config) -> core::result<caf::actor> {
        const auto value = config.at("value").get<std::int32_t>();
        return ctx.system.spawn(
            [value](caf::event_based_actor*) -> caf::behavior { return {[value](const std::string&) { return value; }}; });
      },
      [](const nlohmann::json& config, std::string_view where, std::vector<core::error>& faults) {
        if (!config.contains("value") || !config["value"].is_number_integer())
          faults.push_back({core::errc::invalid_argument, std::string{where} + "/value: must be an integer"});
      });
  out.add("follower", [](const actor_context& ctx, const nlohmann::json& config) -> core::result<caf::actor> {
    const auto whom = config.at("of").get<std::string>();
    const auto i = ctx.others->find(whom);
    if (i == ctx.others->end())
      return core::error{core::errc::not_found, "there is no actor \"" + whom + "\" before it"};
    return ctx.system.spawn([to = i->second](caf::event_based_actor* s) -> caf::behavior {
      return {[=](const std::string& x) { return mail(s, x).delegate(to); }};
    });
  });
  out.add("broken", [](const actor_context&, const nlohmann::json&) -> core::result<caf::actor> {
    throw std::runtime_error{"out of luck"};
  });
  return out;
}

std::int32_t ask(caf::actor_system& sys, const caf::actor& dst) {
  std::int32_t out = 0;
  caf::scoped_actor self{sys};
  mail(self, std::string{"value"})
      .request(dst, 20s)
      .receive([&](std::int32_t x) { out = x; }, [](caf::error& e) { FAIL(error_text(e)); });
  return out;
}

} // namespace

TEST_CASE("actors are made by name from JSON and know those before them") {
  system_config cfg;
  caf::actor_system sys{cfg};
  const auto list = nlohmann::json::parse(R"([
    {"name": "a", "type": "constant", "config": {"value": 7}},
    {"name": "b", "type": "follower", "config": {"of": "a"}}])");
  auto made = make_registry().spawn_all(list, sys, {});
  REQUIRE(std::holds_alternative<actor_registry::actors>(made));
  auto& all = std::get<actor_registry::actors>(made);
  CHECK(ask(sys, all.at("a")) == 7);
  CHECK(ask(sys, all.at("b")) == 7);
  for (const auto& [name, hdl] : all)
    caf::anon_send_exit(hdl, caf::exit_reason::user_shutdown);
}

TEST_CASE("all faults of a list are found before anything is made") {
  system_config cfg;
  caf::actor_system sys{cfg};
  const auto list = nlohmann::json::parse(R"([
    {"name": "a", "type": "constant", "config": {"value": "x"}},
    {"name": "a", "type": "constnat"},
    {"type": 3, "colour": "red"},
    7])");
  auto made = make_registry().spawn_all(list, sys, {}, "/actors");
  REQUIRE(std::holds_alternative<std::vector<core::error>>(made));
  std::string all;
  for (const auto& e : std::get<std::vector<core::error>>(made))
    all += e.text + "\n";
  CHECK(all == "/actors/0/config/value: must be an integer\n"
               "/actors/1/name: \"a\" is also the name of /actors/0\n"
               "/actors/1/type: there is no actor type \"constnat\"; there are: broken, constant, follower\n"
               "/actors/2/colour: unknown key; there are: name, type, config\n"
               "/actors/2/name: must be a text that is not empty\n"
               "/actors/2/type: must be a text that is not empty\n"
               "/actors/3: must be an object with name, type and config\n");
  CHECK(std::holds_alternative<std::vector<core::error>>(make_registry().spawn_all(nlohmann::json{}, sys, {})));
}

TEST_CASE("a factory that fails says why and takes back what was made") {
  system_config cfg;
  caf::actor_system sys{cfg};
  const auto list = nlohmann::json::parse(R"([
    {"name": "a", "type": "constant", "config": {"value": 7}},
    {"name": "b", "type": "broken"}])");
  auto made = make_registry().spawn_all(list, sys, {});
  REQUIRE(std::holds_alternative<std::vector<core::error>>(made));
  CHECK(std::get<std::vector<core::error>>(made)[0].text == "/1: actor b: out of luck");
  auto one = make_registry().spawn("follower", {sys, {}, "f", nullptr}, nlohmann::json::object());
  REQUIRE_FALSE(one);
  CHECK(one.error().text.find("actor f: ") == 0);
  CHECK_THROWS_AS(actor_registry{}.add("", nullptr), std::invalid_argument);
  CHECK(actor_registry{}.spawn("x", {sys, {}, "x", nullptr}, {}).error().text ==
        "there is no actor type \"x\"; there are none: the program registers its own");
}
