/// What signals, closed terminals and readers that leave do to a run, with real processes.
#include <doctest/doctest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "child.hpp"
#include "temporary_folder.hpp"

extern char** environ;

using nlohmann::json;

namespace {

/// Two trainers that go on until they are told to stop.
const std::string endless = R"({
  "name": "endless",
  "defaults": {"workload": {"type": "idle", "step_us": 100}, "stop_step": 1000000000, "hyperparameters": {"lr": 0.001}},
  "trainers": [{"name": "a"}, {"name": "b"}],
  "sync": {"every_steps": 50}})";

/// The same two, which end.
std::string ending() {
  auto text = endless;
  return text.replace(text.find("1000000000"), 10, "300");
}

std::vector<json> lines_of(const std::string& text) {
  std::vector<json> out;
  std::istringstream in{text};
  for (std::string line; std::getline(in, line);)
    out.push_back(json::parse(line));
  return out;
}

/// The last line of a kind in a run's record.
json last_on_record(const std::string& run, const std::string& kind) {
  json out;
  for (auto& line : lines_of(read_whole(run + "/run.jsonl")))
    if (line["kind"] == kind)
      out = line;
  return out;
}

/// Where each trainer begins when the run is gone on with.
std::vector<std::uint64_t> steps_after_resume(const temporary_folder& folder) {
  child again{folder.path(), {"resume", "out", "--slots", "1", "--device", "cpu", "--json"}};
  std::vector<std::uint64_t> out;
  const auto started = json::parse(again.read_until("\"started\""));
  for (auto& t : started["trainers"])
    out.push_back(t["step"]);
  return out;
}

} // namespace

TEST_CASE("a signal to a head and all its workers at once loses no step") {
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) {
    CAPTURE(number);
    temporary_folder folder;
    write_whole(folder / "e.json", endless);
    child run{folder.path(), {"run", "e.json", "--workers", "2", "--device", "cpu", "--out", "out", "--json"}};
    REQUIRE(run.read_until("\"sync_point\"") != "");
    const auto workers = children_of(run.pid());
    REQUIRE(workers.size() == 2);
    for (const auto w : workers) // before the head can have told them anything
      ::kill(w, number);
    run.signal(number);
    CHECK(run.wait() == 1);
    const auto result = lines_of(run.out()).back();
    REQUIRE(result["outcome"] == "interrupted");
    CHECK_FALSE(result.contains("error"));
    const auto steps = steps_after_resume(folder);
    REQUIRE(steps.size() == 2);
    for (std::size_t t = 0; t < 2; ++t) {
      CHECK(result["trainers"][t]["restarts"] == 0);
      CHECK(result["trainers"][t]["step"] >= 50);
      CHECK(steps[t] == result["trainers"][t]["step"]);
    }
  }
}

TEST_CASE("SIGTERM that comes again and again takes nothing away from the saving") {
  temporary_folder folder;
  write_whole(folder / "e.json", endless);
  child run{folder.path(), {"run", "e.json", "--slots", "1", "--device", "cpu", "--out", "out", "--json"}};
  REQUIRE(run.read_until("\"sync_point\"") != "");
  run.close_output(); // else nobody reads, and it never ends
  CHECK(run.signal_until_over(SIGTERM) < 128);
  CHECK(last_on_record(folder / "out", "run_ended")["outcome"] == "interrupted");
  CHECK(run.err().find("SIGTERM: finishing the step at hand and saving") != std::string::npos);
}

TEST_CASE("a run whose terminal is closed saves and can be gone on with") {
  temporary_folder folder;
  write_whole(folder / "e.json", endless);
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(terminal >= 0);
  REQUIRE(::grantpt(terminal) == 0);
  REQUIRE(::unlockpt(terminal) == 0);
  const std::string name = ::ptsname(terminal);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  sigset_t all;
  ::sigfillset(&all);
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_addchdir_np(&actions, folder.path().c_str());
  ::posix_spawn_file_actions_addopen(&actions, 0, name.c_str(), O_RDWR, 0); // its session's terminal from here on
  ::posix_spawn_file_actions_adddup2(&actions, 0, 1);
  ::posix_spawn_file_actions_adddup2(&actions, 0, 2);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setflags(&attributes, static_cast<short>(POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGDEF));
  std::vector<std::string> words{TROUPE_COMMAND, "run", "e.json", "--slots", "1", "--device", "cpu", "--out", "out"};
  std::vector<char*> argv;
  for (auto& w : words)
    argv.push_back(w.data());
  argv.push_back(nullptr);
  pid_t run = 0;
  REQUIRE(::posix_spawn(&run, argv[0], &actions, &attributes, argv.data(), environ) == 0);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  std::string seen;
  for (char block[4096]; seen.find("sync point 3") == std::string::npos;) {
    const auto n = ::read(terminal, block, sizeof block);
    REQUIRE(n > 0);
    seen.append(block, static_cast<std::size_t>(n));
  }
  ::close(terminal);
  int status = 0;
  REQUIRE(::waitpid(run, &status, 0) == run);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 1);
  CHECK(last_on_record(folder / "out", "run_ended")["outcome"] == "interrupted");
  const auto set = last_on_record(folder / "out", "checkpoint_set");
  CHECK_FALSE(set.contains("sync")); // of the moment at which it was left
  REQUIRE(set["trainers"].size() == 2);
  CHECK(steps_after_resume(folder) == std::vector<std::uint64_t>{set["trainers"][0]["step"], set["trainers"][1]["step"]});
}

TEST_CASE("a run under nohup does not end at a hangup") {
  temporary_folder folder;
  write_whole(folder / "e.json", ending());
  child run{folder.path(),
            {"run", "e.json", "--slots", "1", "--device", "cpu", "--out", "out", "--json"},
            {.ignores_hangup = true}};
  REQUIRE(run.read_until("\"started\"") != "");
  run.signal(SIGHUP);
  CHECK(run.wait() == 0);
  CHECK(lines_of(run.out()).back()["outcome"] == "done");
}

TEST_CASE("a reader that leaves stops nothing") {
  temporary_folder folder;
  write_whole(folder / "e.json", ending());
  for (const std::vector<std::string>& where : {std::vector<std::string>{"--slots", "1"}, {"--workers", "1"}}) {
    std::filesystem::remove_all(folder / "out");
    std::vector<std::string> words{"run", "e.json", "--device", "cpu", "--out", "out", "--json"};
    words.insert(words.end(), where.begin(), where.end());
    child run{folder.path(), words};
    REQUIRE(run.read_line() != "");
    run.close_output();
    CHECK(run.wait() < 128);
    CHECK(last_on_record(folder / "out", "run_ended")["outcome"] == "done");
  }
  for (const std::string command : {"show", "status", "check", "doctor"}) {
    CAPTURE(command);
    std::vector<std::string> words{command};
    if (command != "doctor")
      words.emplace_back(command == "check" ? "e.json" : "out");
    child c{folder.path(), words, {.nobody_reads = true}};
    CHECK(c.wait() < 128);
    CHECK(c.err() == "");
  }
}

TEST_CASE("a run whose output nobody reads saves at SIGTERM and leaves at Ctrl-C") {
  temporary_folder folder;
  write_whole(folder / "e.json", endless);
  child run{folder.path(), {"run", "e.json", "--slots", "1", "--device", "cpu", "--out", "out"}};
  REQUIRE(run.read_until("endless: 2 trainers") != "");
  const auto path = "/proc/self/fd/" + std::to_string(run.output());
  const int writer = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  REQUIRE(writer >= 0);
  while (::write(writer, "x", 1) == 1) // no room is left for what it says at its end
    continue;
  run.signal(SIGTERM);
  while (last_on_record(folder / "out", "run_ended").is_null())
    std::this_thread::yield();
  CHECK(last_on_record(folder / "out", "run_ended")["outcome"] == "interrupted");
  CHECK(run.signal_until_over(SIGINT) == 130);
  ::close(writer);
}

TEST_CASE("Ctrl-Z stops a head and its workers and they go on where they were") {
  temporary_folder folder;
  write_whole(folder / "e.json", endless);
  child run{folder.path(), {"run", "e.json", "--workers", "2", "--device", "cpu", "--out", "out", "--json"}, {.own_group = true}};
  REQUIRE(run.read_until("\"sync_point\"") != "");
  const auto workers = children_of(run.pid());
  REQUIRE(workers.size() == 2);
  const auto stop = [&] {
    run.signal(SIGTSTP);
    run.wait_until_stopped();
    for (const auto w : workers)
      wait_until_stopped(w);
  };
  const auto status = [&] { return json::parse(troupe(folder.path(), {"status", "out", "--json"}).out); };
  stop();
  run.signal(SIGCONT);
  const auto before = status()["trainers"];
  for (std::size_t t = 0; t < 2; ++t)
    while (status()["trainers"][t]["step"] <= before[t]["step"])
      run.read_line(); // or its output would hold it up
  CHECK(children_of(run.pid()) == workers);

  stop();
  run.signal(SIGTERM);
  run.signal(SIGCONT);
  CHECK(run.wait() == 1);
  const auto lines = lines_of(run.out());
  CHECK(lines.back()["outcome"] == "interrupted");
  for (auto& line : lines)
    CHECK(line["kind"] != "node_lost");
  for (auto& t : lines.back()["trainers"])
    CHECK(t["restarts"] == 0);
}

TEST_CASE("FAULTS row 45 a run whose only worker is killed ends as interrupted with the reason and goes on elsewhere") {
  temporary_folder folder;
  write_whole(folder / "e.json", endless);
  child run{folder.path(), {"run", "e.json", "--workers", "1", "--device", "cpu", "--out", "out", "--json"}};
  REQUIRE(run.read_until("\"checkpoints_written\"") != "");
  for (const auto worker : children_of(run.pid()))
    ::kill(worker, SIGKILL);
  CHECK(run.wait() == 1);
  const auto result = lines_of(run.out()).back();
  CHECK(result["outcome"] == "interrupted");
  const std::string why = result["error"];
  CHECK_MESSAGE(why.find("there is no living slot; node 1 is gone") != std::string::npos, why);
  CHECK(last_on_record(folder / "out", "run_ended")["reason"] == why);
  const auto shown = troupe(folder.path(), {"show", "out"}).out;
  CHECK(shown.find("was interrupted: " + why + "; go on with `troupe resume`") != std::string::npos);
  const auto set = last_on_record(folder / "out", "checkpoint_set");
  CHECK(steps_after_resume(folder) == std::vector<std::uint64_t>{set["trainers"][0]["step"], set["trainers"][1]["step"]});
}
