/// What becomes of a command whose standard input, output or error is not as usual.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "child.hpp"
#include "experiments.hpp"
#include "temporary_folder.hpp"

using nlohmann::json;

namespace {

constexpr std::string_view lost = "troupe: standard output cannot be written: ";

std::size_t times(const std::string& text, std::string_view part) {
  std::size_t n = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++n;
  return n;
}

} // namespace

TEST_CASE("a command that only prints fails when its output cannot be written") {
  temporary_folder folder;
  write_whole(folder / "e.json", short_experiment());
  REQUIRE(troupe(folder.path(), {"run", "e.json", "--device", "cpu", "--out", "out", "--quiet"}).status == 0);
  for (const std::string words : {"check e.json", "check e.json --json", "show out", "show out --json", "status out", "status out --json",
                                  "doctor", "doctor --json", "--help", "run --help", "--version"}) {
    INFO(words);
    auto full = shell(folder.path(), "exec \"$0\" " + words + " >/dev/full");
    CHECK(full.status == 1);
    CHECK(full.err == std::string{lost} + "No space left on device\n");
    auto closed = shell(folder.path(), "exec \"$0\" " + words + " >&-");
    CHECK(closed.status == 1);
    CHECK(closed.err == std::string{lost} + "it is closed\n");
    auto gone = shell(folder.path(), "{ \"$0\" " + words + "; echo $? >status; } | true; cat status");
    CHECK((gone.out == "1\n" || gone.out == "0\n")); // all of it may have gone into the pipe before its reader left
    CHECK(gone.err == "");
  }
  // What was wrong before stays wrong, and complaints may be lost too.
  CHECK(shell(folder.path(), "exec \"$0\" check none.json 2>/dev/full").status == 2);
  CHECK(shell(folder.path(), "exec \"$0\" check none.json --json >/dev/full").status == 2);
}

TEST_CASE("a run whose output is lost goes on to its end and says so once") {
  temporary_folder folder;
  write_whole(folder / "e.json", short_experiment());
  for (const std::string how : {"", "--json"})
    for (const std::string where : {">/dev/full", ">&-"}) {
      INFO(how, where);
      std::filesystem::remove_all(folder / "out");
      auto run = shell(folder.path(), "exec \"$0\" run e.json --device cpu --out out " + how + " " + where);
      CHECK(run.status == 0);
      CHECK(times(run.err, lost) == 1);
      CHECK(contains(run.err, "a run goes on all the same\n"));
      CHECK(json::parse(troupe(folder.path(), {"show", "out", "--json"}).out)["outcome"] == "done");
    }
}

TEST_CASE("a run whose reader leaves goes on to its end") {
  temporary_folder folder;
  write_whole(folder / "e.json", short_experiment());
  for (const std::string how : {"", "--json"}) {
    std::filesystem::remove_all(folder / "out");
    // The reader has gone before anything is written: the shell waits for it.
    auto run = shell(folder.path(), "mkfifo pipe" + how + "; exec 3<>pipe" + how + "; exec 4>pipe" + how + "; exec 3<&-; "
                                    "\"$0\" run e.json --device cpu --out out " + how + " >&4");
    CHECK(run.status == 0);
    CHECK(times(run.err, std::string{lost} + "Broken pipe") == 1);
    CHECK(json::parse(troupe(folder.path(), {"show", "out", "--json"}).out)["outcome"] == "done");
  }
}

TEST_CASE("a run that fails says so by its status though its output is lost") {
  temporary_folder folder;
  write_whole(folder / "e.json", R"({"failures": {"max_restarts": 0}, "trainers": [{"name": "a", "stop_step": 200, "hyperparameters": {"lr": 1e6},
    "workload": {"type": "mlp", "data": {"type": "synthetic", "train": 256, "test": 64}, "hidden": [8], "batch": 32}}]})");
  CHECK(shell(folder.path(), "exec \"$0\" run e.json --out out --device cpu >/dev/full").status == 1);
  CHECK(shell(folder.path(), "exec \"$0\" run none.json --json >/dev/full").status == 2);
}

TEST_CASE("what was asked of a run is done though the answer cannot be printed") {
  temporary_folder folder;
  write_whole(folder / "e.json", endless_experiment());
  child run{folder.path(), {"run", "e.json", "--slots", "1", "--device", "cpu", "--out", "out", "--json"}};
  REQUIRE(run.read_until("\"started\"") != "");
  auto pushed = shell(folder.path(), "exec \"$0\" push out lr=0.5 >/dev/full");
  CHECK(pushed.status == 0);
  CHECK(times(pushed.err, lost) == 1);
  auto trainers = json::parse(troupe(folder.path(), {"status", "out", "--json"}).out)["trainers"];
  CHECK(trainers[0]["hyperparameters"]["lr"] == 0.5);
  CHECK(shell(folder.path(), "exec \"$0\" stop out >/dev/full").status == 0);
  CHECK(run.wait() == 0);
}

TEST_CASE("no file of a run gets the number of a closed standard stream") {
  temporary_folder folder;
  write_whole(folder / "e.json", short_experiment());
  auto run = shell(folder.path(), "exec \"$0\" run e.json --device cpu --out out <&- >&- 2>&-");
  CHECK(run.status == 0);
  CHECK(read_whole(folder / "out/experiment.json") == short_experiment());
  auto lines = lines_of(read_whole(folder / "out/run.jsonl")); // all of them JSON
  CHECK(lines.back()["outcome"] == "done");
  CHECK(read_whole(folder / "out/metadata.csv").starts_with("time,sync,"));
  CHECK(read_whole(folder / "out/lock") == "");
  // As the running process sees it.
  write_whole(folder / "endless.json", endless_experiment());
  child endless{folder.path(), child::script{"exec \"$0\" run endless.json --device cpu --slots 1 --out endless --json <&- 2>&-"}};
  REQUIRE(endless.read_until("\"started\"") != "");
  const auto pid = json::parse(read_whole(folder / "endless/control.json"))["pid"].get<int>();
  for (auto number : {"0", "2"})
    CHECK(std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/fd/" + number) == "/dev/null");
  CHECK(troupe(folder.path(), {"stop", "endless"}).status == 0);
  CHECK(endless.wait() == 0);
  auto workers = shell(folder.path(), "exec \"$0\" run e.json --device cpu --workers 2 --out apart <&- >&- 2>&-");
  CHECK(workers.status == 0);
  CHECK(lines_of(read_whole(folder / "apart/run.jsonl")).back()["outcome"] == "done");
}

TEST_CASE("standard input that is closed cannot be read") {
  temporary_folder folder;
  for (const std::string command : {"run", "check"}) {
    auto x = shell(folder.path(), "exec \"$0\" " + command + " - <&-");
    CHECK(x.status == 2);
    CHECK(contains(x.err, "troupe: cannot read 'standard input': Bad file descriptor"));
  }
}
