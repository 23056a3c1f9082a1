#include "control.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

using namespace troupe;
using namespace troupe::cli;

namespace {

actors::run_status status() {
  actors::run_status s;
  s.experiment = "two";
  s.rounds = 3;
  s.seconds = 1.5;
  actors::trainer_info t;
  t.id = 4;
  t.name = "a";
  t.workload_type = "mlp";
  t.state = actors::trainer_state::held;
  t.step = 7;
  t.stop_step = 9;
  t.slot = "1/0";
  t.hp = {{"lr", 0.5}};
  t.reason = "enough";
  s.trainers.push_back(t);
  actors::slot_info busy;
  busy.name = "1/0";
  busy.node = 1;
  busy.device = "cuda:1";
  busy.device_id = "GPU-1f";
  busy.model = "H200";
  busy.memory_budget = 1000;
  busy.answered = true;
  busy.trainers = 5;
  busy.running = 2;
  busy.waiting = 1;
  busy.steps = 100;
  busy.slices = 12;
  busy.fused_steps = 80;
  busy.fused_slices = 10;
  busy.fused_members = 40;
  busy.busy_seconds = 3;
  busy.idle_seconds = 1;
  busy.memory_used = 900;
  busy.memory_peak = 950;
  busy.pinned_used = 20;
  busy.pinned_budget = 30;
  busy.pages_out = 6;
  busy.pages_in = 4;
  busy.paged_bytes = 4096;
  busy.staged_bytes = 17;
  busy.slot_copies = 8;
  busy.slot_copied_bytes = 8192;
  busy.captures = 2;
  busy.launches = 77;
  busy.capture_fault = "why";
  actors::slot_info lost;
  lost.name = "2/0";
  lost.node = 2;
  lost.device = lost.device_id = "cpu";
  lost.alive = false;
  s.slots = {busy, lost};
  s.record = {12, 3400, 15, 2, 0.25};
  return s;
}

} // namespace

TEST_CASE("a status crosses the control channel whole") {
  const auto sent = status_to_json(status());
  const auto got = status_from_json(sent);
  REQUIRE(got);
  CHECK(status_to_json(*got) == sent);
  REQUIRE(got->slots.size() == 2);
  CHECK(got->slots[0].fused_members == 40);
  CHECK(got->slots[0].idle_seconds == 1);
  CHECK(got->slots[0].slot_copied_bytes == 8192);
  CHECK(got->record.unwritten == 12);
  CHECK(got->record.held_back_seconds == 0.25);
  CHECK(got->slots[1].name == "2/0");
  CHECK_FALSE(got->slots[1].alive);
  CHECK(got->trainers[0].state == actors::trainer_state::held);
}

TEST_CASE("counters that nobody knows are not made up") {
  const auto slots = status_to_json(status())["slots"];
  CHECK(slots[0].contains("memory_used"));
  CHECK_FALSE(slots[1].contains("memory_used"));
  CHECK_FALSE(slots[1].contains("trainers"));
}

TEST_CASE("a run of a version that tells nothing of its slots is understood") {
  auto old = status_to_json(status());
  old.erase("slots");
  old.erase("record");
  const auto got = status_from_json(old);
  REQUIRE(got);
  CHECK(got->slots.empty());
  CHECK(got->trainers.size() == 1);
}

TEST_CASE("a status that is none is an error and says which member is missing") {
  auto damaged = status_to_json(status());
  damaged["slots"][0].erase("steps");
  const auto got = status_from_json(damaged);
  REQUIRE_FALSE(got);
  CHECK(got.error().text.find("the run's answer is not understood") == 0);
  CHECK(got.error().text.find("steps") != std::string::npos);
}
