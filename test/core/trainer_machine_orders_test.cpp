/// Every short order of events, and many long random ones, against what must always hold of a trainer.
#include <array>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "trainer_machine_rig.hpp"
#include "troupe/core/random.hpp"

using namespace troupe::test;

namespace {

using event = void (*)(rig&);

const std::array<event, 15> events = {
    [](rig& r) { r.pause(); },        [](rig& r) { r.resume(); },
    [](rig& r) { r.push(); },         [](rig& r) { r.export_state(); },
    [](rig& r) { r.apply(); },        [](rig& r) { r.resume_sync(); },
    [](rig& r) { r.release(); },      [](rig& r) { r.call(); },
    [](rig& r) { r.complete(); },     [](rig& r) { r.complete(0); },
    [](rig& r) { r.complete(1); },    [](rig& r) { r.stop(); },
    [](rig& r) { r.complete(~0ull, machine::outcome::refused); }, [](rig& r) { r.move(); },
    [](rig& r) { r.taken(); }};

void exhaust(const rig& from, int depth, std::string& order, std::string& fault) {
  if (depth == 0) {
    auto r = from;
    r.live_on();
    if (!r.fault.empty())
      fault = r.fault + " after " + order;
    return;
  }
  for (std::size_t i = 0; i < events.size() && fault.empty(); ++i) {
    auto r = from;
    order.push_back(static_cast<char>('a' + i));
    events[i](r);
    if (r.fault.empty())
      exhaust(r, depth - 1, order, fault);
    else
      fault = r.fault + " after " + order;
    order.pop_back();
  }
}

} // namespace

TEST_CASE("no short order of events breaks a trainer") {
  std::vector<rig> from;
  for (bool asynchronous : {false, true}) {
    auto plan = every_three(asynchronous);
    plan.reports_ahead = 1;
    rig r{plan};
    from.push_back(r); // building
    r.complete();
    from.push_back(r); // ready
    r.begin();
    from.push_back(r); // running
    r.complete();
    from.push_back(r); // parking
    r.complete();
    from.push_back(r); // parked
  }
  for (const auto& r : from) {
    std::string order, fault;
    exhaust(r, 4, order, fault);
    CHECK(fault == "");
  }
}

TEST_CASE("no long random order of events breaks a trainer") {
  std::string fault;
  for (std::uint64_t seed = 0; seed < 20000 && fault.empty(); ++seed) {
    random_stream rng{seed, "orders"};
    auto plan = every_three(rng.below(4) == 0);
    plan.stop_step = 4 + rng.below(30);
    plan.schedule.at_steps = {2, 5};
    plan.reports_ahead = 1;
    rig r{plan};
    for (int i = 0; i < 60 && r.fault.empty(); ++i) {
      auto pick = rng.below(events.size() + 8);
      if (pick < events.size())
        events[pick](r);
      else if (pick < events.size() + 5)
        r.complete(rng.below(3));
      else if (pick == events.size() + 5)
        r.begin();
      else if (pick == events.size() + 6)
        r.apply(rng.below(8) == 0);
      else if (rng.below(20) == 0)
        r.complete(1, machine::outcome::fatal);
    }
    if (r.fault.empty())
      r.live_on();
    if (!r.fault.empty())
      fault = r.fault + " with seed " + std::to_string(seed);
  }
  CHECK(fault == "");
}
