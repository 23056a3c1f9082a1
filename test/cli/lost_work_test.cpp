/// Ordinary accidents that may not take work: what a run directory has lost, and what was changed in it.
#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>
#include <map>
#include <sstream>

#include <nlohmann/json.hpp>

#include "child.hpp"
#include "temporary_folder.hpp"

using nlohmann::json;
namespace fs = std::filesystem;

namespace {

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

const char* const experiment = R"({
  "name": "lost", "seed": 3, "defaults": {"workload": {"type": "idle", "weights": 20, "step_us": 50}, "stop_step": 1000000},
  "trainers": [{"name": "a", "hyperparameters": {"lr": 0.001}}, {"name": "b", "hyperparameters": {"lr": 0.002}}],
  "sync": {"every_steps": 20}})";

/// A run with several sets that was killed. It never ends by itself.
struct killed_run {
  temporary_folder folder;
  std::string run = folder / "R";
  killed_run() {
    write_whole(folder / "e.json", experiment);
    child c{folder.path(), {"run", "e.json", "--device", "cpu", "--slots", "2", "--out", "R", "--json"}};
    for (int i = 0; i < 4; ++i)
      c.read_until("\"checkpoints_written\"");
    c.signal(SIGKILL);
    c.wait();
  }
  finished resume(std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments{"resume", "R", "--device", "cpu", "--slots", "1", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return troupe(folder.path(), arguments);
  }
  /// Goes on until its first set is written, and is killed.
  std::string resumed(std::vector<std::string> more, std::string& err) const {
    std::vector<std::string> arguments{"resume", "R", "--device", "cpu", "--slots", "1", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    child c{folder.path(), arguments};
    const auto told = c.read_until("\"gone_on\"");
    c.read_until("\"checkpoints_written\"");
    c.signal(SIGKILL);
    c.wait();
    err = c.err();
    return told;
  }
  /// Folders of the sets that are there, oldest first.
  std::vector<std::string> sets() const {
    std::vector<std::string> out;
    for (int n = 0; n < 100'000; ++n)
      if (fs::exists(run + "/checkpoints/" + std::to_string(n) + "/b.safetensors"))
        out.push_back(run + "/checkpoints/" + std::to_string(n));
    return out;
  }
  static void flip_in(const std::string& file) {
    auto text = read_whole(file);
    text[text.size() - 2] = static_cast<char>(text[text.size() - 2] ^ 4);
    write_whole(file, text);
  }
};

/// Everything below `folder`, with what files hold.
std::map<std::string, std::string> all_of(const std::string& folder) {
  std::map<std::string, std::string> out;
  for (const auto& x : fs::recursive_directory_iterator{folder})
    out[x.path()] = x.is_regular_file() ? read_whole(x.path()) : "";
  return out;
}

json last_line(const std::string& text) {
  std::istringstream in{text};
  json out;
  for (std::string line; std::getline(in, line);)
    out = json::parse(line);
  return out;
}

} // namespace

TEST_CASE("fault 47: a set that cannot be used is told and the one before it is used") {
  killed_run x;
  const auto sets = x.sets();
  REQUIRE(sets.size() >= 2);
  x.flip_in(sets.back() + "/b.safetensors");
  std::string err;
  const auto told = json::parse(x.resumed({}, err));
  REQUIRE(told["damage"].size() == 1);
  CHECK(contains(told["damage"][0], fs::path{sets.back()}.filename().string() + "/b.safetensors"));
  CHECK(contains(told["damage"][0], "does not match its hash"));
  CHECK(std::to_string(told["set"].get<int>()) == fs::path{sets[sets.size() - 2]}.filename());
  CHECK(told["step"].get<int>() > 0);
  CHECK(contains(err, "troupe: checkpoint set"));
  CHECK(contains(err, "does not match its hash"));
}

TEST_CASE("FAULTS row 74 a run that was begun without flushing subnormal numbers goes on with a note") {
  killed_run x;
  const std::string member = R"(,"flushes_subnormals":true)";
  const auto record = read_whole(x.run + "/run.jsonl");
  const auto at = record.find(member);
  REQUIRE(at != std::string::npos);
  REQUIRE(record.find(member, at + 1) == std::string::npos);
  std::string err;
  CHECK_FALSE(json::parse(x.resumed({}, err)).contains("notes"));
  CHECK_FALSE(contains(err, "subnormal"));
  // As an older version would have left it; that what came since flushes changes nothing.
  auto older = read_whole(x.run + "/run.jsonl");
  write_whole(x.run + "/run.jsonl", older.erase(at, member.size()));
  for (int session = 0; session < 2; ++session) {
    const auto told = json::parse(x.resumed({}, err));
    REQUIRE(told["notes"].size() == 1);
    CHECK(contains(told["notes"][0], "kept subnormal numbers"));
    CHECK(contains(err, "troupe: the run was begun by a version that kept subnormal numbers"));
  }
  // Nothing of it is in a run that begins anew.
  for (const auto& set : x.sets())
    fs::remove_all(set);
  CHECK_FALSE(json::parse(x.resumed({"--from-start"}, err)).contains("notes"));
  CHECK_FALSE(json::parse(x.resumed({}, err)).contains("notes"));
}

TEST_CASE("fault 47: where no set can be used resume refuses and changes nothing unless it is told to begin again") {
  for (const bool gone : {false, true}) {
    CAPTURE(gone);
    killed_run x;
    for (const auto& set : x.sets())
      if (gone)
        fs::remove_all(set);
      else
        x.flip_in(set + "/a.safetensors");
    const auto before = all_of(x.run);
    const auto refused = x.resume();
    CHECK(refused.status == 2);
    const auto text = last_line(refused.out)["error"].get<std::string>();
    CHECK(contains(text, "no set of checkpoints of 'R' can be used"));
    CHECK(contains(text, "a.safetensors"));
    CHECK(contains(text, "--from-start"));
    CHECK(all_of(x.run) == before);
    std::string err;
    const auto told = json::parse(x.resumed({"--from-start"}, err));
    CHECK_FALSE(told.contains("set"));
    CHECK(told["step"] == 0);
    CHECK(told["damage"].size() >= 1);
    CHECK(contains(err, "a.safetensors"));
    const auto again = json::parse(x.resumed({}, err)); // from a set of the new beginning
    CHECK(again.contains("set"));
    CHECK(again["step"].get<int>() > 0);
  }
}

TEST_CASE("fault 47: states of another format are refused and never removed") {
  killed_run x;
  const auto file = x.sets().back() + "/a.safetensors";
  auto text = read_whole(file);
  const auto at = text.find(R"("troupe.format":"1")");
  REQUIRE(at != std::string::npos);
  text[at + 17] = '2';
  write_whole(file, text);
  const auto before = all_of(x.run);
  for (const auto& more : {std::vector<std::string>{}, std::vector<std::string>{"--from-start"}}) {
    const auto refused = x.resume(more);
    CHECK(refused.status == 2);
    CHECK(contains(refused.out, "it has format '2', and this version of Troupe reads format 1"));
    CHECK(all_of(x.run) == before);
  }
}

TEST_CASE("fault 47: states without a record are not begun anew over") {
  for (const bool emptied : {false, true}) {
    killed_run x;
    fs::remove(x.run + "/run.jsonl");
    if (emptied)
      write_whole(x.run + "/run.jsonl", "");
    const auto before = all_of(x.run);
    const auto refused = x.resume();
    CHECK(refused.status == 2);
    CHECK(contains(refused.out, "its record run.jsonl is gone"));
    CHECK(all_of(x.run) == before);
  }
}

TEST_CASE("a run that can go on is not begun again") {
  killed_run x;
  const auto before = all_of(x.run);
  const auto refused = x.resume({"--from-start"});
  CHECK(refused.status == 2);
  CHECK(contains(refused.out, "can be used: go on from it"));
  CHECK(all_of(x.run) == before);
}

TEST_CASE("fault 66: an experiment that was edited behind a run is refused") {
  killed_run x;
  auto text = read_whole(x.run + "/experiment.json");
  text.replace(text.find("\"seed\": 3"), 9, "\"seed\": 4");
  write_whole(x.run + "/experiment.json", text);
  const auto refused = x.resume();
  CHECK(refused.status == 2);
  CHECK(contains(refused.out, "R/experiment.json' was changed after the run began"));
}

TEST_CASE("fault 64: a run whose directory is removed ends with the reason") {
  temporary_folder folder;
  write_whole(folder / "e.json", experiment);
  child c{folder.path(), {"run", "e.json", "--device", "cpu", "--slots", "1", "--out", "R", "--json"}};
  c.read_until("\"sync_point\"");
  fs::rename(folder / "R", folder / "gone"); // removing it file by file would race with the run
  CHECK(c.wait() == 1);
  const auto result = last_line(c.out());
  CHECK(result["outcome"] == "failed");
  CHECK(contains(result["error"].get<std::string>(), "R/run.jsonl' is gone"));
  CHECK_FALSE(fs::exists(folder / "R"));
}

TEST_CASE("fault 44: a directory in which the last states cannot be written is refused before training") {
  temporary_folder folder;
  write_whole(folder / "e.json", experiment);
  fs::create_directories(folder / "R");
  write_whole(folder / "R/final", "");
  const auto refused = troupe(folder.path(), {"run", "e.json", "--device", "cpu", "--slots", "1", "--out", "R", "--json"});
  CHECK(refused.status == 2);
  CHECK(contains(refused.out, "'R' holds a file final, where the run needs a folder: choose another directory"));
  CHECK(fs::is_regular_file(folder / "R/final"));
}
