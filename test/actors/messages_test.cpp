#include "troupe/actors/messages.hpp"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <regex>
#include <sstream>

#include <doctest/doctest.h>

#include "caf/binary_deserializer.hpp"
#include "caf/binary_serializer.hpp"

using namespace troupe;
using namespace troupe::actors;

namespace {

core::hyperparameters every_kind() {
  return {{"null", std::monostate{}},
          {"yes", true},
          {"whole", std::int64_t{-3}},
          {"real", 1e-310},
          {"inf", std::numeric_limits<double>::infinity()},
          {"zero", -0.0},
          {"text", std::string{"adamw"}}};
}

core::metadata full_metadata() {
  core::metadata x;
  x.trainer = 3;
  x.name = "wide";
  x.incarnation = 2;
  x.sync = 7;
  x.step = 1400;
  x.epoch = 1.25;
  x.samples = 99;
  x.loss = -std::numeric_limits<double>::infinity();
  x.accuracy = std::nan("");
  x.grad_norm = 5e-324;
  x.compute_seconds = 1;
  x.wait_seconds = 2;
  x.sync_seconds = 3;
  x.memory_bytes = 1u << 30;
  x.numbers = {{"entropy", -0.0}, {"margin", 1e300}};
  x.hp = every_kind();
  return x;
}

template <class T>
T through_bytes(caf::actor_system& sys, T in) {
  T out;
#if TROUPE_CAF_MODERN
  static_cast<void>(sys);
  caf::byte_buffer buf;
  caf::binary_serializer sink{buf};
  REQUIRE(sink.apply(in));
  caf::binary_deserializer source{buf};
  REQUIRE(source.apply(out));
#else
  std::vector<char> buf;
  caf::binary_serializer sink{sys, buf};
  REQUIRE_FALSE(failed(sink(in)));
  caf::binary_deserializer source{sys, buf};
  REQUIRE_FALSE(failed(source(out)));
#endif
  return out;
}

template <class T>
std::size_t bytes_of(caf::actor_system& sys, T in) {
#if TROUPE_CAF_MODERN
  static_cast<void>(sys);
  caf::byte_buffer buf;
  caf::binary_serializer sink{buf};
  REQUIRE(sink.apply(in));
#else
  std::vector<char> buf;
  caf::binary_serializer sink{sys, buf};
  REQUIRE_FALSE(failed(sink(in)));
#endif
  return buf.size();
}

} // namespace

TEST_CASE("metadata and hyperparameters cross the wire bit for bit") {
  system_config cfg;
  caf::actor_system sys{cfg};
  auto in = full_metadata();
  auto wire = through_bytes(sys, to_wire(in));
  CHECK(wire == to_wire(in));
  auto out = from_wire(wire);
  CHECK(out.name == in.name);
  CHECK(out.sync == 7);
  CHECK(out.step == 1400);
  CHECK(out.loss == in.loss);
  CHECK(std::isnan(out.accuracy));
  CHECK(out.grad_norm == 5e-324);
  CHECK(std::signbit(out.numbers.at("entropy")));
  CHECK(out.hp == in.hp);
  CHECK(std::signbit(std::get<double>(*out.hp.find("zero"))));
  CHECK(to_wire(out) == to_wire(in));
}

TEST_CASE("decisions and schedules cross the wire") {
  system_config cfg;
  caf::actor_system sys{cfg};
  core::decision copy;
  copy.copy_from = 0;
  copy.changes = every_kind();
  copy.reason = "exploits b";
  CHECK(from_wire(through_bytes(sys, to_wire(copy))) == copy);
  core::decision mean;
  mean.act = core::decision::action::stop;
  mean.average_of = {0, 2, 5};
  CHECK(from_wire(through_bytes(sys, to_wire(mean))) == mean);
  core::sync_schedule schedule{100, {7, 250}, 0.5};
  auto out = from_wire(through_bytes(sys, to_wire(schedule)));
  CHECK(out.every_steps == 100);
  CHECK(out.at_steps == schedule.at_steps);
  CHECK(out.every_seconds == 0.5);
}

TEST_CASE("what a peer cannot have sent becomes harmless") {
  CHECK(from_wire(wire_value{77, 1, "x"}) == core::value{});
  wire_decision d;
  d.act = 200;
  CHECK(from_wire(d).act == core::decision::action::go_on);
  CHECK(from_wire(wire_error{200, "x"}).code == core::errc::internal);
}

TEST_CASE("sizes are never underestimated and oversized values are refused with the numbers") {
  system_config cfg;
  caf::actor_system sys{cfg};
  auto m = full_metadata();
  for (int i = 0; i < 200; ++i)
    m.numbers["number_" + std::to_string(i)] = i;
  CHECK(bytes_of(sys, to_wire(m)) <= wire_size(m));
  CHECK(bytes_of(sys, to_wire(m.hp)) <= wire_size(m.hp));
  core::decision d;
  d.changes = m.hp;
  d.average_of.resize(100);
  CHECK(bytes_of(sys, to_wire(d)) <= wire_size(d));
  CHECK(fits_control_plane(wire_size(m), "the metadata of trainer a").has_value());
  auto refused = fits_control_plane(70000, "the metadata of trainer a");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().text.find("the metadata of trainer a take 70000 bytes") == 0);
}

TEST_CASE("every message carries what addresses it") {
  system_config cfg;
  caf::actor_system sys{cfg};
  trainer_ref who{1, 2, 3};
  apply_decision in{who, 4, to_wire(core::decision{}), {{5, 6, 7, 8, "h", 9}}, true};
  auto out = through_bytes(sys, in);
  CHECK(out.to == who);
  CHECK(out.sync == 4);
  CHECK(out.sources == in.sources);
  CHECK(out.save);
  auto report = through_bytes(sys, sync_report{who, 4, to_wire(full_metadata()), {true, 5}});
  CHECK(report.from == who);
  CHECK(report.next == next_sync{true, 5});
  CHECK(through_bytes(sys, trainer_status{who, "a", trainer_phase::parked, true, 1, 2, 3, {}}).phase == trainer_phase::parked);
  CHECK(to_string(trainer_phase::failed) == "failed");
}

TEST_CASE("what a node says of its slots crosses the wire whole") {
  system_config cfg;
  caf::actor_system sys{cfg};
  slot_status s;
  s.index = 3;
  s.alive = false;
  s.trainers = 5;
  s.running = 2;
  s.waiting = 1;
  s.steps = 100;
  s.fused_steps = 80;
  s.busy_seconds = 1e-310;
  s.memory_used = 900;
  s.memory_budget = 1000;
  s.device.swaps_out = 6;
  s.device.capture_fault = "why";
  const auto out = through_bytes(sys, node_status{7, {s, {}}, 1, 2});
  CHECK(out.node == 7);
  REQUIRE(out.slots.size() == 2);
  const auto& x = out.slots[0];
  CHECK(x.index == 3);
  CHECK_FALSE(x.alive);
  CHECK(x.trainers == 5);
  CHECK(x.running == 2);
  CHECK(x.waiting == 1);
  CHECK(x.steps == 100);
  CHECK(x.fused_steps == 80);
  CHECK(x.busy_seconds == s.busy_seconds);
  CHECK(x.memory_used == 900);
  CHECK(x.memory_budget == 1000);
  CHECK(x.device.swaps_out == 6);
  CHECK(x.device.capture_fault == "why");
  const auto d = through_bytes(sys, slot_description{1, "GPU-1", "cuda", "H200", 1000, true, 4});
  CHECK(d.device == "GPU-1");
  CHECK(d.ordinal == 4);
}

TEST_CASE("no message type declares a real number") {
  namespace fs = std::filesystem;
  std::regex real{R"(\b(float|double)\b)"};
  std::regex comment{R"(//.*)"};
  int files = 0;
  for (auto name : {"messages.hpp", "wire.hpp"}) {
    std::ifstream in{fs::path{TROUPE_SOURCE_DIR} / "actors/include/troupe/actors" / name};
    REQUIRE(in);
    ++files;
    for (std::string line; std::getline(in, line);) {
      INFO(name, ": ", line);
      CHECK_FALSE(std::regex_search(std::regex_replace(line, comment, ""), real));
    }
  }
  CHECK(files == 2);
}
