#include <doctest/doctest.h>

#include <condition_variable>
#include <csignal>
#include <map>
#include <mutex>

#include "child_processes.hpp"

using namespace troupe;
using namespace troupe::net;
using namespace std::chrono_literals;

namespace {

/// Collects the ends of children.
struct ends {
  std::mutex mutex;
  std::condition_variable more;
  std::map<std::size_t, std::string> how;
  std::map<std::size_t, bool> was_told;

  child_processes::ended sink() {
    return [this](std::size_t i, const std::string& text, bool told) {
      std::lock_guard lock{mutex};
      how[i] = text;
      was_told[i] = told;
      more.notify_all();
    };
  }
  std::string wait_for(std::size_t i) {
    std::unique_lock lock{mutex};
    more.wait(lock, [&] { return how.contains(i); });
    return how[i];
  }
};

child_processes::spec shell(std::string script, std::string input = {}) {
  return {{"/bin/sh", "-c", std::move(script)}, std::move(input)};
}

bool exists(pid_t pid) {
  return ::kill(pid, 0) == 0;
}

} // namespace

TEST_CASE("children tell how they ended") {
  ends e;
  auto x = child_processes::start({shell("exit 3"), shell("kill -9 $$"), shell("read line; [ \"$line\" = word ]", "word\n")}, e.sink());
  REQUIRE_MESSAGE(x, x.error().text);
  CHECK(e.wait_for(0) == "exited with status 3");
  CHECK(e.wait_for(1) == "was killed by signal 9");
  CHECK(e.wait_for(2) == "exited with status 0");
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK_FALSE(exists((*x)->pid(i)));
    CHECK_FALSE(e.was_told[i]);
  }
}

TEST_CASE("a child that died by itself is told from one that was stopped however late that is heard") {
  ends e;
  auto x = child_processes::start(
      {shell("kill -9 $$"), shell("cat >/dev/null; exit 5"), shell("cat >/dev/null; kill -9 $$"), shell("exec sleep 1000")}, e.sink());
  REQUIRE(x);
  (*x)->kill(3);
  (*x)->stop(20s);
  CHECK(e.how[0] == "was killed by signal 9");
  CHECK(e.how[1] == "exited with status 5");
  CHECK(e.how[2] == "was killed by signal 9");
  CHECK(e.how[3] == "was killed by signal 9");
  CHECK(e.was_told == std::map<std::size_t, bool>{{0, false}, {1, true}, {2, false}, {3, true}});
}

TEST_CASE("the end of a child's input tells it to go") {
  ends e;
  auto x = child_processes::start({shell("cat >/dev/null; exit 5")}, e.sink());
  REQUIRE(x);
  (*x)->stop(30s);
  CHECK(e.wait_for(0) == "exited with status 5");
}

TEST_CASE("a child that does not go is killed and so is a frozen one") {
  ends e;
  auto x = child_processes::start({shell("trap '' TERM INT; while :; do read x || exec sleep 1000; done"), shell("kill -STOP $$")}, e.sink());
  REQUIRE(x);
  (*x)->stop(20ms);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(e.wait_for(i) == "was killed by signal 9");
    CHECK_FALSE(exists((*x)->pid(i)));
  }
}

TEST_CASE("one child can be killed and the others live on") {
  ends e;
  auto x = child_processes::start({shell("cat"), shell("cat")}, e.sink());
  REQUIRE(x);
  (*x)->kill(0);
  CHECK(e.wait_for(0) == "was killed by signal 9");
  (*x)->kill(0); // no effect, whoever has that number now
  CHECK(exists((*x)->pid(1)));
}

TEST_CASE("a program that is not there is an error with its name and leaves nothing behind") {
  ends e;
  auto x = child_processes::start({shell("exec sleep 1000"), {{"/no/such/program"}, {}}}, e.sink());
  REQUIRE_FALSE(x);
  CHECK(x.error().text.find("/no/such/program") != std::string::npos);
  CHECK(e.wait_for(0) == "was killed by signal 9");
  CHECK_FALSE(child_processes::start({{{}, {}}}, e.sink()));
  CHECK_FALSE(child_processes::start({shell("cat", std::string(5000, 'x'))}, e.sink()));
}

TEST_CASE("a child inherits nothing but its input and the place for messages") {
  ends e;
  auto x = child_processes::start({shell("set -- /proc/self/fd/*; [ $# -le 4 ]")}, e.sink()); // sh opens the folder itself
  REQUIRE(x);
  CHECK(e.wait_for(0) == "exited with status 0");
}
