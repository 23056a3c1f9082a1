#include "listeners.hpp"

#include <atomic>
#include <ostream>
#include <sstream>
#include <thread>

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::cli;

namespace {

/// Remembers whether anything was written before it could be.
struct watched_output : std::stringbuf {
  std::atomic<bool> open{false}, early{false};

protected:
  std::streamsize xsputn(const char* text, std::streamsize n) override {
    early = early || !open;
    return std::stringbuf::xsputn(text, n);
  }
  int_type overflow(int_type c) override {
    early = early || !open;
    return std::stringbuf::overflow(c);
  }
};

actors::run_status status() {
  actors::run_status s;
  s.experiment = "one";
  return s;
}

/// Tells the listener that its run has started, and only later that the run can be reached.
void start(actors::run_listener& l, watched_output& out, std::promise<void>& reachable) {
  std::thread listening([&] { l.on_started(status()); });
  out.open = true;
  reachable.set_value();
  listening.join();
}

} // namespace

TEST_CASE("a run says that it has started only once other commands can reach it") {
  watched_output buffer;
  std::ostream out(&buffer);
  std::promise<void> reachable;
  SUBCASE("in JSON") {
    json_listener l(out, false, reachable.get_future().share());
    start(l, buffer, reachable);
    CHECK(buffer.str().find("\"started\"") != std::string::npos);
  }
  SUBCASE("for people") {
    screen terminal(out, false);
    text_listener l(terminal, false, reachable.get_future().share());
    start(l, buffer, reachable);
    CHECK(buffer.str().find("one: 0 trainers") != std::string::npos);
  }
  CHECK_FALSE(buffer.early);
}

TEST_CASE("progress is told every second as JSON and ten times a second on a terminal and every ten seconds elsewhere") {
  using std::chrono::milliseconds;
  session_arguments a;
  CHECK(progress_interval(a, false, 3) == milliseconds{10'003});
  CHECK(progress_interval(a, true, 3) == milliseconds{100});
  CHECK(progress_interval(a, true, 10'000) == milliseconds{1100});
  a.json = true;
  CHECK(progress_interval(a, false, 0) == milliseconds{1000});
  CHECK(progress_interval(a, false, 10'000) == milliseconds{11'000});
  a.quiet = true;
  CHECK(progress_interval(a, false, 3) == milliseconds{0});
}

TEST_CASE("what a reader missed is told in both forms and not where only results are wanted") {
  std::promise<void> reachable;
  const auto ready = reachable.get_future().share();
  std::ostringstream out;
  json_listener(out, true, ready).on_missed(3, 7);
  CHECK(out.str() == "{\"events\":7,\"kind\":\"missed\",\"sync_points\":3}\n");
  out.str("");
  screen terminal(out, false);
  text_listener(terminal, false, ready).on_missed(1, 2);
  CHECK(out.str() == "this screen was too slow: 1 sync point and 2 events are not shown here; the run's directory has them\n");
  out.str("");
  text_listener(terminal, true, ready).on_missed(1, 2);
  CHECK(out.str() == "");
}

TEST_CASE("a run that no command will ever reach starts all the same") {
  std::ostringstream out;
  std::promise<void> reachable;
  json_listener l(out, false, reachable.get_future().share());
  { const auto given_up = std::move(reachable); }
  l.on_started(status());
  CHECK(out.str().find("\"started\"") != std::string::npos);
}
