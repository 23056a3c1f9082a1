#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "raw_peer.hpp"
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
  bool has(const std::string& text) {
    std::lock_guard lock{mutex};
    return std::any_of(lines.begin(), lines.end(), [&](const auto& l) { return l.find(text) != std::string::npos; });
  }
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
