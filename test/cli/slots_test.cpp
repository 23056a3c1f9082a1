#include "slots.hpp"

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::cli;

namespace {

gpu::device_report machine(int gpus) {
  gpu::device_report out;
  gpu::device_info cpu;
  cpu.id = "cpu";
  cpu.cores = {0, 1, 2, 3};
  cpu.usable_cores = 3;
  out.devices.push_back(cpu);
  for (int i = 0; i < gpus; ++i) {
    gpu::device_info d;
    d.kind = gpu::device_kind::cuda;
    d.ordinal = i;
    d.id = "GPU-" + std::to_string(i) + "000";
    d.memory_bytes = std::uint64_t{16} << 30;
    out.devices.push_back(d);
  }
  return out;
}

core::experiment with_trainers(std::size_t n) {
  core::experiment x;
  x.trainers.resize(n);
  return x;
}

std::vector<gpu::slot_options> slots(const core::experiment& exp, std::optional<unsigned> count, std::vector<std::string> devices,
                                     int gpus) {
  auto x = choose_slots(exp, count, devices, machine(gpus));
  return std::get<std::vector<gpu::slot_options>>(x);
}

} // namespace

TEST_CASE("without a word about slots every GPU has one") {
  auto x = slots(with_trainers(5), std::nullopt, {}, 2);
  REQUIRE(x.size() == 2);
  CHECK(x[0].device.id == "GPU-0000");
  CHECK(x[1].device.id == "GPU-1000");
  CHECK(x[1].index == 1);
}

TEST_CASE("without a GPU every usable core has a slot but no more than there are trainers") {
  CHECK(slots(with_trainers(5), std::nullopt, {}, 0).size() == 3);
  CHECK(slots(with_trainers(2), std::nullopt, {}, 0).size() == 2);
  CHECK(slots(with_trainers(5), std::nullopt, {"cpu"}, 2).size() == 3);
}

TEST_CASE("the command line goes before the experiment") {
  auto exp = with_trainers(5);
  exp.slots = {{"cpu", 2, 0, 0}};
  exp.math = "tf32";
  CHECK(slots(exp, std::nullopt, {}, 2).size() == 2);
  CHECK(slots(exp, std::nullopt, {}, 2)[0].device.id == "cpu");
  CHECK(slots(exp, 4, {}, 2).size() == 4);
  auto x = slots(exp, 4, {"cuda:1", "cpu"}, 2);
  REQUIRE(x.size() == 4);
  CHECK(x[0].device.id == "GPU-1000");
  CHECK(x[1].device.id == "cpu");
  CHECK(x[2].device.id == "GPU-1000");
  CHECK(x[2].math == gpu::math_mode::tf32);
}

TEST_CASE("slots of one GPU share its memory") {
  auto one = slots(with_trainers(5), 1, {"cuda"}, 1);
  auto four = slots(with_trainers(5), 4, {"cuda"}, 1);
  CHECK(four[0].memory_budget > 0);
  CHECK(four[0].memory_budget * 4 <= one[0].memory_budget);
}

TEST_CASE("a device that is not there is a fault that names the option") {
  auto x = choose_slots(with_trainers(1), std::nullopt, {"cuda:7"}, machine(1));
  auto& faults = std::get<std::vector<core::error>>(x);
  REQUIRE(faults.size() == 1);
  CHECK(faults[0].text.starts_with("--device: "));
  auto exp = with_trainers(1);
  exp.slots = {{"cuda", 1, 0, 0}};
  auto y = choose_slots(exp, std::nullopt, {}, machine(0));
  CHECK(std::get<std::vector<core::error>>(y)[0].text.starts_with("/slots/0/device: "));
}

TEST_CASE("worker processes that share a GPU are told of") {
  const auto two = slots(with_trainers(4), 4u, {}, 2);
  using hands = std::vector<std::vector<gpu::slot_options>>;
  CHECK(notes_on_shared_gpus(hands{{two[0], two[2]}, {two[1], two[3]}}).empty());
  CHECK(notes_on_shared_gpus(hands{two}).empty());
  const auto notes = notes_on_shared_gpus(hands{{two[0], two[1]}, {two[3]}, {two[2]}});
  REQUIRE(notes.size() == 2);
  CHECK(notes[0].find("2 worker processes share cuda:0") == 0);
  CHECK(notes[1].find("2 worker processes share cuda:1") == 0);
  CHECK(notes[0].find("leave out --workers") != std::string::npos);
  const auto on_cpu = slots(with_trainers(2), 2u, {"cpu"}, 0);
  CHECK(notes_on_shared_gpus(hands{{on_cpu[0]}, {on_cpu[1]}}).empty());
}
