#include <doctest/doctest.h>

#include <condition_variable>
#include <csignal>
#include <fstream>
#include <map>
#include <mutex>

#include "child_processes.hpp"
#include "silent_one.hpp"

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

TEST_CASE("a child that gives no sign of life is told of and lives on until it is killed") {
  ends e;
  silent_one quiet;
  auto x = child_processes::start({shell("exec sleep 1000"), shell("cat")}, e.sink(), quiet.rule(50ms));
  REQUIRE(x);
  (*x)->watch(1);
  CHECK(quiet.wait() == 1);
  CHECK(exists((*x)->pid(1)));
  (*x)->kill(1);
  CHECK(e.wait_for(1) == "was killed by signal 9");
}

TEST_CASE("what children write is taken however much it is") {
  ends e;
  silent_one quiet;
  auto x = child_processes::start({shell("dd if=/dev/zero bs=1000000 count=3 >&0 2>&1; exit 4")}, e.sink(), quiet.rule(1h));
  REQUIRE(x);
  (*x)->watch(0);
  CHECK(e.wait_for(0) == "exited with status 4");
}

TEST_CASE("suspended children stand still until they are resumed") {
  ends e;
  auto x = child_processes::start({shell("cat >/dev/null; exit 5"), shell("cat >/dev/null; exit 6")}, e.sink());
  REQUIRE(x);
  (*x)->suspend();
  for (std::size_t i = 0; i < 2; ++i)
    for (char state = 0; state != 'T';) {
      std::string ignored;
      std::ifstream{"/proc/" + std::to_string((*x)->pid(i)) + "/stat"} >> ignored >> ignored >> state;
    }
  (*x)->resume();
  (*x)->stop(30s);
  CHECK(e.how[0] == "exited with status 5");
  CHECK(e.how[1] == "exited with status 6");
}

TEST_CASE("signals that are the parent's to act on do nothing to a child that has just begun") {
  ends e;
  auto x = child_processes::start({shell("for s in TERM INT HUP TSTP TTIN TTOU; do kill -$s $$; done; exit 7")}, e.sink());
  REQUIRE(x);
  CHECK(e.wait_for(0) == "exited with status 7");
}
