#include "troupe/actors/caf_io.hpp"

#include <cmath>
#include <future>
#include <limits>
#include <stdexcept>
#include <thread>

#include <doctest/doctest.h>

#include "caf/binary_deserializer.hpp"
#include "caf/binary_serializer.hpp"

using namespace troupe::actors;
using namespace std::chrono_literals;

namespace caf_test {

struct add {
  std::int32_t a = 0, b = 0;
};
TROUPE_INSPECT(add, a, b)

struct stop_now {
  std::int32_t unused = 0;
};
TROUPE_INSPECT(stop_now, unused)

struct spin {
  std::int32_t unused = 0;
};
TROUPE_INSPECT(spin, unused)

struct unknown {
  std::int32_t unused = 0;
};
TROUPE_INSPECT(unknown, unused)

enum class color : std::uint8_t { red, green };
inline std::string to_string(color x) { return x == color::red ? "red" : "green"; }
TROUPE_ENUM(color, color::green)

struct paint {
  color what = color::red;
  wire_real amount;
};
TROUPE_INSPECT(paint, what, amount)

struct local_job {
  std::shared_ptr<int> value;
};
TROUPE_LOCAL_MESSAGE(local_job)

} // namespace caf_test

CAF_BEGIN_TYPE_ID_BLOCK(caf_test, troupe::actors::first_user_type_id)
  CAF_ADD_TYPE_ID(caf_test, (caf_test::add))
  CAF_ADD_TYPE_ID(caf_test, (caf_test::stop_now))
  CAF_ADD_TYPE_ID(caf_test, (caf_test::spin))
  CAF_ADD_TYPE_ID(caf_test, (caf_test::unknown))
  CAF_ADD_TYPE_ID(caf_test, (caf_test::paint))
  CAF_ADD_TYPE_ID(caf_test, (caf_test::local_job))
CAF_END_TYPE_ID_BLOCK(caf_test)

namespace caf_test {
namespace {

using test_config = config<caf::id_block::caf_test>;

using adder_actor = typed_actor<result<std::int32_t>(add), result<void>(stop_now)>;

struct adder_state {
  int seen = 0;
  static constexpr const char* name = "adder";
};

adder_actor::behavior_type adder(adder_actor::stateful_pointer<adder_state> self) {
  on_exception(self);
  return {
      [=](const add& x) -> result<std::int32_t> {
        ++state(self).seen;
        if (x.a < 0)
          return troupe::actors::make_error("a is " + std::to_string(x.a));
        if (x.b < 0)
          throw std::invalid_argument{"b is " + std::to_string(x.b)};
        return x.a + x.b;
      },
      [=](const stop_now&) { self->quit(); },
  };
}

/// What `request` answers: its value, or the error's text.
template <class T, class Handle, class Message>
std::string ask(caf::scoped_actor& self, const Handle& dst, Message x) {
  std::string out;
  mail(self, std::move(x))
      .request(dst, 10s)
      .receive([&](const T& y) { out = std::to_string(y); },
               [&](caf::error& e) { out = "error: " + error_text(e); });
  return out;
}

} // namespace

TEST_CASE("a typed actor answers requests and errors keep their text") {
  test_config cfg;
  caf::actor_system sys{cfg};
  caf::scoped_actor self{sys};
  auto a = sys.spawn(adder);
  CHECK(ask<std::int32_t>(self, a, add{2, 3}) == "5");
  CHECK(ask<std::int32_t>(self, a, add{-2, 3}) == "error: a is -2");
  CHECK(ask<std::int32_t>(self, a, add{2, 3}) == "5");
  mail(self, stop_now{}).send(a);
}

TEST_CASE("an exception ends its actor and reaches watchers with its text") {
  test_config cfg;
  caf::actor_system sys{cfg};
  caf::scoped_actor self{sys};
  auto a = sys.spawn(adder);
  std::promise<std::string> reason;
  struct watcher_state {
    monitor_set watched;
  };
  // Held: an actor that nobody refers to ends, even while it watches others.
  auto watcher = sys.spawn([&](caf::stateful_actor<watcher_state>* w) -> caf::behavior {
    state(w).watched.watch(w, a, [&, w](const caf::error& why) {
      reason.set_value(error_text(why));
      w->quit();
    });
    return {[](const stop_now&) {}};
  });
  CHECK(ask<std::int32_t>(self, a, add{2, -3}) == "error: b is -3");
  CHECK(reason.get_future().get() == "b is -3");
  self->wait_for(watcher);
}

TEST_CASE("an answered request with a long timeout keeps neither its actor nor the system") {
  test_config cfg;
  caf::actor_system sys{cfg};
  caf::scoped_actor self{sys};
  auto a = sys.spawn(adder);
  auto asker = sys.spawn([a](caf::event_based_actor* s) -> caf::behavior {
    return {[=](const add& x) {
      auto promise = s->make_response_promise();
      mail(s, x).request(a, 24h).then([=](std::int32_t y) mutable { promise.deliver(y); },
                                      [=](caf::error& e) mutable { promise.deliver(std::move(e)); });
      return promise;
    }};
  });
  CHECK(ask<std::int32_t>(self, asker, add{2, 3}) == "5");
  CHECK(ask<std::int32_t>(self, asker, add{-2, 3}) == "error: a is -2");
  // Nobody refers to them when the test ends: they end, and the system's destructor does not wait for a day.
}

TEST_CASE("an unwatched actor ends without a callback") {
  test_config cfg;
  caf::actor_system sys{cfg};
  caf::scoped_actor self{sys};
  auto a = sys.spawn(adder);
  auto b = sys.spawn(adder);
  std::vector<std::string> seen;
  struct watcher_state {
    monitor_set watched;
  };
  auto w = sys.spawn([&](caf::stateful_actor<watcher_state>* w) -> caf::behavior {
    state(w).watched.watch(w, a, [&](const caf::error&) { seen.push_back("a"); });
    state(w).watched.watch(w, b, [&, w](const caf::error&) {
      seen.push_back("b");
      w->quit();
    });
    state(w).watched.unwatch(w, a);
    return {[](const stop_now&) { return true; }};
  });
  mail(self, stop_now{}).request(w, 10s).receive([](bool) {}, [](caf::error& e) { FAIL(error_text(e)); });
  mail(self, stop_now{}).send(a);
  self->wait_for(a);
  mail(self, stop_now{}).send(b);
  self->wait_for(w);
  CHECK(seen == std::vector<std::string>{"b"});
}

TEST_CASE("actors that mail themselves without end do not starve others") {
  test_config cfg;
  cfg.scheduler_threads(1);
  caf::actor_system sys{cfg};
  caf::scoped_actor self{sys};
  auto spinner = [](caf::event_based_actor* s) -> caf::behavior {
    return {[=](const spin& x) { mail(s, x).send(caf::actor{s}); }, [=](const stop_now&) { s->quit(); }};
  };
  std::vector<caf::actor> spinners;
  for (int i = 0; i < 4; ++i) {
    spinners.push_back(sys.spawn(spinner));
    anon_mail(spin{}).send(spinners.back());
  }
  auto a = sys.spawn(adder);
  for (int i = 0; i < 20; ++i)
    CHECK(ask<std::int32_t>(self, a, add{i, 1}) == std::to_string(i + 1));
  for (const auto& s : spinners)
    anon_mail(stop_now{}).urgent().send(s);
  mail(self, stop_now{}).send(a);
}

TEST_CASE("urgent mail overtakes what is queued") {
  test_config cfg;
  caf::actor_system sys{cfg};
  caf::scoped_actor self{sys};
  std::promise<void> open;
  auto opened = open.get_future().share();
  std::vector<int> order;
  auto a = sys.spawn([&, opened](caf::event_based_actor* s) -> caf::behavior {
    return {[opened](const spin&) { opened.wait(); }, // holds the actor until all mail has arrived
            [&](const add& x) { order.push_back(x.a); },
            [&, s](const stop_now&) { s->quit(); }};
  });
  anon_mail(spin{}).send(a);
  for (int i = 0; i < 50; ++i)
    anon_mail(add{i, 0}).send(a);
  anon_mail(add{99, 0}).urgent().send(a);
  anon_mail(stop_now{}).send(a);
  open.set_value();
  self->wait_for(a);
  REQUIRE(order.size() == 51);
  // CAF serves its two queues in turns, weighted: urgent mail waits for a few others at most.
  auto at = std::find(order.begin(), order.end(), 99) - order.begin();
  CHECK(at <= 5);
}

TEST_CASE("a reply that nobody handles ends neither side") {
  test_config cfg;
  caf::actor_system sys{cfg};
  caf::scoped_actor self{sys};
  // An untyped actor that answers mail that was no request, and one that sends it such mail.
  auto replier = sys.spawn([](caf::event_based_actor* s) -> caf::behavior {
    return {[](const add& x) { return x.a + x.b; }, [=](const stop_now&) { s->quit(); },
            on_error_msg(s, [](caf::error&) {}), otherwise(s, [](const std::string&) {})};
  });
  auto dropped = std::make_shared<std::atomic<int>>(0);
  auto asker = sys.spawn([=](caf::event_based_actor* s) -> caf::behavior {
    return {[=](const spin&) { mail(s, add{1, 2}).send(replier); },
            [=](const stop_now&) { s->quit(); },
            on_error_msg(s, [](caf::error&) {}), otherwise(s, [=](const std::string&) { ++*dropped; })};
  });
  for (int i = 0; i < 3; ++i)
    mail(self, spin{}).send(asker);
  // A request that nobody handles is answered, and the answer says so.
  std::string text;
  mail(self, unknown{}).request(asker, 10s).receive([](const caf::message&) {}, [&](caf::error& e) { text = to_string(e); });
  CHECK(text.find("unexpected_message") != std::string::npos);
  CHECK(ask<std::int32_t>(self, replier, add{4, 5}) == "9");
  mail(self, unknown{}).request(asker, 10s).receive([](const caf::message&) {}, [](caf::error&) {});
  CHECK(*dropped >= 2);
  mail(self, stop_now{}).send(asker);
  mail(self, stop_now{}).send(replier);
}

TEST_CASE("a promise that is dropped answers at once and one that is kept answers later") {
  test_config cfg;
  caf::actor_system sys{cfg};
  caf::scoped_actor self{sys};
  struct keeper_state {
    std::vector<promise<std::int32_t>> kept;
  };
  auto a = sys.spawn([](caf::stateful_actor<keeper_state>* s) -> caf::behavior {
    return {[=](const add& x) -> result<std::int32_t> {
              promise<std::int32_t> p{s};
              if (x.a > 0)
                state(s).kept.push_back(p);
              return p;
            },
            [=](const spin&) -> result<void> { // all that were kept, then this one
              promise<void> p{s};
              for (const auto& k : state(s).kept)
                k.deliver(7);
              state(s).kept.clear();
              p.deliver();
              p.fail("too late");
              return p;
            },
            [=](const stop_now&) { s->quit(); }};
  });
  CHECK(ask<std::int32_t>(self, a, add{0, 0}) == "error: the request was dropped without an answer");
  std::string first;
  mail(self, add{0, 0}).send(a); // no request: nobody is told anything
  auto later = mail(self, add{1, 0}).request(a, 10s);
  bool done = false;
  mail(self, spin{}).request(a, 10s).receive([&] { done = true; }, [](caf::error& e) { FAIL(error_text(e)); });
  CHECK(done);
  std::move(later).receive([&](std::int32_t x) { first = std::to_string(x); }, [&](caf::error& e) { first = error_text(e); });
  CHECK(first == "7");
  mail(self, stop_now{}).send(a);
}

TEST_CASE("an exit clause decides how the actor ends") {
  test_config cfg;
  caf::actor_system sys{cfg};
  caf::scoped_actor self{sys};
  std::atomic<int> asked{0};
  auto a = sys.spawn([&](caf::event_based_actor* s) -> caf::behavior {
    return {[](const spin&) { return true; }, on_exit_msg(s, [&, s](caf::exit_msg& x) {
              if (++asked == 2)
                s->quit(x.reason);
            })};
  });
  caf::anon_send_exit(a, caf::exit_reason::user_shutdown);
  mail(self, spin{}).request(a, 10s).receive([](bool) {}, [](caf::error& e) { FAIL(error_text(e)); });
  caf::anon_send_exit(a, caf::exit_reason::user_shutdown);
  self->wait_for(a);
  CHECK(asked == 2);
}

TEST_CASE("reals cross as bit patterns") {
  auto inf = std::numeric_limits<double>::infinity();
  for (double x : {0.0, -0.0, 1.5, inf, -inf, 5e-324, 1e-310, std::numeric_limits<double>::max()}) {
    double y = wire_real{x};
    CHECK(y == x);
    CHECK(std::signbit(y) == std::signbit(x));
  }
  CHECK(std::isnan(double{wire_real{std::nan("")}}));
  CHECK(wire_real{std::nan("")} == wire_real{std::nan("")});
}

TEST_CASE("messages survive serialization") {
  test_config cfg;
  caf::actor_system sys{cfg};
  std::vector<char> bytes;
#if TROUPE_CAF_MODERN
  caf::byte_buffer buf;
  caf::binary_serializer sink{buf};
  paint in{color::green, -0.0};
  REQUIRE(sink.apply(in));
  caf::binary_deserializer source{buf};
  paint out;
  REQUIRE(source.apply(out));
#else
  caf::binary_serializer sink{sys, bytes};
  paint in{color::green, -0.0};
  REQUIRE_FALSE(failed(sink(in)));
  caf::binary_deserializer source{sys, bytes};
  paint out;
  REQUIRE_FALSE(failed(source(out)));
#endif
  CHECK(out.what == color::green);
  CHECK(out.amount == wire_real{-0.0});
}

TEST_CASE("a local message reaches an actor of its process and refuses to be serialized") {
  test_config cfg;
  caf::actor_system sys{cfg};
  caf::scoped_actor self{sys};
  auto a = sys.spawn([](caf::event_based_actor*) -> caf::behavior {
    return {[](const local_job& x) -> std::int32_t { return *x.value; }};
  });
  CHECK(ask<std::int32_t>(self, a, local_job{std::make_shared<int>(7)}) == "7");
  caf::anon_send_exit(a, caf::exit_reason::user_shutdown);
  local_job job{std::make_shared<int>(7)};
#if TROUPE_CAF_MODERN
  caf::byte_buffer buf;
  caf::binary_serializer sink{buf};
  CHECK_FALSE(sink.apply(job));
  auto text = to_string(sink.get_error());
#else
  std::vector<char> bytes;
  caf::binary_serializer sink{sys, bytes};
  auto text = to_string(sink(job));
#endif
  CHECK(text.find("local_job cannot leave its process") != std::string::npos);
}

#if !TROUPE_CAF_MODERN
TEST_CASE("FAULTS row 53 a typed actor says once that it does not know a message and counts the others") {
  std::vector<std::string> lines;
  {
    test_config cfg;
    caf::actor_system sys{cfg};
    caf::scoped_actor self{sys};
    auto a = sys.spawn([&](adder_actor::stateful_pointer<adder_state> x) {
      drop_unknown(x, "adder", [&](const std::string& line) { lines.push_back(line); });
      return adder(x);
    });
    const auto anyhow = caf::actor_cast<caf::actor>(a);
    for (int i = 0; i < 1000; ++i)
      mail(self, unknown{}).send(anyhow);
    CHECK(ask<std::int32_t>(self, anyhow, unknown{}).find("unexpected_message") != std::string::npos);
    CHECK(ask<std::int32_t>(self, a, add{2, 3}) == "5"); // it lives, and so does its sender
    mail(self, stop_now{}).send(a);
  }
  const std::vector<std::string> expected{
      "adder dropped a message that it does not know, of this process; more of them are only counted",
      "adder dropped 1001 messages that it does not know"};
  CHECK(lines == expected);
}
#endif

TEST_CASE("names in the registry are short and are found") {
  test_config cfg;
  caf::actor_system sys{cfg};
  caf::scoped_actor self{sys};
  auto a = sys.spawn(adder);
  registry_put(sys, "adder", a);
  CHECK_THROWS_AS(registry_put(sys, "much_too_long", a), std::invalid_argument);
  registry_erase(sys, "adder");
  mail(self, stop_now{}).send(a);
}

TEST_CASE("delayed mail arrives and reaches a later generation only by its number") {
  test_config cfg;
  caf::actor_system sys{cfg};
  caf::scoped_actor self{sys};
  std::vector<int> seen;
  auto a = sys.spawn([&](caf::event_based_actor* s) -> caf::behavior {
    mail(s, add{1, 0}).delay(1ms).send(caf::actor{s});
    return {[&, s](const add& x) {
      seen.push_back(x.a);
      if (x.a == 3)
        s->quit();
      else
        mail(s, add{x.a + 1, 0}).delay(1ms).send(caf::actor{s});
    }};
  });
  self->wait_for(a);
  CHECK(seen == std::vector<int>{1, 2, 3});
}

TEST_CASE("an actor system starts and stops a hundred times in a row") {
  for (int i = 0; i < 100; ++i) {
    test_config cfg;
    cfg.scheduler_threads(2);
    caf::actor_system sys{cfg};
    caf::scoped_actor self{sys};
    auto a = sys.spawn(adder);
    auto b = sys.spawn(adder);
    REQUIRE(ask<std::int32_t>(self, a, add{i, 1}) == std::to_string(i + 1));
    mail(self, stop_now{}).send(a);
    caf::anon_send_exit(b, caf::exit_reason::user_shutdown);
  }
}

TEST_CASE("a system ends only when no thread outside of it holds one of its actors") {
  test_config cfg;
  auto sys = std::make_unique<caf::actor_system>(cfg);
  std::promise<void> ending, ended;
  auto is_ended = ended.get_future();
  bool too_early = true;
  std::thread holder;
  {
    auto a = sys->spawn(adder);
    // Called when the actor is off CAF's books already, but not done with its system.
    a->attach_functor([&] { too_early = is_ended.wait_for(50ms) == std::future_status::ready; });
    holder = std::thread{[held = outside{a}, go = ending.get_future()]() mutable {
      go.wait();
      held = {};
    }};
  }
  ending.set_value();
  sys.reset();
  ended.set_value();
  holder.join();
  CHECK_FALSE(too_early);
}

TEST_CASE("the network layer starts with heartbeats on") {
  test_config cfg;
  cfg.scheduler_threads(1);
  enable_network(cfg, {250ms, 2000ms});
  caf::actor_system sys{cfg};
  CHECK(get_or(sys.config(), caf_key("middleman.heartbeat-interval"), caf::timespan{0}) == caf::timespan{250ms});
  CHECK(get_or(sys.config(), caf_key("middleman.connection-timeout"), caf::timespan{0}) == caf::timespan{2000ms});
}

struct with_job {
  std::int32_t number = 0;
  std::vector<local_job> jobs;
};
TROUPE_INSPECT(with_job, number, jobs)
static_assert(troupe::actors::internal::local_reason<with_job>::value != nullptr);
static_assert(troupe::actors::internal::local_reason<paint>::value == nullptr);
static_assert(troupe::actors::internal::local_reason<void>::value == nullptr);
static_assert(!wire_safe_v<double>);
static_assert(!wire_safe_v<float>);
static_assert(!wire_safe_v<const std::vector<std::pair<int, float>>&>);
static_assert(!wire_safe_v<std::map<std::string, double>>);
static_assert(wire_safe_v<std::vector<wire_real>, std::string, int>);

} // namespace caf_test
