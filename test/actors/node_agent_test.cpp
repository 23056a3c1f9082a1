#include "rig.hpp"

#include <doctest/doctest.h>

using namespace rig;

TEST_CASE("a node presents itself with its slots") {
  process p{2};
  auto up = p.log->next<node_up>();
  CHECK(up.node == 0);
  CHECK(up.process_id > 0);
  REQUIRE(up.slots.size() == 2);
  CHECK(up.slots[1].index == 1);
  CHECK(up.slots[1].device == "cpu");
  CHECK(up.slots[1].kind == "cpu");
  CHECK(up.agent == p.agent);
}

TEST_CASE("FAULTS row 3: a hundred trainers on one slot all meet and all finish") {
  process p;
  std::vector<trainer_up> all;
  for (std::uint32_t i = 0; i < 100; ++i) {
    auto order = p.order(i, 10);
    order.schedule.every_steps = 5;
    all.push_back(p.host(order));
  }
  for (const auto& t : all)
    p.tell(t, begin_training{});
  for (std::uint32_t i = 0; i < 100; ++i)
    CHECK(p.log->next<sync_report>(i).what.step == 5);
  for (const auto& t : all)
    p.tell(t, resume_sync{{}, 0});
  for (std::uint32_t i = 0; i < 100; ++i)
    CHECK(p.log->next<trainer_finished>(i).what.step == 10);
}

TEST_CASE("a higher incarnation replaces a trainer and a repeated order is ignored") {
  process p{1, true};
  auto order = p.order(0, ~0ull);
  auto t = p.host(order);
  p.tell(t, begin_training{});
  p.the_gate->await_waiting();
  anon_mail(order).send(p.agent); // told twice
  order.who.incarnation = 1;
  anon_mail(order).send(p.agent);
  p.the_gate->open(); // the old life ends after the step at hand
  auto again = p.log->next<trainer_up>();
  CHECK(again.from.incarnation == 1);
  CHECK(p.log->count<trainer_up>() == 0);
  CHECK(p.log->count<trainer_failed>() == 0);
  caf::scoped_actor self{*p.sys};
  mail(self, query_node{}).request(p.agent, 20s).receive(
      [](const node_status& s) {
        REQUIRE(s.slots.size() == 1);
        CHECK(s.slots[0].trainers == 1);
        CHECK(s.slots[0].alive);
      },
      [](caf::error& e) { FAIL(error_text(e)); });
}

TEST_CASE("a dropped trainer ends without a word and its slot is free") {
  process p{1, true};
  auto t = p.host(p.order(0, ~0ull));
  p.tell(t, begin_training{});
  p.the_gate->await_waiting();
  caf::scoped_actor self{*p.sys};
  anon_mail(drop_trainer{{7, 0, 5}}).send(p.agent); // another life: nothing happens
  anon_mail(drop_trainer{t.from}).send(p.agent);
  self->wait_for(t.who);
  p.the_gate->open();
  auto next = p.host(p.order(1, 10));
  p.tell(next, begin_training{});
  CHECK(p.log->next<trainer_finished>(1).what.step == 10);
  CHECK(p.log->count<trainer_failed>() == 0);
  CHECK(p.log->count<trainer_finished>() == 0);
}

TEST_CASE("a node drops states on request and counts what it holds") {
  process p;
  auto t = p.host(p.order(0, 10));
  p.tell(t, export_state{{}, 0});
  auto x = p.log->next<state_exported>();
  CHECK(x.state.bytes == 16);
  caf::scoped_actor self{*p.sys};
  const auto held = [&] {
    node_status out;
    mail(self, query_node{}).request(p.agent, 20s).receive([&](const node_status& s) { out = s; },
                                                           [](caf::error& e) { FAIL(error_text(e)); });
    return out;
  };
  auto before = held();
  CHECK(before.blobs == 1);
  CHECK(before.blob_bytes == 16);
  CHECK(before.slots[0].tasks >= 2);
  mail(self, drop_state{x.state.blob}).send(p.agent);
  CHECK(held().blobs == 0);
}

TEST_CASE("an order for a slot that is not there is refused") {
  process p;
  auto order = p.order(0, 10);
  order.slot = 4;
  anon_mail(order).send(p.agent);
  auto f = p.log->next<trainer_failed>();
  CHECK(f.failure.text == "node 0 has no slot 4, but 1");
  CHECK_FALSE(f.device_lost);
}

TEST_CASE("a process with running trainers leaves at once fifty times in a row") {
  for (int i = 0; i < 50; ++i) {
    process p;
    auto t = p.host(p.order(0, ~0ull));
    p.tell(t, begin_training{});
    p.host(p.order(1, 10));
  } // the rest of its life is never trained
}

TEST_CASE("an idle slot takes over one of two trainers that share another with all that was measured of it") {
  process p{2};
  std::vector<trainer_up> both;
  for (std::uint32_t i = 0; i < 2; ++i) {
    auto order = p.order(i, 1'000'000'000'000);
    order.movable = true;
    both.push_back(p.host(order));
  }
  for (const auto& t : both)
    p.tell(t, begin_training{});
  const auto moved = p.log->next<trainer_moved>();
  CHECK(moved.from_slot == 0);
  CHECK(moved.to_slot == 1);
  CHECK_FALSE(moved.failure);
  const auto& t = both[moved.from.trainer];
  p.tell(t, call_sync{{}, 0});
  const auto m = from_wire(p.log->next<sync_report>(moved.from.trainer).what);
  CHECK(m.step >= moved.step);
  const auto n = static_cast<double>(m.step);
  CHECK(m.number("weight") == n * (n + 1) / 2); // no step is lost or made twice
  CHECK(m.loss == doctest::Approx((n + 1) * (n + 2) / 6)); // of the steps on both slots
  CHECK(m.compute_seconds > 0);
  caf::scoped_actor self{*p.sys};
  mail(self, query_node{})
      .request(p.agent, 20s)
      .receive(
          [&](const node_status& s) {
            CHECK(s.slots[0].trainers == 1);
            CHECK(s.slots[1].trainers == 1);
          },
          [](caf::error& e) { FAIL(error_text(e)); });
  p.tell(t, resume_sync{{}, 0});
  p.tell(t, export_state{{}, 9});
  CHECK(p.log->next<state_exported>().state.bytes == 16);
  p.tell(t, stop_training{{}, true, "enough"});
  CHECK(p.log->next<trainer_finished>(moved.from.trainer).stopped);
}

TEST_CASE("a process with a trainer that moves leaves at once twenty times in a row") {
  for (int i = 0; i < 20; ++i) {
    process p{2};
    for (std::uint32_t k = 0; k < 3; ++k) {
      auto order = p.order(k, 1'000'000'000'000);
      order.movable = true;
      p.tell(p.host(order), begin_training{});
    }
    if (i % 2 == 0)
      p.log->next<trainer_moved>();
  }
}
