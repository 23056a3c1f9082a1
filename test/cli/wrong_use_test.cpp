/// What the command says and how it ends where it is used wrongly.
#include <doctest/doctest.h>

#include <filesystem>

#include <sys/stat.h>
#include <unistd.h>

#include "child.hpp"
#include "experiments.hpp"
#include "temporary_folder.hpp"

using nlohmann::json;

namespace {

/// The only line of output, which must be the JSON of a failure.
json failure_of(const finished& x) {
  CHECK(x.status == 2);
  CHECK(x.err == "");
  const auto lines = lines_of(x.out);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0]["kind"] == "result");
  CHECK(lines[0]["ok"] == false);
  CHECK(lines[0]["outcome"] == "failed");
  return lines[0];
}

std::string with_slot(const std::string& slot) {
  return R"({"slots": [{"count": 2}], "trainers": [{"name": "a", "workload": {"type": "idle"}, "stop_step": 10},
    {"name": "b", "count": 3, "slot": )" + slot + R"(, "workload": {"type": "idle"}, "stop_step": 10}]})";
}

} // namespace

TEST_CASE("wrong use is one JSON object where JSON is asked for") {
  temporary_folder folder;
  write_whole(folder / "e.json", short_experiment());
  write_whole(folder / "file", "");
  const auto error = [&](std::vector<std::string> words) {
    return failure_of(troupe(folder.path(), std::move(words)))["error"].get<std::string>();
  };
  CHECK(contains(error({"run", "e.json", "--json", "--seed", "99999999999999999999"}), "--seed: must be a whole number"));
  CHECK(contains(error({"run", "none.json", "--json"}), "cannot read 'none.json': No such file"));
  CHECK(contains(error({"run", "--json"}), "EXPERIMENT is required"));
  CHECK(contains(error({"run", "e.json", "--json", "--out", "file"}), "'file' is no directory"));
  CHECK(contains(error({"resume", "nowhere", "--json"}), "no run directory 'nowhere'"));
  CHECK(contains(error({"status", "nowhere", "--json"}), "no run directory 'nowhere'"));
  CHECK(contains(error({"show", "nowhere", "--json"}), "no run directory 'nowhere'"));
  CHECK(contains(error({"push", "nowhere", "--json"}), "ASSIGNMENT is required"));
  CHECK(contains(error({"doctor", "--json", "more"}), "more"));
  CHECK(contains(error({"rnu", "--json"}), "did you mean 'run'?"));
  CHECK(contains(error({"--json"}), "no command is given"));
  write_whole(folder / "bad.json", "{}");
  auto faults = failure_of(troupe(folder.path(), {"run", "bad.json", "--json"}));
  CHECK(faults["faults"].size() == 1);
}

TEST_CASE("a file that names the output directory is wrong use and is not touched") {
  temporary_folder folder;
  write_whole(folder / "e.json", short_experiment());
  write_whole(folder / "results", "mine");
  auto run = troupe(folder.path(), {"run", "e.json", "--out", "results"});
  CHECK(run.status == 2);
  CHECK(contains(run.err, "'results' is no directory: --out names the run's directory, which is made if it is not there"));
  CHECK(read_whole(folder / "results") == "mine");
}

TEST_CASE("a trainer whose slot does not exist is refused before the start") {
  temporary_folder folder;
  for (const std::string slot : {"7", "\"7\"", "\"0/2\"", "\"1/0\"", "\"cuda:99\"", "\"nonsense\""}) {
    INFO(slot);
    write_whole(folder / "e.json", with_slot(slot));
    auto run = troupe(folder.path(), {"run", "e.json", "--device", "cpu", "--slots", "2"});
    CHECK(run.status == 2);
    CHECK(contains(run.err, "/trainers/1/slot: "));
    CHECK(contains(run.err, "is no slot of this run, which has 2 slots: 0/0 (cpu), 0/1 (cpu)"));
    CHECK_FALSE(std::filesystem::exists(folder / "runs/experiment-1"));
    auto faults = failure_of(troupe(folder.path(), {"run", "e.json", "--device", "cpu", "--slots", "2", "--json"}))["faults"];
    REQUIRE(faults.size() == 1); // of three trainers that one entry stands for
    CHECK(contains(faults[0], "/trainers/1/slot: "));
  }
  for (const std::string slot : {"2", "\"7\"", "\"0/2\""}) {
    write_whole(folder / "e.json", with_slot(slot));
    auto check = troupe(folder.path(), {"check", "e.json"});
    CHECK(check.status == 2);
    CHECK(contains(check.err, "e.json: /trainers/1/slot: "));
    CHECK(contains(check.err, "is no slot: the file's /slots are 2, and the first has the number 0\n"));
  }
  write_whole(folder / "e.json", with_slot("\"1/0\"")); // there may be such a worker
  CHECK(troupe(folder.path(), {"check", "e.json"}).status == 0);
  write_whole(folder / "e.json", with_slot("1"));
  CHECK(troupe(folder.path(), {"check", "e.json"}).status == 0);
  CHECK(troupe(folder.path(), {"run", "e.json", "--out", "here"}).status == 0);
  write_whole(folder / "e.json", with_slot("\"2/0\""));
  CHECK(troupe(folder.path(), {"run", "e.json", "--workers", "2", "--out", "there", "--quiet"}).status == 0);
}

TEST_CASE("a seed from the command line is the one that values are drawn with before they are checked") {
  temporary_folder folder;
  const auto text = [](int seed) {
    return R"({"name": "drawn", "seed": )" + std::to_string(seed) + R"(, "search_space": {"lr": {"type": "uniform", "low": -1, "high": 1}},
      "trainers": [{"name": "a", "workload": {"type": "idle"}, "stop_step": 10}]})";
  };
  std::string wrong, right; // seeds that draw a negative and a positive lr
  for (int seed = 0; wrong.empty() || right.empty(); ++seed) {
    write_whole(folder / "e.json", text(seed));
    (troupe(folder.path(), {"check", "e.json"}).status == 2 ? wrong : right) = std::to_string(seed);
  }
  write_whole(folder / "e.json", text(std::stoi(wrong)));
  auto run = troupe(folder.path(), {"run", "e.json", "--seed", right, "--out", "out", "--device", "cpu"});
  CHECK(run.status == 0);
  CHECK(json::parse(read_whole(folder / "out/experiment.json"))["seed"] == std::stoi(right));
  write_whole(folder / "e.json", text(std::stoi(right)));
  run = troupe(folder.path(), {"run", "e.json", "--seed", wrong, "--out", "other", "--device", "cpu"});
  CHECK(run.status == 2);
  CHECK(contains(run.err, "lr"));
  // Faults that a changed text would not have any more are told.
  write_whole(folder / "e.json", R"({"seed": 1, "seed": 2, "trainers": []})");
  CHECK(contains(troupe(folder.path(), {"run", "e.json", "--seed", "3"}).err, "/seed: is given twice"));
}

TEST_CASE("a run that is going on refuses options that would do nothing") {
  temporary_folder folder;
  write_whole(folder / "e.json", endless_experiment());
  child run{folder.path(), {"run", "e.json", "--slots", "1", "--device", "cpu", "--out", "out", "--json"}};
  REQUIRE(run.read_until("\"started\"") != "");
  for (auto& [option, value] : std::vector<std::pair<std::string, std::string>>{
         {"--slots", "1"}, {"--device", "cpu"}, {"--workers", "0"}, {"--quiet", ""}}) {
    std::vector<std::string> words{"resume", "out", option};
    if (!value.empty())
      words.push_back(value);
    auto x = troupe(folder.path(), words);
    CHECK(x.status == 2);
    CHECK(contains(x.err, "is going on"));
    CHECK(contains(x.err, "nothing for " + option + " to do"));
  }
  CHECK(contains(failure_of(troupe(folder.path(), {"resume", "out", "--slots", "1", "--json"}))["error"], "is going on"));
  CHECK(troupe(folder.path(), {"resume", "out", "--json"}).status == 0);
  CHECK(troupe(folder.path(), {"stop", "out"}).status == 0);
  CHECK(run.wait() == 0);
}

TEST_CASE("a run that is done does not begin again") {
  temporary_folder folder;
  write_whole(folder / "e.json", short_experiment());
  REQUIRE(troupe(folder.path(), {"run", "e.json", "--device", "cpu", "--out", "out", "--quiet"}).status == 0);
  auto again = troupe(folder.path(), {"resume", "out", "--from-start"});
  CHECK(again.status == 2);
  CHECK(contains(again.err, "the run in out is done, so it does not begin again"));
}

TEST_CASE("devices beside which nothing could be done are refused") {
  temporary_folder folder;
  write_whole(folder / "e.json", short_experiment());
  auto twice = troupe(folder.path(), {"run", "e.json", "--device", "cpu", "--device", "cpu"});
  CHECK(twice.status == 2);
  CHECK(contains(twice.err, "--device: 'cpu' is the same device as 'cpu'"));
  auto idle = troupe(folder.path(), {"run", "e.json", "--device", "cpu,cuda:0", "--slots", "1"});
  CHECK(idle.status == 2);
  CHECK(contains(idle.err, "--slots 1 leaves 'cuda:0' without a slot"));
}

TEST_CASE("an experiment that is no readable text is refused with the reason") {
  temporary_folder folder;
  std::filesystem::create_directory(folder / "folder");
  write_whole(folder / "empty.json", "");
  write_whole(folder / "blank.json", " \n");
  write_whole(folder / "binary.json", std::string("\x7f" "ELF\0\1\2", 7));
  write_whole(folder / "latin.json", "{\"name\": \"\xe9\"}");
  write_whole(folder / "list.json", "[1]");
  write_whole(folder / "half.json", "{\"name\": ");
  REQUIRE(::symlink("nowhere", (folder / "dangling.json").c_str()) == 0);
  REQUIRE(::symlink("loop.json", (folder / "loop.json").c_str()) == 0);
  write_whole(folder / "huge.json", "");
  std::filesystem::resize_file(folder / "huge.json", std::uintmax_t{300} << 20);
  for (auto& [name, reason] : std::vector<std::pair<std::string, std::string>>{
         {"folder", "cannot read 'folder': Is a directory"},
         {"none.json", "cannot read 'none.json': No such file or directory"},
         {"dangling.json", "cannot read 'dangling.json': No such file or directory"},
         {"loop.json", "cannot read 'loop.json': Too many levels of symbolic links"},
         {"folder/none/e.json", "cannot read 'folder/none/e.json': No such file or directory"},
         {"empty.json/e.json", "cannot read 'empty.json/e.json': Not a directory"},
         {"huge.json", "cannot read 'huge.json': larger than 256 MiB"},
         {"empty.json", "the file is empty"},
         {"blank.json", "the file is empty"},
         {"binary.json", "byte 4 is zero: this is no text file"},
         {"latin.json", "line 1, column "},
         {"list.json", "must be an object, but is a list"},
         {"half.json", "line 1, column "}}) {
    INFO(name);
    for (const std::string command : {"check", "run"}) {
      auto x = troupe(folder.path(), {command, name});
      CHECK(x.status == 2);
      CHECK(x.out == "");
      CHECK(contains(x.err, reason));
    }
    auto told = lines_of(troupe(folder.path(), {"check", name, "--json"}).out);
    REQUIRE(told.size() == 1);
    CHECK(told[0]["ok"] == false);
    CHECK(contains(told[0]["faults"][0], reason));
  }
}

TEST_CASE("what is no run directory is refused by every command with the reason") {
  temporary_folder folder;
  std::filesystem::create_directory(folder / "empty");
  write_whole(folder / "file", "");
  REQUIRE(::symlink("nowhere", (folder / "dangling").c_str()) == 0);
  for (auto& [name, reason] : std::vector<std::pair<std::string, std::string>>{
         {"nowhere", "there is no run directory 'nowhere'"},
         {"file", "'file' is no directory"},
         {"dangling", "'dangling' is a link to something that is not there"},
         {"file/run", "cannot look at 'file/run': Not a directory"},
         {"empty", "experiment.json"}}) {
    INFO(name);
    for (std::vector<std::string> words : {std::vector<std::string>{"show"}, {"status"}, {"resume"}, {"pause"}, {"stop"},
                                           {"push", "lr=1"}, {"add", "{}"}}) {
      INFO(words[0]);
      words.insert(words.begin() + 1, name);
      auto x = troupe(folder.path(), words);
      CHECK(x.status == 2);
      CHECK(x.out == "");
      CHECK(contains(x.err, reason));
    }
  }
}

TEST_CASE("assignments and entries that mean nothing are refused before the run is asked") {
  temporary_folder folder;
  write_whole(folder / "e.json", short_experiment());
  REQUIRE(troupe(folder.path(), {"run", "e.json", "--device", "cpu", "--out", "out", "--quiet"}).status == 0);
  for (auto& [words, reason] : std::vector<std::pair<std::vector<std::string>, std::string>>{
         {{"push", "out", "lr"}, "\"lr\" is no assignment"},
         {{"push", "out", "=1"}, "\"=1\" is no assignment"},
         {{"push", "out", "lr="}, "'lr' is given no value"},
         {{"push", "out", "lr=0.1", "lr=0.2"}, "'lr' is given twice"},
         {{"push", "out", "lr=1e999"}, "lr: 1e999 is out of the range of numbers"},
         {{"push", "out", "n=9223372036854775808"}, "n: 9223372036854775808 does not fit"},
         {{"add", "out", "none.json"}, "'none.json' is neither a file nor a trainer's JSON"}}) {
    INFO(words[1], words[2]);
    auto x = troupe(folder.path(), words);
    CHECK(x.status == 2);
    CHECK(contains(x.err, reason));
  }
}

TEST_CASE("what a run refuses because it is wrong is wrong use") {
  temporary_folder folder;
  write_whole(folder / "e.json", endless_experiment());
  write_whole(folder / "half.json", "{\"name\":");
  child run{folder.path(), {"run", "e.json", "--slots", "1", "--device", "cpu", "--out", "out", "--json"}};
  REQUIRE(run.read_until("\"started\"") != "");
  for (const auto& words : std::vector<std::vector<std::string>>{{"push", "lr=often"},
                                                                 {"push", "lr=nan"},
                                                                 {"push", "lr=-1"},
                                                                 {"push", "lrr=1"},
                                                                 {"pause", "-t", "nobody"},
                                                                 {"stop", "-t", "nobody"},
                                                                 {"resume", "-t", "nobody"},
                                                                 {"add", "half.json"},
                                                                 {"add", "[]"},
                                                                 {"add", "{]"},
                                                                 {"add", R"({"name": "a"})"},
                                                                 {"add", R"({"name": "c", "slot": 7})"},
                                                                 {"add", R"({"name": "c", "workload": {"type": "none"}})"}}) {
    auto all = words;
    all.insert(all.begin() + 1, "out");
    auto x = troupe(folder.path(), all);
    INFO(words[0], " ", words.back(), ": ", x.out, x.err);
    CHECK(x.status == 2);
    CHECK(x.out == "");
    CHECK(x.err.size() > 10);
  }
  CHECK(troupe(folder.path(), {"stop", "out"}).status == 0);
  CHECK(run.wait() == 0);
  CHECK(troupe(folder.path(), {"pause", "out"}).status == 1); // nothing is wrong with this but that it comes too late
}
