#include "record_pages.hpp"

#include <algorithm>

#include <doctest/doctest.h>

#include "backend.hpp"
#include "gpu/model_support.hpp"
#include "slots_under_test.hpp"

using namespace troupe::gpu;
using internal::record_pages;
using model_test::mentions;
using model_test::thrown_text;

namespace {

constexpr std::int64_t floats = 64; // of a record: 256 bytes

void write(context& ctx, record_pages& r, std::int64_t row, float value) {
  const std::vector<float> x(floats, value);
  ctx.upload(r.row(row, true), std::span<const float>(x));
}

bool holds(context& ctx, record_pages& r, std::int64_t row, float value) {
  std::vector<float> x(floats);
  ctx.download(x.data(), r.row(row, false), floats * sizeof(float));
  return std::all_of(x.begin(), x.end(), [&](float v) { return v == value; });
}

} // namespace

TEST_CASE("records of more pages than the budget holds keep their contents") {
  for (const auto& o : slots_under_test(3 * 512)) {
    CAPTURE(o.device.name);
    context ctx(o);
    ctx.impl().delay_copies();
    record_pages r(ctx, floats, 2);
    for (int p = 0; p < 8; ++p)
      r.add_page();
    CHECK(r.rows() == 16);
    CHECK(r.paged());
    CHECK(r.device_bytes() == 3 * 512);
    for (int round = 0; round < 3; ++round) {
      for (std::int64_t i = 0; i < 16; ++i)
        write(ctx, r, (i * 5) % 16, static_cast<float>((i * 5) % 16 + round));
      for (std::int64_t i = 0; i < 16; ++i)
        CHECK(holds(ctx, r, i, static_cast<float>(i + round)));
    }
    r.copy_row(0, 15);
    r.copy_row(2, 3);
    CHECK(holds(ctx, r, 15, 2));
    CHECK(holds(ctx, r, 3, 4));
    CHECK(ctx.memory_used() <= 3 * 512);
  }
}

TEST_CASE("the page needed longest ago gives way and an unchanged one is not sent again") {
  context ctx(cpu_slot(2 * 512));
  record_pages r(ctx, floats, 2);
  for (int p = 0; p < 3; ++p)
    r.add_page();
  for (std::int64_t i = 0; i < 6; i += 2)
    write(ctx, r, i, 1);
  const auto swaps = [&](std::int64_t row) { return r.swaps_of(row); };
  CHECK(swaps(0) == 1); // page 0 went when page 2 came
  CHECK(holds(ctx, r, 2, 1));
  CHECK(holds(ctx, r, 0, 1)); // page 2 went, needed before page 1
  CHECK(swaps(2) == 0);
  CHECK(swaps(4) == 1);
  CHECK(holds(ctx, r, 4, 1)); // page 1 went
  const auto before = ctx.snapshot();
  CHECK(holds(ctx, r, 2, 1)); // page 0 gives way: the host has it
  CHECK(ctx.snapshot().swaps_out == before.swaps_out);
  CHECK(ctx.snapshot().swaps_in == before.swaps_in + 1);
  CHECK(holds(ctx, r, 0, 1));
}

TEST_CASE("a page that is in use never moves") {
  for (const std::uint64_t frames : {1, 2, 3}) {
    context ctx(cpu_slot(frames * 512));
    ctx.impl().delay_copies();
    record_pages r(ctx, floats, 2);
    for (int p = 0; p < 6; ++p)
      r.add_page();
    for (std::int64_t i = 0; i < 12; ++i)
      write(ctx, r, i, static_cast<float>(i));
    auto* running = r.row(0, true);
    for (std::int64_t p = 1; p < 6; ++p)
      r.fetch_ahead(p);
    CHECK(r.row(1, true) == running + floats);
    std::fill_n(running, floats, 100.0F); // as a step that still runs would
    r.fetch_ahead(3);
    for (std::int64_t i = 1; i < 12; ++i)
      CHECK(holds(ctx, r, i, static_cast<float>(i)));
    CHECK(holds(ctx, r, 0, 100));
  }
}

TEST_CASE("one page is divided into several and device memory is given up page by page") {
  context ctx(cpu_slot(64 * 1024));
  record_pages r(ctx, floats, 1);
  r.resize(8, 0);
  for (std::int64_t i = 0; i < 8; ++i)
    write(ctx, r, i, static_cast<float>(i));
  r.resize(16, 8);
  CHECK(holds(ctx, r, 7, 7));
  r.divide(4);
  CHECK(r.pages() == 4);
  CHECK(holds(ctx, r, 5, 5));
  CHECK_FALSE(r.give_up_frame()); // they lie in one piece
  CHECK(mentions(thrown_text([&] { r.resize(32, 16); }), "only a store of one page"));

  record_pages apart(ctx, floats, 2);
  for (int p = 0; p < 3; ++p)
    apart.add_page();
  for (std::int64_t i = 0; i < 6; ++i)
    write(ctx, apart, i, static_cast<float>(i));
  CHECK(apart.give_up_frame());
  CHECK(apart.give_up_frame());
  CHECK_FALSE(apart.give_up_frame());
  CHECK(apart.device_bytes() == 512);
  for (std::int64_t i = 0; i < 6; ++i)
    CHECK(holds(ctx, apart, i, static_cast<float>(i)));
  CHECK(holds(ctx, apart, 5, 5)); // now the last page has the only frame, which stays for those that wait
  apart.drop_last_page();
  CHECK(holds(ctx, apart, 3, 3));
  apart.drop_last_page();
  CHECK_FALSE(apart.paged());
  CHECK(holds(ctx, apart, 1, 1));
}

TEST_CASE("without pinned memory for it a page more is refused with both reasons and the others stay") {
  auto o = cpu_slot(2 * 512);
  o.pinned_budget = 1000;
  context ctx(o);
  record_pages r(ctx, floats, 2);
  r.add_page();
  r.add_page();
  write(ctx, r, 3, 5);
  const auto text = thrown_text([&] { r.add_page(); });
  CHECK(mentions(text, "512 bytes were requested, 1024 of 1024 bytes of the slot's memory budget are in use"));
  CHECK(mentions(text, "of the slot's 1000 bytes are in use"));
  CHECK(ctx.snapshot().pinned_used == 0); // not half of what would have been needed
  CHECK(r.pages() == 2);
  CHECK_FALSE(r.paged());
  CHECK(holds(ctx, r, 3, 5));
}

TEST_CASE("what was on its way to a page that went does not land on the page that comes next") {
  context ctx(cpu_slot(2 * 512));
  ctx.impl().delay_copies();
  record_pages r(ctx, floats, 2);
  for (int p = 0; p < 3; ++p)
    r.add_page();
  for (std::int64_t i = 4; i >= 0; i -= 2)
    write(ctx, r, i, static_cast<float>(i + 1)); // page 2 is on the host now
  REQUIRE(holds(ctx, r, 0, 1));
  r.fetch_ahead(2); // in place of page 1
  r.drop_last_page();
  r.drop_last_page();
  r.add_page();
  REQUIRE_FALSE(r.paged());
  write(ctx, r, 2, 7);
  ctx.synchronize();
  CHECK(holds(ctx, r, 2, 7));
  CHECK(holds(ctx, r, 0, 1));
}

TEST_CASE("when few pages are left the device memory of the others and all pinned memory go back") {
  context ctx(cpu_slot(5 * 512));
  ctx.impl().delay_copies();
  record_pages r(ctx, floats, 2);
  for (int round = 0; round < 3; ++round) {
    while (r.pages() < 12)
      r.add_page();
    CHECK(r.paged());
    CHECK(r.device_bytes() == 5 * 512);
    for (std::int64_t i = 0; i < 24; ++i)
      write(ctx, r, i, static_cast<float>(i + round));
    (void)holds(ctx, r, 9, 0); // frames are in no order
    while (r.pages() > 2)
      r.drop_last_page();
    for (std::int64_t i = 0; i < 4; ++i)
      CHECK(holds(ctx, r, i, static_cast<float>(i + round)));
    CHECK_FALSE(r.paged());
    CHECK(r.device_bytes() == 2 * 512);
    CHECK(ctx.memory_used() == 2 * 512);
    CHECK(ctx.snapshot().pinned_used == 0);
    write(ctx, r, 3, 77);
    r.add_page();
    write(ctx, r, 5, 55);
    CHECK(holds(ctx, r, 3, 77));
    CHECK(holds(ctx, r, 5, 55));
    CHECK(holds(ctx, r, 0, static_cast<float>(round)));
  }
}

TEST_CASE("pages that were divided become one again when there is but one") {
  context ctx(cpu_slot(16 * 256 + 1000));
  ctx.impl().delay_copies();
  record_pages r(ctx, floats, 1);
  r.resize(8, 0);
  r.divide(4);
  while (r.pages() < 5)
    r.add_page();
  for (std::int64_t i = 0; i < 20; ++i)
    write(ctx, r, i, static_cast<float>(i));
  while (r.pages() > 1)
    r.drop_last_page(); // page 0 is on the host
  r.resize(2, 2);
  CHECK_FALSE(r.divided());
  CHECK(r.rows() == 2);
  CHECK(r.device_bytes() == 2 * 256);
  CHECK(ctx.memory_used() == 2 * 256);
  CHECK(ctx.snapshot().pinned_used == 0);
  CHECK(holds(ctx, r, 0, 0));
  CHECK(holds(ctx, r, 1, 1));
}
