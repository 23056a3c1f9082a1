/// Whole runs on several processes: the same weights as in one, whatever happens to the processes.
#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "silent_one.hpp"
#include "tiny_workload.hpp"
#include "troupe/actors/prepare.hpp"
#include "troupe/gpu/device.hpp"
#include "troupe/net/cluster.hpp"
#include "unique_fd.hpp"

using namespace troupe;
using namespace troupe::net;
using namespace std::chrono_literals;

namespace {

using hashes = std::map<std::string, std::uint64_t>;

/// Three networks that meet every 40 steps and take the mean of their weights. `mischief`: more options of network b.
std::string three_networks(const std::string& mischief = {}) {
  return R"({
    "name": "three", "seed": 5,
    "trainers": [
      {"name": "a", "workload": {"type": "tiny"}, "hyperparameters": {"lr": 0.1}, "stop_step": 160},
      {"name": "b", "workload": {"type": "tiny")"
         + mischief + R"(}, "hyperparameters": {"lr": 0.2}, "stop_step": 160},
      {"name": "c", "workload": {"type": "tiny"}, "hyperparameters": {"lr": 0.3}, "stop_step": 160}],
    "sync": {"every_steps": 40}, "policy": {"type": "average"}})";
}

const std::string eight_trainers = R"({
  "name": "eight", "seed": 6, "search_space": {"lr": {"type": "log_uniform", "low": 0.01, "high": 0.5}},
  "trainers": [{"name": "t", "count": 8, "workload": {"type": "tiny"}, "stop_step": 120}],
  "sync": {"every_steps": 20}, "policy": {"type": "pbt", "metric": "accuracy"}})";

struct folder {
  std::string path = [] {
    char name[] = "/tmp/troupe-cluster-test-XXXXXX";
    return std::string{::mkdtemp(name)};
  }();
  ~folder() { std::filesystem::remove_all(path); }
};

actors::run_options prepared(const std::string& experiment, unsigned slots) {
  actors::program mine;
  mine.workloads = *tiny_workloads();
  mine.slots.assign(slots, {});
  auto o = actors::prepare_run(experiment, mine);
  REQUIRE_MESSAGE(o, o.error().text);
  for (auto& s : o->slots)
    s.plan = nullptr;
  return std::move(*o);
}

hashes hashes_of(const actors::run_summary& s) {
  CHECK_MESSAGE(s.outcome == actors::run_outcome_kind::done, s.error.text);
  hashes out;
  for (const auto& t : s.trainers) {
    CHECK_MESSAGE(t.state == actors::trainer_state::finished, t.failure.text);
    CHECK(t.final_hash != 0);
    out[t.name] = t.final_hash;
  }
  return out;
}

hashes in_one_process(const std::string& experiment, unsigned slots) {
  auto run = actors::run_session::start(prepared(experiment, slots));
  REQUIRE_MESSAGE(run, run.error().text);
  return hashes_of((*run)->wait());
}

struct outcome {
  actors::run_summary summary;
  std::vector<worker_info> workers;
  cluster_head::traffic traffic;
};

/// Asks to leave at sync point 1.
struct impatient : actors::run_listener {
  std::promise<actors::run_control> control;
  void on_sync_point(const actors::sync_point_event& x) override {
    if (x.index == 1)
      control.get_future().get().interrupt();
  }
};

/// Asks at sync points how the run is, until a slot is lost and its trainers live elsewhere; then stops the run.
struct curious : actors::run_listener {
  std::promise<actors::run_control> promise;
  std::shared_future<actors::run_control> control = promise.get_future().share();
  std::vector<actors::slot_info> before, after;
  void on_sync_point(const actors::sync_point_event& x) override {
    if (!after.empty())
      return;
    const auto now = control.get().status().get(); // on the listener's thread, which may wait
    if (!now)
      return;
    bool lost = false;
    std::uint32_t trainers = 0;
    for (const auto& s : now->slots) {
      lost = lost || !s.alive;
      trainers += s.trainers;
    }
    if (before.empty() && now->slots.at(0).answered) // a busy machine may have taken more time than a status has
      before = now->slots;
    constexpr core::sync_index too_many = 5000;
    if ((lost && trainers == 3) || x.index > too_many) {
      after = now->slots;
      (void)control.get().stop().get();
    }
  }
};

outcome on_workers(const std::string& experiment, unsigned workers, const std::string& directory = {},
                   std::function<void(cluster_options&)> adjust = nullptr, bool leave_early = false,
                   bool resume = false, std::shared_ptr<curious> asks = nullptr) {
  auto o = prepared(experiment, workers);
  cluster_options c;
  c.command = {TROUPE_TEST_WORKER, "worker"};
  c.slots = deal_slots(o.slots, workers);
  c.leave_timeout = 20s;
  if (adjust)
    adjust(c);
  auto head = cluster_head::start(std::move(c));
  REQUIRE_MESSAGE(head, head.error().text);
  o.slots.clear();
  o.directory = directory;
  o.resume = resume;
  auto listener = std::make_shared<impatient>();
  if (leave_early)
    o.listener = listener;
  if (asks)
    o.listener = asks;
  (*head)->prepare(o);
  outcome out;
  {
    auto run = actors::run_session::start(std::move(o));
    REQUIRE_MESSAGE(run, run.error().text);
    (*head)->attach(**run);
    listener->control.set_value((*run)->control());
    if (asks)
      asks->promise.set_value((*run)->control());
    out.summary = (*run)->wait();
  }
  (*head)->stop();
  out.workers = (*head)->workers();
  out.traffic = (*head)->snapshot();
  for (const auto& w : out.workers)
    CHECK(::kill(static_cast<pid_t>(w.process_id), 0) != 0);
  return out;
}

} // namespace

TEST_CASE("three networks give the same weights in one process and in three") {
  const auto expected = in_one_process(three_networks(), 3);
  const auto got = on_workers(three_networks(), 3);
  CHECK(hashes_of(got.summary) == expected);
  CHECK(got.summary.rounds == 3);
  for (const auto& w : got.workers)
    CHECK(w.state == worker_state::left);
  for (const auto& t : got.summary.trainers)
    CHECK(t.incarnation == 0);
}

TEST_CASE("weights that are exploited across processes are the same ones") {
  CHECK(hashes_of(on_workers(eight_trainers, 2).summary) == in_one_process(eight_trainers, 1));
}

TEST_CASE("FAULTS row 22 the trainers of a killed worker go on elsewhere with the same result") {
  const auto expected = in_one_process(three_networks(), 3);
  folder f;
  const auto at = [&](int step) {
    return three_networks(R"(, "mark": ")" + f.path + R"(/mark", "at": )" + std::to_string(step));
  };
  std::string directory = f.path + "/run";
  int step = 100;
  SUBCASE("between two sync points") {}
  SUBCASE("before the first") { step = 10; }
  SUBCASE("right after one") { step = 80; }
  SUBCASE("without a run directory") { directory.clear(); }
  const auto got = on_workers(at(step), 3, directory);
  CHECK(hashes_of(got.summary) == expected);
  CHECK(got.workers[1].state == worker_state::lost);
  std::vector<std::uint32_t> lives;
  for (const auto& t : got.summary.trainers) {
    CHECK_MESSAGE(t.restarts == 0, t.failure.text); // it is not the trainer's fault
    lives.push_back(t.incarnation);
  }
  CHECK(lives == std::vector<std::uint32_t>{0, 1, 0});
  CHECK(got.traffic.state_bytes_received > 0); // states came to the head over the tensor transport
}

TEST_CASE("the head knows what the slots of its workers do and which of them are lost") {
  folder f;
  auto endless = three_networks(R"(, "mark": ")" + f.path + R"(/mark", "at": 100)");
  const std::string end = R"("stop_step": 160)";
  for (std::size_t i; (i = endless.find(end)) != std::string::npos;)
    endless.replace(i, end.size(), R"("stop_step": 1000000000)");
  const auto asks = std::make_shared<curious>();
  const auto got = on_workers(endless, 3, {}, nullptr, false, false, asks);
  CHECK(got.workers[1].state == worker_state::lost);
  REQUIRE(asks->before.size() == 3);
  for (std::uint32_t i = 0; i < 3; ++i) {
    const auto& s = asks->before[i];
    CHECK(s.node == i + 1);
    CHECK(s.name == std::to_string(i + 1) + "/0");
    CHECK(s.device == "cpu");
    if (s.answered) { // the worker that dies may have done so already
      CHECK(s.trainers >= 1);
      CHECK(s.steps >= 40);
    }
  }
  REQUIRE(asks->after.size() == 3);
  CHECK_FALSE(asks->after[1].alive);
  CHECK_FALSE(asks->after[1].answered);
  CHECK(asks->after[0].alive);
  CHECK(asks->after[0].trainers + asks->after[2].trainers == 3);
}

TEST_CASE("FAULTS row 24 a frozen worker is fenced and no trainer runs twice") {
  const auto expected = in_one_process(three_networks(), 3);
  folder f;
  const auto frozen = three_networks(R"(, "mark": ")" + f.path + R"(/mark", "at": 100, "signal": )" + std::to_string(SIGSTOP));
  const auto got = on_workers(frozen, 3, f.path + "/run", [](cluster_options& c) {
    c.heartbeat_interval = 200ms;
    c.connection_timeout = 2000ms;
  });
  CHECK(hashes_of(got.summary) == expected);
  CHECK(got.workers[1].state == worker_state::lost);
  CHECK(got.workers[1].note.find("silent") != std::string::npos);
}

TEST_CASE("a run that was interrupted on workers goes on in one process and on others and ends the same") {
  const auto expected = in_one_process(three_networks(), 3);
  for (const bool again_on_workers : {false, true}) {
    folder f;
    const auto first = on_workers(three_networks(), 3, f.path + "/run", nullptr, true);
    CHECK(first.summary.outcome == actors::run_outcome_kind::interrupted);
    if (again_on_workers) {
      CHECK(hashes_of(on_workers(three_networks(), 2, f.path + "/run", nullptr, false, true).summary) == expected);
    } else {
      auto o = prepared(three_networks(), 2);
      o.directory = f.path + "/run";
      o.resume = true;
      auto run = actors::run_session::start(std::move(o));
      REQUIRE_MESSAGE(run, run.error().text);
      CHECK(hashes_of((*run)->wait()) == expected);
    }
  }
}

TEST_CASE("FAULTS row 49 signals that end processes are left to the head by its workers") {
  const auto expected = in_one_process(three_networks(), 3);
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGTSTP, SIGPIPE}) {
    CAPTURE(number);
    folder f;
    const auto at_100 = three_networks(R"(, "mark": ")" + f.path + R"(/mark", "at": 100, "signal": )" + std::to_string(number));
    const auto got = on_workers(at_100, 2);
    CHECK(hashes_of(got.summary) == expected);
    CHECK(std::filesystem::exists(f.path + "/mark"));
    for (const auto& w : got.workers)
      CHECK(w.state == worker_state::left);
    for (const auto& t : got.summary.trainers)
      CHECK(t.incarnation == 0);
  }
}

TEST_CASE("FAULTS row 46 a head that stood still for longer than the limit finds its workers and goes on") {
  const auto expected = in_one_process(three_networks(), 3);
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  unique_fd out{ends[0]}, in{ends[1]};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, in.get(), 1);
  std::string program = TROUPE_TEST_WORKER, mode = "run", experiment = three_networks();
  char* arguments[] = {program.data(), mode.data(), program.data(), experiment.data(), nullptr};
  pid_t head = 0;
  REQUIRE(::posix_spawn(&head, program.c_str(), &actions, nullptr, arguments, environ) == 0);
  ::posix_spawn_file_actions_destroy(&actions);
  in.reset();
  int status = 0;
  REQUIRE(::waitpid(head, &status, WUNTRACED) == head);
  REQUIRE(WIFSTOPPED(status));
  outlast(2000ms);
  ::kill(head, SIGCONT);
  std::string text;
  for (char block[256]; ;) {
    const auto n = ::read(out.get(), block, sizeof block);
    if (n <= 0)
      break;
    text.append(block, static_cast<std::size_t>(n));
  }
  REQUIRE(::waitpid(head, &status, 0) == head);
  CHECK(status == 0);
  hashes got;
  std::istringstream words{text};
  std::string name;
  std::uint64_t hash = 0, lives = 0;
  while (words >> name >> hash >> lives) {
    got[name] = hash;
    CHECK(lives == 0);
  }
  CHECK(got == expected);
}

TEST_CASE("FAULTS row 45 a run that lost its only worker is interrupted and goes on to the same weights") {
  const auto expected = in_one_process(three_networks(), 3);
  folder f;
  int step = 100;
  SUBCASE("after a set of checkpoints") {}
  SUBCASE("before the first") { step = 10; }
  const auto killed = three_networks(R"(, "mark": ")" + f.path + R"(/mark", "at": )" + std::to_string(step));
  const auto got = on_workers(killed, 1, f.path + "/run");
  CHECK(got.summary.outcome == actors::run_outcome_kind::interrupted);
  CHECK_MESSAGE(got.summary.error.text.find("no living slot; node 1 is gone") != std::string::npos, got.summary.error.text);
  CHECK(got.workers[0].state == worker_state::lost);
  for (const auto& t : got.summary.trainers) {
    CHECK(t.state == actors::trainer_state::interrupted);
    CHECK(t.restarts == 0);
  }
  auto o = prepared(killed, 2);
  o.directory = f.path + "/run";
  o.resume = true;
  auto run = actors::run_session::start(std::move(o));
  REQUIRE_MESSAGE(run, run.error().text);
  CHECK(hashes_of((*run)->wait()) == expected);
}

TEST_CASE("FAULTS row 45 a trainer whose own slot is lost interrupts the run for as long as there is none") {
  const auto pinned = [](std::string text) {
    const std::string name = R"("name": "b",)";
    return text.insert(text.find(name) + name.size(), R"( "slot": "2/0",)");
  };
  const auto expected = in_one_process(three_networks(), 3);
  folder f;
  const auto killed = pinned(three_networks(R"(, "mark": ")" + f.path + R"(/mark", "at": 100)"));
  const auto first = on_workers(killed, 2, f.path + "/run");
  CHECK(first.summary.outcome == actors::run_outcome_kind::interrupted);
  CHECK_MESSAGE(first.summary.error.text.find("\"b\" is pinned to \"2/0\"") != std::string::npos, first.summary.error.text);
  for (const auto& t : first.summary.trainers)
    CHECK(t.state != actors::trainer_state::failed);
  // Without such a slot nothing is lost either.
  auto o = prepared(killed, 1);
  o.directory = f.path + "/run";
  o.resume = true;
  {
    auto run = actors::run_session::start(std::move(o));
    REQUIRE_MESSAGE(run, run.error().text);
    const auto summary = (*run)->wait();
    CHECK(summary.outcome == actors::run_outcome_kind::interrupted);
    CHECK_MESSAGE(summary.error.text.find("which is no slot") != std::string::npos, summary.error.text);
  }
  CHECK(hashes_of(on_workers(killed, 2, f.path + "/run", nullptr, false, true).summary) == expected);
}
