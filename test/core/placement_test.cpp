#include <stdexcept>

#include <doctest/doctest.h>

#include "troupe/core/placement.hpp"

using namespace troupe::core;

namespace {

using trainers = std::vector<trainer_id>;

/// Two CPU slots of node 0, a GPU slot of node 1 and one of node 2.
placement four_slots() {
  return placement{{{0, 0, "cpu"}, {0, 1, "cpu"}, {1, 0, "GPU-8a51"}, {2, 0, "GPU-8b00"}}};
}

} // namespace

TEST_CASE("row 26: forty shares of 180 fit on 8 devices and eighty on 16 with exact sums") {
  share_ledger ledger{8};
  std::vector<std::size_t> taken;
  const auto take = [&](int n) {
    for (int i = 0; i < n; ++i) {
      const auto device = ledger.take(180);
      REQUIRE(device);
      taken.push_back(*device);
    }
    CHECK_FALSE(ledger.take(180));
    for (std::size_t i = 0; i < ledger.devices(); ++i)
      CHECK(ledger.free_share(i) == 100);
  };
  take(40);
  ledger.add_devices(8);
  CHECK(ledger.devices() == 16);
  take(40);
  CHECK(taken.size() == 80);
  for (auto device : taken)
    REQUIRE(ledger.give_back(device, 180));
  for (std::size_t i = 0; i < 16; ++i)
    CHECK(ledger.free_share(i) == share_ledger::whole);
}

TEST_CASE("a share goes where it fits best so that whole devices stay free") {
  share_ledger ledger{3};
  CHECK(ledger.take(600) == 0u);
  CHECK(ledger.take(700) == 1u);
  CHECK(ledger.take(300) == 1u);
  CHECK(ledger.take(300) == 0u);
  CHECK(ledger.take(1000) == 2u);
  CHECK_FALSE(ledger.take(101));
  CHECK(ledger.take(100) == 0u);
  CHECK_FALSE(ledger.take(1));
}

TEST_CASE("more than was taken does not come back") {
  share_ledger ledger{1};
  CHECK(ledger.take(400) == 0u);
  const auto bad = ledger.give_back(0, 401);
  REQUIRE_FALSE(bad);
  CHECK(bad.error().code == errc::refused);
  CHECK(ledger.free_share(0) == 600);
  CHECK(ledger.give_back(0, 400));
  CHECK(ledger.give_back(1, 1).error().code == errc::not_found);
  CHECK_THROWS_AS((void)ledger.free_share(1), std::out_of_range);
}

TEST_CASE("trainers spread over the slots with the fewest trainers and lowest numbers") {
  auto p = four_slots();
  for (trainer_id t = 0; t < 8; ++t)
    CHECK(p.place(t, "t", "").value() == t % 4);
  p.remove(5);
  CHECK_FALSE(p.where(5));
  CHECK(p.load(1) == 1);
  CHECK(p.place(9, "t", "").value() == 1);
}

TEST_CASE("the order of joining does not matter to where trainers go") {
  placement p{{{2, 0, "cpu"}, {0, 1, "cpu"}, {0, 0, "cpu"}}};
  CHECK(p.place(0, "a", "").value() == 2);
  CHECK(p.place(1, "b", "").value() == 1);
  CHECK(p.place(2, "c", "").value() == 0);
}

TEST_CASE("a pin comes before the load") {
  auto p = four_slots();
  CHECK(p.place(0, "a", "1").value() == 1);
  CHECK(p.place(1, "b", "1").value() == 1);
  CHECK(p.place(2, "c", "2/0").value() == 3);
  CHECK(p.place(3, "d", "cpu").value() == 0);
  CHECK(p.place(4, "e", "cpu").value() == 0);
  CHECK(p.place(5, "f", "GPU-8a").value() == 2);
  CHECK(p.place(6, "g", "cuda").value() == 2);
  CHECK(p.place(7, "h", "GPU-8b00").value() == 3);
}

TEST_CASE("a pin that matches no slot is an error that names trainer and pin and what there is") {
  auto p = four_slots();
  for (const char* pin : {"4", "0/2", "GPU-9", "cuda:1", "cp", "-1", "1x", "/", "18446744073709551616"}) {
    const auto bad = p.place(0, "wide", pin);
    REQUIRE_FALSE(bad);
    CHECK(bad.error().text ==
          "trainer \"wide\" is pinned to \"" + std::string{pin} +
              "\", which is no slot; there are 0 (cpu), 1 (cpu), 2 (GPU-8a51), 3 (GPU-8b00)");
  }
}

TEST_CASE("a lost node's trainers are unplaced in order and go elsewhere") {
  placement p{{{0, 0, "cpu"}, {1, 0, "cpu"}, {1, 1, "cpu"}}};
  for (trainer_id t : {5u, 4u, 3u, 2u, 1u, 0u})
    REQUIRE(p.place(t, "t", ""));
  CHECK(p.lose_node(1) == trainers{0, 1, 3, 4});
  CHECK_FALSE(p.where(3));
  CHECK(p.load(1) == 0);
  for (trainer_id t : {0u, 1u, 3u, 4u})
    CHECK(p.place(t, "t", "").value() == 0);
  CHECK(p.load(0) == 6);
  CHECK(p.lose_node(1).empty());
  const auto pinned = p.place(7, "wide", "1/0");
  REQUIRE_FALSE(pinned);
  CHECK(pinned.error().code == errc::refused);
  CHECK(p.lose_node(0).size() == 6);
  CHECK(p.place(0, "t", "").error().code == errc::refused);
}

TEST_CASE("a lost slot gives its trainers back and takes no more") {
  placement p({{0, 0, "cpu"}, {0, 1, "cpu"}});
  for (trainer_id t = 0; t < 4; ++t)
    CHECK(p.place(t, "t", ""));
  CHECK(p.lose_slot(0, 1) == std::vector<trainer_id>{1, 3});
  CHECK(p.lose_slot(0, 1).empty());
  CHECK(p.lose_slot(7, 0).empty());
  CHECK(*p.place(1, "t", "") == 0);
  CHECK_FALSE(p.where(3));
}

TEST_CASE("a node that comes back takes its old places") {
  placement p{{{0, 0, "cpu"}, {1, 0, "cpu"}}};
  (void)p.lose_node(1);
  p.add_slot({1, 0, "GPU-1"});
  p.add_slot({1, 1, "GPU-2"});
  CHECK(p.slots().size() == 3);
  CHECK(p.place(0, "a", "GPU-1").value() == 1);
  CHECK(p.place(1, "b", "GPU-2").value() == 2);
  CHECK_THROWS_AS(p.add_slot({1, 1, "GPU-2"}), std::invalid_argument);
}

TEST_CASE("a placed trainer moves when placed again and stays after an error") {
  auto p = four_slots();
  CHECK(p.place(0, "a", "3").value() == 3);
  CHECK_FALSE(p.place(0, "a", "9"));
  CHECK(p.where(0) == 3u);
  CHECK(p.place(0, "a", "cuda").value() == 2);
  CHECK(p.load(3) == 0);
  CHECK(p.load(2) == 1);
  CHECK_THROWS_AS((void)p.load(4), std::out_of_range);
}

TEST_CASE("FAULTS row 32 who ran out of memory comes back only beside fewer others") {
  placement p({{0, 0, "cpu", true}});
  using room = placement::room;
  for (trainer_id t : {0, 1, 2})
    REQUIRE(p.place(t, "t", ""));
  CHECK(p.crowded(2) == 2);
  CHECK_FALSE(p.where(2).has_value());
  CHECK(p.room_for(2, "") == room::later);
  const auto full = p.place(2, "big", "");
  REQUIRE_FALSE(full);
  CHECK(full.error().code == errc::out_of_memory);
  CHECK(full.error().text.find("big") != std::string::npos);
  CHECK(full.error().text.find("0/0 (beside 2 others; there are 2 now)") != std::string::npos);
  CHECK(p.room_for(3, "") == room::now); // of another trainer nothing is known
  p.remove(0);
  CHECK(p.room_for(2, "") == room::now);
  REQUIRE(p.place(2, "big", ""));
  CHECK(p.crowded(2) == 1);
  p.remove(1);
  REQUIRE(p.place(2, "big", ""));
  CHECK(p.crowded(2) == 0); // alone
  CHECK(p.room_for(2, "") == room::never);
  CHECK_FALSE(p.place(2, "big", ""));
  p.forget_crowding(2);
  CHECK(p.room_for(2, "") == room::now);
  CHECK(p.crowded(2) == std::nullopt); // it is not placed
}

TEST_CASE("FAULTS row 32 another slot is room until it was tried and a pin leaves no other") {
  placement p({{0, 0, "cpu", true}, {0, 1, "cpu", true}});
  using room = placement::room;
  for (trainer_id t : {0, 1, 2, 3})
    REQUIRE(p.place(t, "t", ""));
  REQUIRE(p.where(2) == 0);
  CHECK(p.crowded(2) == 1);
  CHECK(p.room_for(2, "0") == room::later);
  CHECK(p.room_for(2, "") == room::now);
  CHECK(*p.place(2, "t", "") == 1); // though more trainers live there
  CHECK(p.crowded(2) == 2);
  CHECK(p.room_for(2, "") == room::later);
  p.lose_slot(0, 1);
  CHECK(p.room_for(2, "") == room::later);
  p.lose_slot(0, 0);
  CHECK(p.room_for(2, "") == room::never);
  CHECK(p.place(2, "t", "").error().code == errc::refused); // nothing is alive
  p.add_slot({0, 0, "cpu", true}); // it may be another device now
  CHECK(*p.place(2, "t", "") == 0);
}

TEST_CASE("FAULTS row 32 whoever runs out of memory again and again fits in the end or was alone") {
  placement p({{0, 0, "cpu", true}, {1, 0, "cpu", true}});
  for (trainer_id t = 0; t < 8; ++t)
    REQUIRE(p.place(t, "t", ""));
  std::size_t failures = 0;
  while (p.room_for(7, "") != placement::room::never) {
    if (!p.place(7, "t", "")) {
      const auto leaver = static_cast<trainer_id>(failures % 7); // someone comes to its end
      for (trainer_id t = leaver;; t = (t + 1) % 7)
        if (p.where(t)) {
          p.remove(t);
          break;
        }
      continue;
    }
    REQUIRE(p.crowded(7).has_value());
    REQUIRE(++failures <= 9); // each beside fewer others: at most 4 + 5 on two slots
  }
  CHECK(failures >= 2);
}

TEST_CASE("a trainer that moved by itself is counted where it is") {
  auto p = four_slots();
  for (trainer_id t = 0; t < 3; ++t)
    REQUIRE(p.place(t, "t", "cpu"));
  CHECK(p.load(0) == 2);
  CHECK(p.moved(2, 1));
  CHECK(p.where(2) == 1u);
  CHECK(p.load(0) == 1);
  CHECK(p.load(1) == 2);
  CHECK(p.moved(2, 1)); // told twice
  CHECK(p.load(1) == 2);
  CHECK_FALSE(p.moved(2, 7));
  CHECK_FALSE(p.moved(9, 0));
  CHECK(p.lose_slot(0, 0) == trainers{0});
  CHECK_FALSE(p.moved(2, 0));
  CHECK(p.lose_slot(0, 1) == trainers{1, 2});
}
