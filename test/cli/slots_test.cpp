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

TEST_CASE("a device under two names is a fault") {
  auto x = choose_slots(with_trainers(4), std::nullopt, {"cpu", "cuda", "cuda:0", "GPU-0"}, machine(2));
  auto& faults = std::get<std::vector<core::error>>(x);
  REQUIRE(faults.size() == 2);
  CHECK(faults[0].text == "--device: 'cuda:0' is the same device as 'cuda': --slots says how many slots it has");
  CHECK(faults[1].text.starts_with("--device: 'GPU-0' is the same device"));
}

TEST_CASE("a trainer finds its own slot by number and place and device or is a fault of its entry") {
  auto exp = with_trainers(3);
  const auto report = machine(2);
  const auto on = slots(exp, 3, {"cuda:0", "cuda:1", "cpu"}, 2);
  const auto faults = [&](const std::string& pin, unsigned workers = 0) {
    for (std::size_t i = 0; i < exp.trainers.size(); ++i) {
      exp.trainers[i].slot = i == 0 ? "" : pin;
      exp.trainers[i].where = "/trainers/" + std::to_string(i / 2); // the last two are of one entry, or of two
    }
    return check_pins(exp, on, workers, report);
  };
  for (auto pin : {"", "0", "2", "0/0", "0/2", "cpu", "cuda", "cuda:1", "GPU-1000", "GPU-0"}) {
    INFO(pin);
    CHECK(faults(pin).empty());
  }
  for (auto pin : {"3", "0/3", "1/0", "cuda:2", "GPU-2", "gpu", "-1"}) {
    INFO(pin);
    CHECK(faults(pin).size() == 2);
  }
  CHECK(faults("3")[0].text ==
        "/trainers/0/slot: '3' is no slot of this run, which has 3 slots: 0/0 (GPU-0000), 0/1 (GPU-1000), 0/2 (cpu)");
  CHECK(check_pin_of(R"({"name": "late", "slot": 2})", on, 0, report));
  CHECK(check_pin_of(R"({"name": "late"})", on, 0, report));
  CHECK(check_pin_of("{", on, 0, report)); // wrong in another way
  const auto late = check_pin_of(R"({"name": "late", "slot": 7})", on, 0, report);
  REQUIRE_FALSE(late);
  CHECK(late.error().text.starts_with("/slot: '7' is no slot of this run"));
  CHECK(faults("1/1", 2).empty()); // dealt to two processes: 1/0, 2/0, 1/1
  CHECK(faults("2/0", 2).empty());
  CHECK(faults("2/1", 2).size() == 2);
  CHECK(faults("0/0", 2).size() == 2); // the head has none then
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
