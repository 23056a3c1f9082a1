#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "raw_peer.hpp"
#include "silent_one.hpp"
#include "troupe/gpu/device.hpp"
#include "troupe/net/cluster.hpp"
#include "unique_fd.hpp"

using namespace troupe;
using namespace troupe::net;
using namespace std::chrono_literals;

namespace {

gpu::slot_options cpu_slot() {
  gpu::slot_options s;
  s.device = gpu::find_devices().devices.front();
  return s;
}

struct journal {
  std::mutex mutex;
  std::vector<std::string> lines;
  std::ptrdiff_t count(const std::string& text) {
    std::lock_guard lock{mutex};
    return std::count_if(lines.begin(), lines.end(), [&](const auto& l) { return l.find(text) != std::string::npos; });
  }
  bool has(const std::string& text) { return count(text) > 0; }
};

cluster_options options(unsigned workers, const std::string& mode = "worker", journal* j = nullptr) {
  cluster_options c;
  c.command = {TROUPE_TEST_WORKER, mode};
  c.slots = deal_slots(std::vector<gpu::slot_options>(workers, cpu_slot()), workers);
  c.leave_timeout = 20s;
  if (j)
    c.log = [j](const std::string& line) {
      std::lock_guard lock{j->mutex};
      j->lines.push_back(line);
    };
  return c;
}

std::string contents(const std::string& path) {
  std::ifstream in{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{in}, {}};
}

bool exists(std::int64_t pid) {
  return ::kill(static_cast<pid_t>(pid), 0) == 0;
}

} // namespace

TEST_CASE("slots are dealt out in turn and numbered anew") {
  std::vector<gpu::slot_options> slots(5, cpu_slot());
  for (unsigned i = 0; i < 5; ++i)
    slots[i].memory_budget = i;
  const auto dealt = deal_slots(slots, 2);
  REQUIRE(dealt.size() == 2);
  REQUIRE(dealt[0].size() == 3);
  CHECK(dealt[0][2].memory_budget == 4);
  CHECK(dealt[0][2].index == 2);
  CHECK(dealt[1][1].memory_budget == 3);
  CHECK(deal_slots(slots, 7)[6].empty());
}

TEST_CASE("workers join and leave and no process is left") {
  auto head = cluster_head::start(options(2));
  REQUIRE_MESSAGE(head, head.error().text);
  const auto workers = (*head)->workers();
  REQUIRE(workers.size() == 2);
  for (const auto& w : workers) {
    CHECK(w.state == worker_state::present);
    CHECK(exists(w.process_id));
  }
  (*head)->stop();
  (*head)->stop();
  for (const auto& w : (*head)->workers()) {
    CHECK(w.state == worker_state::left);
    CHECK_FALSE(exists(w.process_id));
  }
}

TEST_CASE("a worker's command line and environment say nothing of the run") {
  auto head = cluster_head::start(options(1));
  REQUIRE_MESSAGE(head, head.error().text);
  const auto about = "/proc/" + std::to_string((*head)->workers()[0].process_id) + "/";
  CHECK(contents(about + "cmdline") == TROUPE_TEST_WORKER + std::string{"\0worker\0", 8});
  std::string ours;
  for (char** e = environ; *e != nullptr; ++e)
    (ours += *e) += '\0';
  CHECK(contents(about + "environ") == ours);
}

TEST_CASE("head and workers listen on loopback alone") {
  auto head = cluster_head::start(options(1));
  REQUIRE_MESSAGE(head, head.error().text);
  int listening = 0;
  for (const auto& who : {std::string{"self"}, std::to_string((*head)->workers()[0].process_id)}) {
    std::set<std::string> inodes;
    for (const auto& fd : std::filesystem::directory_iterator{"/proc/" + who + "/fd"}) {
      std::error_code gone;
      if (const auto what = std::filesystem::read_symlink(fd.path(), gone).string(); what.starts_with("socket:["))
        inodes.insert(what.substr(8, what.size() - 9));
    }
    for (const std::string table : {"tcp", "tcp6"}) {
      std::istringstream lines{contents("/proc/net/" + table)};
      std::string line;
      std::getline(lines, line); // its heading
      while (std::getline(lines, line)) {
        std::istringstream words{line};
        std::vector<std::string> x{std::istream_iterator<std::string>{words}, {}};
        if (x.size() < 10 || x[3] != "0A" || !inodes.contains(x[9]))
          continue;
        ++listening;
        CHECK(x[1].starts_with("0100007F:"));
      }
    }
  }
  CHECK(listening == 3); // the head's gatekeeper, and a tensor server each
}

TEST_CASE("a worker with a wrong token is refused with the reason") {
  journal j;
  const auto head = cluster_head::start(options(1, "wrong-token", &j));
  REQUIRE_FALSE(head);
  CHECK(head.error().text.find("worker 1") != std::string::npos);
  CHECK(head.error().text.find("exited with status 1") != std::string::npos);
}

TEST_CASE("a worker of another version is told both") {
  journal j;
  const auto head = cluster_head::start(options(1, "wrong-version", &j));
  REQUIRE_FALSE(head);
  CHECK_MESSAGE(head.error().text.find("exited with status 42") != std::string::npos, head.error().text);
  CHECK(j.has("message format"));
}

TEST_CASE("a worker under a number that nobody gave it is refused") {
  journal j;
  const auto head = cluster_head::start(options(1, "wrong-number", &j));
  REQUIRE_FALSE(head);
  CHECK(j.has("no worker 7"));
}

TEST_CASE("a stranger can neither end the gatekeeper nor confuse it") {
  auto head = cluster_head::start(options(1, "exit-message"));
  REQUIRE_MESSAGE(head, head.error().text);
  auto s = raw::dial((*head)->port());
  s.send(raw::bytes(4000, 0xff));
  CHECK(s.receive_all().size() < 4000); // CAF closes it
  CHECK((*head)->workers()[0].state == worker_state::present);
}

TEST_CASE("a worker that gets signals before it can say what to do with them joins all the same") {
  auto head = cluster_head::start(options(1, "signalled"));
  REQUIRE_MESSAGE(head, head.error().text);
  CHECK((*head)->workers()[0].state == worker_state::present);
}

TEST_CASE("workers that were suspended are not taken for lost and one that is frozen is") {
  auto c = options(2);
  c.heartbeat_interval = 10ms;
  c.connection_timeout = 1000ms;
  auto head = cluster_head::start(c);
  REQUIRE_MESSAGE(head, head.error().text);
  (*head)->suspend();
  outlast(c.connection_timeout);
  for (const auto& w : (*head)->workers())
    CHECK(w.state == worker_state::present);
  (*head)->resume();
  ::kill(static_cast<pid_t>((*head)->workers()[1].process_id), SIGSTOP);
  while ((*head)->workers()[1].state != worker_state::lost)
    std::this_thread::yield();
  CHECK((*head)->workers()[1].note == "its process was silent for more than 1000 ms");
}

TEST_CASE("FAULTS row 53 who says what nobody knows is told of once however often it does") {
  journal j;
  auto c = options(1, "chatter", &j);
  c.join_timeout = 10min; // it has much to say before
  auto head = cluster_head::start(c);
  REQUIRE_MESSAGE(head, head.error().text);
  CHECK(j.count("dropped a message that it does not know") == 1);
  CHECK(j.count("refused") == 1);
  (*head)->stop();
  CHECK(j.has("in all, dropped 20000 messages and refused 50 attempts to join"));
}

TEST_CASE("a worker that never joins is a timeout and is killed") {
  auto c = options(1, "silent");
  c.join_timeout = 100ms;
  c.leave_timeout = 20s; // it leaves at the end of its input
  const auto head = cluster_head::start(c);
  REQUIRE_FALSE(head);
  CHECK(head.error().code == core::errc::timeout);
  CHECK(head.error().text.find("starting") != std::string::npos);
}

TEST_CASE("a worker whose slot cannot be opened says why") {
  auto c = options(1);
  c.slots[0][0].device.id = "GPU-no-such-device";
  const auto head = cluster_head::start(c);
  REQUIRE_FALSE(head);
  CHECK_MESSAGE(head.error().text.find("no-such-device") != std::string::npos, head.error().text);
}

TEST_CASE("a cluster that cannot be is refused") {
  auto c = options(1);
  c.command = {"/no/such/program"};
  auto head = cluster_head::start(c);
  REQUIRE_FALSE(head);
  CHECK(head.error().text.find("/no/such/program") != std::string::npos);
  c = options(0);
  CHECK_FALSE(cluster_head::start(c));
  c = options(1);
  c.slots.emplace_back();
  head = cluster_head::start(c);
  REQUIRE_FALSE(head);
  CHECK(head.error().text.find("worker 2 has no slot") != std::string::npos);
  c = options(1);
  c.command.clear();
  CHECK_FALSE(cluster_head::start(c));
}

TEST_CASE("a killed worker is noticed and its number stays empty") {
  journal j;
  auto head = cluster_head::start(options(2, "worker", &j));
  REQUIRE_MESSAGE(head, head.error().text);
  const auto pid = (*head)->workers()[1].process_id;
  ::kill(static_cast<pid_t>(pid), SIGKILL);
  while ((*head)->workers()[1].state != worker_state::lost)
    std::this_thread::yield();
  CHECK((*head)->workers()[0].state == worker_state::present);
  (*head)->stop();
}

TEST_CASE("workers end when their head is killed") {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1); // orphans of our child become ours, so that we can wait for them
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  unique_fd out{ends[0]};
  {
    unique_fd in{ends[1]};
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, in.get(), 1);
    ::posix_spawn_file_actions_addclosefrom_np(&actions, 3);
    char program[] = TROUPE_TEST_WORKER, mode[] = "head";
    char* arguments[] = {program, mode, program, nullptr};
    pid_t head = 0;
    REQUIRE(::posix_spawn(&head, program, &actions, nullptr, arguments, environ) == 0);
    ::posix_spawn_file_actions_destroy(&actions);
    in.reset();
    std::string text;
    for (char c; std::count(text.begin(), text.end(), '\n') < 2 && ::read(out.get(), &c, 1) == 1;)
      text += c;
    REQUIRE(std::count(text.begin(), text.end(), '\n') == 2);
    ::kill(head, SIGKILL);
    int status = 0;
    CHECK(::waitpid(head, &status, 0) == head);
    const auto first = std::stoi(text), second = std::stoi(text.substr(text.find('\n')));
    for (const pid_t worker : {first, second})
      CHECK(::waitpid(worker, &status, 0) == worker); // blocks for ever if it lives on
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}
