/// Every call that changes a file of a run fails in turn, in processes of their own.
#include <doctest/doctest.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>

#include <nlohmann/json.hpp>

#include "child.hpp"
#include "temporary_folder.hpp"

using nlohmann::json;
namespace fs = std::filesystem;

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool can_preload = false; // the sanitizer must come first
#else
constexpr bool can_preload = true;
#endif

const char* const experiment = R"({
  "name": "faults", "seed": 3, "defaults": {"workload": {"type": "idle", "weights": 50}, "stop_step": 40},
  "trainers": [{"name": "a", "hyperparameters": {"lr": 0.001}}, {"name": "b", "hyperparameters": {"lr": 0.002}}],
  "search_space": {"lr": {"type": "log_uniform", "low": 0.0001, "high": 0.01}},
  "sync": {"at_steps": [10, 20]}, "policy": {"type": "pbt", "quantile": 0.5, "metric": "loss", "mode": "min"},
  "checkpoints": {"keep": 1}})";

/// In the environment of processes that are started while it lives.
class failing_disk {
public:
  failing_disk(const std::string& folder, const std::string& log, int at, int error, bool stays) {
    set("LD_PRELOAD", TROUPE_DISK_FAULTS);
    set("TROUPE_DISK_FOLDER", folder);
    set("TROUPE_DISK_LOG", log);
    set("TROUPE_DISK_FAIL_AT", std::to_string(at));
    set("TROUPE_DISK_ERRNO", std::to_string(error));
    if (stays)
      set("TROUPE_DISK_STAYS", "1");
  }
  ~failing_disk() {
    for (const auto& name : names_)
      ::unsetenv(name.c_str());
  }

private:
  void set(const char* name, const std::string& value) {
    ::setenv(name, value.c_str(), 1);
    names_.push_back(name);
  }
  std::vector<std::string> names_;
};

json result_of(const finished& x) {
  std::istringstream in{x.out};
  json last;
  for (std::string line; std::getline(in, line);)
    last = json::parse(line);
  return last;
}

/// The tensors of the last states; texts beside them tell of lives.
std::map<std::string, std::string> weights_in(const std::string& folder) {
  std::map<std::string, std::string> out;
  for (const auto& x : fs::directory_iterator{folder}) {
    const auto file = read_whole(x.path());
    std::uint64_t header = 0;
    REQUIRE(file.size() > sizeof header);
    std::memcpy(&header, file.data(), sizeof header);
    out[x.path().filename()] = file.substr(sizeof header + header);
  }
  return out;
}

/// Folders of sets that no line of the record names.
std::set<std::string> unrecorded_sets(const std::string& run) {
  std::set<std::string> out;
  if (fs::exists(run + "/checkpoints"))
    for (const auto& x : fs::directory_iterator{run + "/checkpoints"})
      out.insert(x.path().filename());
  if (!fs::exists(run + "/run.jsonl"))
    return out;
  std::istringstream in{read_whole(run + "/run.jsonl")};
  for (std::string line; std::getline(in, line);)
    if (const auto j = json::parse(line, nullptr, false); j.is_object() && j["kind"] == "checkpoint_set")
      out.erase(std::to_string(j["number"].get<int>()));
  return out;
}

/// Makes call after call fail. Whatever happens, no run says that it is done without its last states, the reason is told, and the work is
/// brought to its end once the disk is well.
void fail_in_turn(int error, const std::string& reason, bool stays) {
  if (!can_preload) {
    MESSAGE("not run: nothing can be preloaded before a sanitizer");
    return;
  }
  temporary_folder folder;
  write_whole(folder / "e.json", experiment);
  const std::vector<std::string> arguments{"run", "e.json", "--device", "cpu", "--slots", "1", "--out", "R", "--json"};
  const auto whole = troupe(folder.path(), arguments);
  REQUIRE(whole.status == 0);
  const auto expected = weights_in(folder / "R/final");
  REQUIRE(expected.size() == 2);
  int failed_runs = 0, at = 1;
  for (;; ++at) {
    CAPTURE(at);
    REQUIRE(at < 1000);
    fs::remove_all(folder / "R");
    fs::remove(folder / "log");
    finished run;
    {
      failing_disk disk{folder / "R", folder / "log", at, error, stays};
      run = troupe(folder.path(), arguments);
    }
    if (!fs::exists(folder / "log")) {
      CHECK(run.status == 0);
      break; // there was no such call any more
    }
    const auto what = read_whole(folder / "log");
    CAPTURE(what);
    CAPTURE(run.out);
    CAPTURE(run.err);
    CHECK((run.status == 0 || run.status == 1));
    const auto result = result_of(run);
    CHECK((result["outcome"] == "done") == (run.status == 0));
    if (run.status == 0) {
      CHECK(weights_in(folder / "R/final") == expected); // something that no weights depend on
      continue;
    }
    ++failed_runs;
    const auto text = result.value("error", std::string{});
    CHECK(text.find("R") != std::string::npos);
    CHECK(text.find(reason) != std::string::npos);
    CHECK(unrecorded_sets(folder / "R").empty());
    auto again = fs::exists(folder / "R/experiment.json") ? troupe(folder.path(), {"resume", "R", "--device", "cpu", "--slots", "1", "--json"})
                                                          : troupe(folder.path(), arguments);
    CAPTURE(again.out);
    CAPTURE(again.err);
    CHECK(again.status == 0);
    CHECK(weights_in(folder / "R/final") == expected);
  }
  MESSAGE("calls: " << at - 1 << ", runs that failed: " << failed_runs);
  CHECK(failed_runs > 20);
}

} // namespace

TEST_CASE("fault 44: every write and sync and rename of a run may fail once") { fail_in_turn(EIO, "Input/output error", false); }

TEST_CASE("fault 44: a disk may be full from any moment on") { fail_in_turn(ENOSPC, "No space left on device", true); }
