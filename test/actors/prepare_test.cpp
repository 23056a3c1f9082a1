#include <doctest/doctest.h>

#include "troupe/actors/prepare.hpp"
#include "troupe/gpu/basic_workload.hpp"

using namespace troupe;

namespace {

class still final : public gpu::basic_workload {
public:
  still(gpu::context&, const gpu::workload_config& cfg) : basic_workload("still", cfg) {}
  double step(gpu::context&) override { return 0; }
  gpu::evaluation evaluate(gpu::context&) override { return {}; }
};

constexpr auto text = R"({"trainers": [{"name": "a", "workload": {"type": "still"}, "stop_step": 3}]})";

} // namespace

TEST_CASE("an experiment that names a workload of the program is prepared with one CPU slot") {
  actors::program mine;
  mine.workloads.add("still", gpu::basic_workload::factory<still>());
  auto o = actors::prepare_run(text, mine);
  REQUIRE(o);
  CHECK(o->exp.trainers.size() == 1);
  CHECK(o->exp.text == text);
  REQUIRE(o->slots.size() == 1);
  CHECK(o->slots[0].device.id == "cpu");
  CHECK(o->workloads->contains("still"));
  CHECK(o->policies != nullptr);
}

TEST_CASE("all faults of an experiment come in one error with a line each") {
  auto o = actors::prepare_run(R"({"colour": 1, "trainers": [{"workload": {"type": "still"}, "stop_step": 3}]})");
  REQUIRE_FALSE(o);
  const auto& t = o.error().text;
  CHECK(t.starts_with("/trainers/0/workload/type: "));
  CHECK(t.find("\n/colour: ") != std::string::npos);
}

TEST_CASE("slots of the experiment come before the program's and an unknown device is named") {
  actors::program mine;
  mine.workloads.add("still", gpu::basic_workload::factory<still>());
  auto both = actors::prepare_run(
      R"({"slots": [{"count": 3}], "trainers": [{"workload": {"type": "still"}, "stop_step": 3}]})", mine);
  REQUIRE(both);
  CHECK(both->slots.size() == 3);
  mine.slots = {{.device = "abacus"}};
  auto o = actors::prepare_run(text, mine);
  REQUIRE_FALSE(o);
  CHECK(o.error().text.starts_with("device \"abacus\": "));
}

TEST_CASE("an experiment file that is not there is named") {
  auto o = actors::prepare_run_file("/nowhere/experiment.json");
  REQUIRE_FALSE(o);
  CHECK(o.error().text == "/nowhere/experiment.json: cannot be read: No such file or directory");
}
