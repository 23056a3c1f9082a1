#include "troupe/gpu/context.hpp"

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "slots_under_test.hpp"

using namespace troupe::gpu;

namespace {

std::string text_of_failure(auto&& f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return {};
}

} // namespace

TEST_CASE("buffers are aligned to 64 bytes and large ones begin at different places of a page") {
  context ctx(cpu_slot());
  std::vector<buffer> xs;
  std::vector<std::uintptr_t> places;
  for (std::size_t bytes : {1u, 63u, 64u, 5000u, 100'000u, 100'000u, 100'000u, 5'000'000u}) {
    xs.push_back(ctx.allocate(bytes));
    CHECK(xs.back().size() == bytes);
    const auto at = reinterpret_cast<std::uintptr_t>(xs.back().data());
    CHECK(at % 64 == 0);
    if (bytes >= 100'000)
      for (auto other : places)
        CHECK(other != at % 4096);
    if (bytes >= 100'000)
      places.push_back(at % 4096);
    ctx.zero(xs.back().data(), bytes);
  }
}

TEST_CASE("bytes go up and down and between buffers unchanged") {
  for (const auto& o : slots_under_test()) {
    CAPTURE(o.device.name);
    context ctx(o);
    std::vector<int> in(1000), out(1000);
    for (int i = 0; i < 1000; ++i)
      in[i] = i * i;
    auto a = ctx.allocate_of<int>(1000), b = ctx.allocate_of<int>(1000);
    ctx.upload(a.data(), std::span<const int>(in));
    ctx.copy(b.data(), a.data(), a.size());
    ctx.zero(a.data(), a.size());
    ctx.download(out.data(), b.data(), b.size());
    CHECK(out == in);
    ctx.download(out.data(), a.data(), a.size());
    CHECK(out == std::vector<int>(1000, 0));
  }
}

TEST_CASE("the budget is exact and its error has the numbers") {
  for (const auto& o : slots_under_test(1000)) {
    CAPTURE(o.device.name);
    context ctx(o);
    auto a = ctx.allocate(600);
    CHECK(ctx.memory_used() == 600);
    const auto text = text_of_failure([&] { (void)ctx.allocate(401); });
    CHECK(text.find("401 bytes were requested") != std::string::npos);
    CHECK(text.find("600 of 1000 bytes") != std::string::npos);
    auto b = ctx.allocate(400);
    CHECK(ctx.memory_used() == 1000);
    b = {};
    CHECK(ctx.memory_used() == 600);
    CHECK(ctx.memory_peak() == 1000);
    CHECK_THROWS_AS((void)ctx.allocate(std::size_t(-1)), out_of_memory);
    CHECK(ctx.allocate(400)); // still usable
  }
}

TEST_CASE("without a budget the device's memory is the limit") {
  auto o = cpu_slot();
  o.device.memory_bytes = 10'000;
  context ctx(o);
  CHECK_THROWS_AS((void)ctx.allocate(10'001), out_of_memory);
  CHECK(ctx.allocate(10'000));
}

TEST_CASE("host memory does not count in the budget") {
  for (const auto& o : slots_under_test(100)) {
    CAPTURE(o.device.name);
    context ctx(o);
    auto h = ctx.allocate_host(10'000);
    CHECK(h.size() == 10'000);
    CHECK(ctx.memory_used() == 0);
  }
}

TEST_CASE("a freed block is used again") {
  context ctx(cpu_slot());
  auto a = ctx.allocate(100'000);
  [[maybe_unused]] auto* const at = a.data();
  a = {};
  a = ctx.allocate(100'000);
#ifndef __SANITIZE_ADDRESS__ // keeps nothing there, so that uses after free are found
  CHECK(a.data() == at);
#endif
}

TEST_CASE("a buffer moves and frees what it held") {
  context ctx(cpu_slot());
  auto a = ctx.allocate(100);
  auto b = ctx.allocate(200);
  b = std::move(a);
  CHECK(ctx.memory_used() == 100);
  CHECK_FALSE(a);
  CHECK(b.size() == 100);
  CHECK_FALSE(ctx.allocate(0));
}

TEST_CASE("any use on another thread than the owner is refused") {
  for (const auto& o : slots_under_test()) {
    CAPTURE(o.device.name);
    context ctx(o);
    std::string text;
    std::thread([&] { text = text_of_failure([&] { (void)ctx.allocate(1); }); }).join();
    CHECK(text.find("thread that does not own it") != std::string::npos);
    std::thread([&] {
      ctx.bind();
      CHECK(ctx.allocate(1));
    }).join();
    CHECK_THROWS_AS((void)ctx.allocate(1), std::logic_error);
    ctx.bind();
    CHECK(ctx.allocate(1));
  }
}

TEST_CASE("a buffer may be destroyed on another thread and after its context") {
  for (const auto& o : slots_under_test(1000)) {
    CAPTURE(o.device.name);
    buffer late;
    {
      context ctx(o);
      late = ctx.allocate(400);
      auto a = ctx.allocate(600);
      std::thread([x = std::move(a)] {}).join();
      CHECK(ctx.memory_used() == 400);
      a = ctx.allocate(600);
      CHECK(ctx.memory_used() == 1000);
    }
    std::thread([x = std::move(late)] {}).join();
  }
}

TEST_CASE("a context asks to give way at its deadline or when asked to") {
  using clock = std::chrono::steady_clock;
  context ctx(cpu_slot());
  CHECK_FALSE(ctx.should_yield());
  std::atomic<bool> flag{false};
  ctx.set_yield(&flag, clock::time_point::max());
  CHECK_FALSE(ctx.should_yield());
  flag = true;
  CHECK(ctx.should_yield());
  ctx.set_yield(nullptr, clock::now());
  CHECK(ctx.should_yield());
}

TEST_CASE("cores that are not there are refused with their numbers") {
  auto o = cpu_slot();
  o.cores = {1023};
  const auto text = text_of_failure([&] {
    std::thread([&] { CHECK_THROWS_AS(context{o}, device_error); }).join();
    context c(o);
  });
  CHECK(text.find("1023") != std::string::npos);
}

TEST_CASE("a GPU slot without a usable GPU is refused with the reason") {
  const auto report = find_devices();
  auto o = cpu_slot();
  o.index = 2;
  o.device.kind = device_kind::cuda;
  o.device.id = "GPU-00000000-dead-beef-0000-000000000000";
  o.device.cores.clear();
  const auto text = text_of_failure([&] { context c(o); });
  CHECK(text.find("slot 2") == 0);
  CHECK(text.find("GPU-00000000-dead-beef") != std::string::npos);
  if (report.cuda_status != "ok")
    CHECK((text.find(report.cuda_status) != std::string::npos ||
           text.find("built without CUDA") != std::string::npos));
}

TEST_CASE("pinned host memory goes up and may be written again at once") {
  for (const auto& o : slots_under_test()) {
    CAPTURE(o.device.name);
    context ctx(o);
    constexpr int n = 1 << 20;
    auto host = ctx.allocate_host(n * 4), device = ctx.allocate(n * 4);
    std::fill_n(host.as<int>(), n, 7);
    ctx.upload(device.data(), host.data(), host.size());
    std::fill_n(host.as<int>(), n, 8);
    ctx.download(host.data(), device.data(), device.size());
    CHECK(std::count(host.as<int>(), host.as<int>() + n, 7) == n);
  }
}
