#include <doctest/doctest.h>

#include <array>

#include "troupe/gpu/slots.hpp"

using namespace troupe;
using gpu::device_kind;

namespace {

gpu::device_report machine() {
  gpu::device_report r;
  auto& cpu = r.devices.emplace_back();
  cpu.id = "cpu";
  cpu.cores = {0, 1, 2, 3};
  cpu.usable_cores = 4;
  cpu.memory_bytes = std::uint64_t{16} << 30;
  for (int i = 0; i < 2; ++i) {
    auto& d = r.devices.emplace_back();
    d.kind = device_kind::cuda;
    d.ordinal = i;
    d.id = i == 0 ? "GPU-aa" : "GPU-bb";
    d.memory_bytes = std::uint64_t{80} << 30;
  }
  return r;
}

struct answer {
  std::vector<gpu::slot_options> slots;
  std::vector<core::error> faults;
};

answer ask(std::vector<core::slot_request> wanted) {
  answer a;
  a.slots = gpu::make_slots(machine(), wanted, gpu::math_mode::fp32, "/slots", a.faults);
  return a;
}

} // namespace

TEST_CASE("slots of one GPU divide its memory and leave room for the CUDA context") {
  auto a = ask({{.device = "cuda:1", .count = 2}});
  REQUIRE(a.faults.empty());
  REQUIRE(a.slots.size() == 2);
  CHECK(a.slots[1].device.id == "GPU-bb");
  CHECK(a.slots[1].index == 1);
  CHECK(a.slots[0].memory_budget == a.slots[1].memory_budget);
  CHECK(a.slots[0].memory_budget + a.slots[1].memory_budget < (std::uint64_t{80} << 30));
  CHECK(a.slots[0].memory_budget > (std::uint64_t{39} << 30));
}

TEST_CASE("slots without a share divide what the others leave") {
  auto a = ask({{.device = "cuda", .milli_share = 600}, {.device = "cuda:0", .count = 2}});
  REQUIRE(a.slots.size() == 3);
  CHECK(a.slots[0].memory_budget == 3 * a.slots[2].memory_budget);
}

TEST_CASE("a memory budget that was given holds as it is") {
  auto a = ask({{.device = "cpu", .memory_bytes = 1000}});
  REQUIRE(a.slots.size() == 1);
  CHECK(a.slots[0].memory_budget == 1000);
}

TEST_CASE("slots may pin a quarter of the host's memory together or what each was given") {
  auto a = ask({{.device = "cuda", .count = 2}, {.device = "cpu", .pinned_bytes = 5000}});
  REQUIRE(a.slots.size() == 3);
  CHECK(a.slots[0].pinned_budget == (std::uint64_t{16} << 30) / 4 / 3);
  CHECK(a.slots[1].pinned_budget == a.slots[0].pinned_budget);
  CHECK(a.slots[2].pinned_budget == 5000);
}

TEST_CASE("slots may pin a quarter of what other programs leave of the host's memory") {
  const auto pinned = [](std::uint64_t available) {
    std::vector<core::error> faults;
    const std::vector<core::slot_request> wanted{{.device = "cuda", .count = 2}};
    const auto slots = gpu::make_slots(machine(), wanted, gpu::math_mode::fp32, "/slots", faults, available);
    REQUIRE(slots.size() == 2);
    CHECK(slots[1].pinned_budget == slots[0].pinned_budget);
    return slots[0].pinned_budget;
  };
  CHECK(pinned(std::uint64_t{4} << 30) == (std::uint64_t{1} << 30) / 2);
  CHECK(pinned(std::uint64_t{64} << 30) == (std::uint64_t{16} << 30) / 4 / 2); // never more than a quarter of all
  CHECK(pinned(1) == 1); // nothing is left: not 0, which is no limit
  CHECK(gpu::available_host_memory() > 0);
}

TEST_CASE("a slot that was told not to capture its steps does not and others decide by their device") {
  const auto a = ask({{.device = "cuda", .count = 2, .capture = false}, {.device = "cuda:1"}});
  REQUIRE(a.slots.size() == 3);
  CHECK(a.slots[0].capture == gpu::capture_mode::never);
  CHECK(a.slots[1].capture == gpu::capture_mode::never);
  CHECK(a.slots[2].capture == gpu::capture_mode::automatic);
}

TEST_CASE("CPU slots are pinned only where they have a share of their own and then to cores apart") {
  auto plain = ask({{.device = "cpu", .count = 2}});
  CHECK(plain.slots[0].cores.empty());
  auto halves = ask({{.device = "cpu", .count = 2, .milli_share = 500}});
  CHECK(halves.slots[0].cores == std::vector<int>{0, 1});
  CHECK(halves.slots[1].cores == std::vector<int>{2, 3});
}

TEST_CASE("five slots of 180 thousandths fit a device and six do not") {
  auto a = ask({{.device = "cuda:0", .count = 5, .milli_share = 180}, {.device = "cuda:1", .count = 5, .milli_share = 180}});
  CHECK(a.faults.empty());
  CHECK(a.slots.size() == 10);
  auto b = ask({{.device = "cuda:0", .count = 6, .milli_share = 180}});
  REQUIRE(b.faults.size() == 1);
  CHECK(b.faults[0].text.find("/slots/0: GPU-aa is shared out: its slots with a milli_share take 1080 of 1000") == 0);
}

TEST_CASE("every unknown device is named with its place") {
  auto a = ask({{.device = "cuda:7"}, {.device = "cpu"}, {.device = "tpu"}});
  REQUIRE(a.faults.size() == 2);
  CHECK(a.faults[0].text.starts_with("/slots/0/device: "));
  CHECK(a.faults[1].text.starts_with("/slots/2/device: "));
  CHECK(a.slots.empty());
}

TEST_CASE("a slot that finds nothing left of its device is refused") {
  auto a = ask({{.device = "cuda", .milli_share = 1000}, {.device = "cuda"}});
  REQUIRE(a.faults.size() == 1);
  CHECK(a.faults[0].text.find("1 more want a part") != std::string::npos);
}

TEST_CASE("each process that has slots on a GPU takes a context of its memory and each slot a workspace") {
  const auto sum = [](std::vector<core::slot_request> wanted, unsigned workers) {
    std::vector<core::error> faults;
    auto report = machine();
    for (auto& d : report.devices)
      d.compute_major = 9;
    std::uint64_t out = 0;
    for (const auto& s : gpu::make_slots(report, wanted, gpu::math_mode::fp32, "", faults, 0, workers))
      if (s.device.ordinal == 0 && s.device.kind == device_kind::cuda)
        out += s.memory_budget;
    return out;
  };
  const auto all = std::uint64_t{80} << 30, workspace = std::uint64_t{32} << 20;
  const auto close = [](std::uint64_t x, std::uint64_t y) { return x <= y && y - x < 10'000; }; // shares are rounded down
  CHECK(close(sum({{.device = "cuda:0", .count = 4}}, 0), all - gpu::context_bytes - 4 * workspace));
  CHECK(close(sum({{.device = "cuda:0", .count = 4}}, 1), all - gpu::context_bytes - 4 * workspace));
  CHECK(close(sum({{.device = "cuda:0", .count = 4}}, 4), all - 4 * gpu::context_bytes - 4 * workspace));
  CHECK(close(sum({{.device = "cuda:0", .count = 4}}, 3), all - 3 * gpu::context_bytes - 4 * workspace));
  // Dealt in turn, each GPU is one worker's.
  std::vector<core::slot_request> alternate;
  for (int i = 0; i < 4; ++i)
    alternate.push_back({.device = i % 2 == 0 ? "cuda:0" : "cuda:1"});
  CHECK(close(sum(alternate, 2), all - gpu::context_bytes - 2 * workspace));
}
