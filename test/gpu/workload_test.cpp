#include "troupe/gpu/workload.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "slots_under_test.hpp"
#include "troupe/gpu/context.hpp"

using namespace troupe;
using namespace troupe::gpu;

TEST_CASE("a registry names what it knows when asked for something else") {
  workload_registry r;
  context ctx(cpu_slot());
  workload_config cfg;
  cfg.name = "t1";
  CHECK(r.make(ctx, "mlp", cfg).error().text.find("known are: none") != std::string::npos);
  r.add("b", [](context&, const workload_config&) { return std::unique_ptr<workload>(); });
  r.add("a", [](context&, const workload_config&) -> std::unique_ptr<workload> {
    throw std::runtime_error("no data");
  });
  CHECK(r.names() == std::vector<std::string>{"a", "b"});
  CHECK(r.contains("a"));
  CHECK_FALSE(r.contains("c"));
  CHECK(r.make(ctx, "c", cfg).error().text == "there is no workload \"c\"; known are: a, b");
  CHECK(r.make(ctx, "a", cfg).error().text == "trainer \"t1\": workload \"a\" cannot be built: no data");
  CHECK(r.make(ctx, "b", cfg).error().text.find("made nothing") != std::string::npos);
}

TEST_CASE("a factory that runs out of memory says so in the error code") {
  workload_registry r;
  context ctx(cpu_slot());
  r.add("big", [](context& c, const workload_config&) -> std::unique_ptr<workload> {
    (void)c.allocate(std::size_t(-1));
    return nullptr;
  });
  CHECK(r.make(ctx, "big", {}).error().code == core::errc::out_of_memory);
}

TEST_CASE("checking appends the checker's faults and one for an unknown type") {
  workload_registry r;
  r.add("plain", nullptr);
  r.add("strict", nullptr,
        [](const nlohmann::json& options, const core::hyperparameters&, std::string_view where,
           std::vector<core::error>& faults) {
          if (!options.contains("width"))
            faults.push_back({core::errc::invalid_argument, std::string(where) + "/width: missing"});
        });
  std::vector<core::error> faults;
  r.check("plain", nlohmann::json::object(), {}, "/trainers/0/workload", faults);
  CHECK(faults.empty());
  r.check("strict", nlohmann::json::object(), {}, "/trainers/0/workload", faults);
  r.check("other", nlohmann::json::object(), {}, "/trainers/1/workload", faults);
  REQUIRE(faults.size() == 2);
  CHECK(faults[0].text == "/trainers/0/workload/width: missing");
  CHECK(faults[1].text.find("/trainers/1/workload/type: there is no workload \"other\"") == 0);
}
