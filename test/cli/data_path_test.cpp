/// Relative paths of data mean the same for every command, wherever it is called.
#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>

#include "child.hpp"
#include "experiments.hpp"
#include "temporary_folder.hpp"

using nlohmann::json;

namespace {

/// A project with word lists of its own and an experiment that names their folder; "elsewhere" lies beside it.
struct project {
  temporary_folder folder;
  std::string here = folder / "project", elsewhere = folder / "elsewhere";

  project() {
    std::filesystem::create_directories(here + "/lists");
    std::filesystem::create_directory(elsewhere);
    for (const std::string name : {"one", "two"}) {
      std::string words;
      for (char a = 'a'; a <= 'z'; ++a)
        for (char b = 'a'; b <= 'e'; ++b)
          words += name + a + b + "\n";
      write_whole(here + "/lists/" + name, words);
    }
    write_whole(here + "/e.json", R"({
      // Its data lies beside it.
      "defaults": {"workload": )" + workload() + R"(, "stop_step": 1000000000},
      "trainers": [{"name": "a"}]})");
  }

  static std::string workload() {
    return R"({"type": "transformer", "batch": 4, "width": 8, "heads": 1, "layers": 1,
               "data": {"type": "languages", "path": "lists", "languages": ["one", "two"], "words": 100}})";
  }
};

} // namespace

TEST_CASE("a relative path of data counts against the folder of its experiment file") {
  project p;
  auto near = troupe(p.here, {"check", "e.json", "--json"});
  CHECK(near.status == 0);
  auto far = troupe(p.elsewhere, {"check", "../project/e.json", "--json"});
  CHECK(far.status == 0);
  const auto path_in = [](const std::string& text) {
    return json::parse(text)["experiment"]["trainers"][0]["workload"]["data"]["path"].get<std::string>();
  };
  CHECK(std::filesystem::equivalent(path_in(near.out), p.here + "/lists"));
  CHECK(std::filesystem::equivalent(path_in(far.out), p.here + "/lists"));
  CHECK(shell(p.here, "exec \"$0\" check - <e.json").status == 0);
  auto piped = shell(p.elsewhere, "exec \"$0\" check - <../project/e.json");
  CHECK(piped.status == 2);
  CHECK(contains(piped.err, "/elsewhere/lists/one"));
}

TEST_CASE("a run goes on with its data from every folder and in workers and takes trainers from there") {
  project p;
  child run{p.elsewhere, {"run", "../project/e.json", "--slots", "1", "--device", "cpu", "--out", p.folder / "out", "--json"}};
  REQUIRE(run.read_until("\"started\"") != "");
  // An entry's path counts in the same way: against its file's folder, or the current one.
  auto entry = R"({"name": "b", "workload": )" + project::workload() + "}";
  auto missing = troupe(p.elsewhere, {"add", p.folder / "out", entry});
  CHECK(missing.status == 2);
  CHECK(contains(missing.err, "/elsewhere/lists/one"));
  CHECK(troupe(p.here, {"add", p.folder / "out", entry}).status == 0);
  write_whole(p.here + "/c.json", R"({"name": "c", "workload": )" + project::workload() + "}");
  CHECK(troupe(p.elsewhere, {"add", p.folder / "out", "../project/c.json"}).status == 0);
  run.signal(SIGINT);
  CHECK(run.wait() == 1);

  for (const std::string workers : {"0", "1"}) {
    child again{p.folder.path(), {"resume", "out", "--slots", "1", "--device", "cpu", "--workers", workers, "--json"}};
    auto started = again.read_until("\"started\"");
    REQUIRE(started != "");
    CHECK(json::parse(started)["trainers"].size() == 3);
    again.signal(SIGINT);
    CHECK(again.wait() == 1);
    for (auto& t : lines_of(again.out()).back()["trainers"])
      CHECK(t["state"] == "interrupted");
  }
}

TEST_CASE("an experiment without relative paths is kept as it was given") {
  temporary_folder folder;
  const auto text = "// with a comment\n" + short_experiment();
  write_whole(folder / "e.json", text);
  REQUIRE(troupe(folder.path(), {"run", "e.json", "--device", "cpu", "--out", "out", "--quiet"}).status == 0);
  CHECK(read_whole(folder / "out/experiment.json") == text);
}
