#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <set>
#include <sstream>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "child.hpp"
#include "experiments.hpp"
#include "temporary_folder.hpp"

using nlohmann::json;

namespace {

/// A run of the short experiment in `cut`, ended by a signal after its first sync point. One that a busy machine let end before the
/// signal came is begun anew with slower steps: no number of steps is too many on every machine.
struct cut_off {
  int status = 0;
  std::string told, out, err; ///< told: the line of the first sync point
};

cut_off cut_by(int signal, const temporary_folder& folder) {
  for (int step_us = 200;; step_us *= 4) {
    std::filesystem::remove_all(folder / "cut");
    auto text = short_experiment();
    text.insert(text.find("\"idle\"") + 6, ", \"step_us\": " + std::to_string(step_us));
    write_whole(folder / "slow.json", text);
    child run{folder.path(), {"run", "slow.json", "--slots", "2", "--device", "cpu", "--out", "cut", "--json"}};
    auto told = run.read_until("\"sync_point\"");
    run.signal(signal);
    auto status = run.wait();
    if (status != 0 || step_us > 10'000)
      return {status, told, run.out(), run.err()};
  }
}

} // namespace

TEST_CASE("doctor lists devices and libraries and why no GPU is used") {
  temporary_folder folder;
  auto text = troupe(folder.path(), {"doctor"});
  CHECK(text.status == 0);
  CHECK(contains(text.out, "cpu"));
  CHECK(contains(text.out, "CAF"));
  CHECK(contains(text.out, "Fashion-MNIST"));
  auto j = json::parse(troupe(folder.path(), {"doctor", "--json"}).out);
  CHECK(j["devices"][0]["kind"] == "cpu");
  CHECK(j["devices"][0]["cores"].size() >= 1);
  CHECK(j["devices"][0]["slot"]["memory_budget"] == 0); // no limit but the device's
  CHECK(j["devices"][0]["slot"]["pinned_budget"] == j["devices"][0]["memory_available"].get<std::uint64_t>() / 4);
  CHECK(contains(text.out, "slot budget"));
  CHECK_FALSE(j["libraries"]["CAF"]["version"].get<std::string>().empty());
  CHECK(contains(text.out, "No GPU is used") == (j["cuda_status"] != "ok"));
}

TEST_CASE("check accepts a right experiment and lists all faults of a wrong one") {
  temporary_folder folder;
  write_whole(folder / "good.json", short_experiment());
  auto good = troupe(folder.path(), {"check", "good.json"});
  CHECK(good.status == 0);
  CHECK(contains(good.out, "good.json is right: short, 3 trainers, sync points at 100 200, policy pbt"));
  auto spelled = json::parse(troupe(folder.path(), {"check", "good.json", "--json"}).out);
  CHECK(spelled["experiment"]["trainers"].size() == 3);

  write_whole(folder / "bad.json", R"({"trainers": [{"workload": {"type": "idel"}, "stop_step": 0}], "nmae": 1})");
  auto bad = troupe(folder.path(), {"check", "bad.json"});
  CHECK(bad.status == 2);
  CHECK(bad.out == "");
  CHECK(contains(bad.err, "bad.json: /trainers/0/workload/type: 'idel' is no known workload; did you mean 'idle'?"));
  CHECK(contains(bad.err, "bad.json: /trainers/0/stop_step: "));
  CHECK(contains(bad.err, "bad.json: /nmae: is no known key; did you mean 'name'?"));
  CHECK(json::parse(troupe(folder.path(), {"check", "bad.json", "--json"}).out)["faults"].size() == 3);
  CHECK(troupe(folder.path(), {"check", "none.json"}).status == 2);
}

TEST_CASE("run prints one JSON object a line and the result last") {
  temporary_folder folder;
  write_whole(folder / "e.json", short_experiment());
  auto run = troupe(folder.path(), {"run", "e.json", "--slots", "2", "--device", "cpu", "--out", "out", "--json"});
  CHECK(run.err == "");
  REQUIRE(run.status == 0);
  auto lines = lines_of(run.out);
  CHECK(of_kind(lines, "started").size() == 1);
  auto points = of_kind(lines, "sync_point");
  REQUIRE(points.size() == 2);
  CHECK(points[1]["index"] == 1);
  CHECK(points[1]["step"] == 200);
  REQUIRE(points[1]["trainers"].size() == 3);
  CHECK(points[1]["trainers"][0]["name"] == "a");
  CHECK(points[1]["trainers"][0]["decision"].contains("action"));
  CHECK(points[1]["trainers"][0]["hyperparameters"].contains("lr"));
  auto& result = lines.back();
  CHECK(result["kind"] == "result");
  CHECK(result["outcome"] == "done");
  CHECK(result["directory"] == "out");
  REQUIRE(result["trainers"].size() == 3);
  CHECK(result["trainers"][2]["step"] == 300);
  CHECK(result["trainers"][2]["state"] == "finished");

  SUBCASE("a run is shown after its end") {
    auto show = troupe(folder.path(), {"show", "out"});
    CHECK(show.status == 0);
    CHECK(contains(show.out, "out is done"));
    CHECK(contains(show.out, "sync point 1 at step 200"));
    CHECK(contains(show.out, "finished"));
    auto status = troupe(folder.path(), {"status", "out", "--json"});
    CHECK(status.status == 0);
    auto told = json::parse(status.out);
    CHECK(told["outcome"] == "done");
    CHECK(told["slots_at_end"] == true);
    REQUIRE(told["slots"].size() == 2);
    CHECK(told["slots"][0]["steps"].get<int>() + told["slots"][1]["steps"].get<int>() == 900);
    CHECK(contains(troupe(folder.path(), {"status", "out"}).out,
                   "2 slots when the run ended, " + told["slots_time"].get<std::string>() + "\n  slot  device"));
    CHECK_FALSE(contains(show.out, "slots when"));
    // As a crash would leave it: the run did not come to its end.
    auto kept = read_whole(folder / "out/slots.json");
    kept.replace(kept.find("\"at_end\": true"), 14, "\"at_end\": false");
    write_whole(folder / "out/slots.json", kept);
    CHECK(contains(troupe(folder.path(), {"status", "out"}).out,
                   "2 slots as of " + told["slots_time"].get<std::string>() + ": what they did after it was not kept\n"));
    write_whole(folder / "out/slots.json", "{");
    status = troupe(folder.path(), {"status", "out"});
    CHECK(status.status == 0);
    CHECK(contains(status.out, "finished"));
    CHECK(contains(status.err, "slots.json' is damaged"));
    std::filesystem::remove(folder / "out/slots.json"); // a run of an earlier version
    status = troupe(folder.path(), {"status", "out"});
    CHECK(status.err == "");
    CHECK_FALSE(contains(status.out, " slots "));
  }
  SUBCASE("a directory with a run is refused") {
    auto again = troupe(folder.path(), {"run", "e.json", "--slots", "2", "--out", "out"});
    CHECK(again.status == 2);
    CHECK(contains(again.err, "holds a run already"));
  }
  SUBCASE("a run that is done is not gone on with") {
    auto resumed = troupe(folder.path(), {"resume", "out"});
    CHECK(resumed.status == 0);
    CHECK(contains(resumed.out, "is done already"));
  }
  SUBCASE("the number of slots does not change the weights") {
    auto other = troupe(folder.path(), {"run", "e.json", "--slots", "1", "--device", "cpu", "--out", "one", "--json"});
    auto hashes = [](const json& r) {
      std::vector<json> out;
      for (auto& t : r["trainers"])
        out.push_back(t["state_hash"]);
      return out;
    };
    CHECK(hashes(lines_of(other.out).back()) == hashes(result));
    auto spread = troupe(folder.path(), {"run", "e.json", "--workers", "2", "--device", "cpu", "--out", "spread", "--json"});
    CHECK(spread.status == 0);
    CHECK(hashes(lines_of(spread.out).back()) == hashes(result));
    auto started = of_kind(lines_of(spread.out), "started").at(0);
    CHECK(started["trainers"][0]["slot"] != started["trainers"][1]["slot"]);
  }
  SUBCASE("workers without slots are wrong use") {
    auto few = troupe(folder.path(), {"run", "e.json", "--workers", "3", "--slots", "2", "--device", "cpu", "--out", "few"});
    CHECK(few.status == 2);
    CHECK(contains(few.err, "3 workers need at least as many slots"));
    auto own = short_experiment();
    own.insert(own.find('{') + 1, R"("slots": [{"memory_bytes": 100000000}],)");
    write_whole(folder / "own.json", own);
    few = troupe(folder.path(), {"run", "own.json", "--workers", "2", "--out", "few"});
    CHECK(few.status == 2);
    CHECK(contains(few.err, "2 workers need at least as many slots: the experiment has 1"));
  }
}

TEST_CASE("run without an output directory numbers its own and says where the results are") {
  temporary_folder folder;
  write_whole(folder / "e.json", short_experiment());
  for (auto name : {"runs/short-1", "runs/short-2"}) {
    auto run = troupe(folder.path(), {"run", "e.json", "--device", "cpu"});
    CHECK(run.status == 0);
    CHECK(contains(run.out, "sync point 0 at step 100"));
    CHECK(contains(run.out, std::string{"everything is in "} + name));
    CHECK(std::filesystem::exists(folder / name));
    CHECK_FALSE(contains(run.out, "\033["));
  }
}

TEST_CASE("an experiment that is started many times at once has as many runs") {
  temporary_folder folder;
  write_whole(folder / "e.json", short_experiment());
  std::vector<std::unique_ptr<child>> runs;
  for (int i = 0; i < 6; ++i)
    runs.push_back(std::make_unique<child>(folder.path(), std::vector<std::string>{"run", "e.json", "--device", "cpu", "--slots", "1", "--json", "-q"}));
  std::set<std::string> directories;
  for (auto& run : runs) {
    CHECK(run->wait() == 0);
    CHECK(run->err() == "");
    directories.insert(lines_of(run->out()).back()["directory"].get<std::string>());
  }
  CHECK(directories == std::set<std::string>{"runs/short-1", "runs/short-2", "runs/short-3", "runs/short-4", "runs/short-5", "runs/short-6"});
}

TEST_CASE("quiet prints the results alone") {
  temporary_folder folder;
  write_whole(folder / "e.json", short_experiment());
  auto text = troupe(folder.path(), {"run", "e.json", "--device", "cpu", "--quiet"});
  CHECK(text.status == 0);
  CHECK(text.out.starts_with("results\n  trainer"));
  CHECK_FALSE(contains(text.out, "sync point 0"));
  auto lines = lines_of(troupe(folder.path(), {"run", "e.json", "--device", "cpu", "--quiet", "--json"}).out);
  CHECK(of_kind(lines, "progress").empty());
  CHECK(lines.back()["kind"] == "result");
}

TEST_CASE("the choice of matrix libraries is kept with the run and for the next") {
  temporary_folder folder;
  write_whole(folder / "e.json", R"({"trainers": [{"name": "a", "stop_step": 20, "workload": {"type": "mlp", "hidden": [8], "batch": 32,
    "data": {"type": "synthetic", "train": 256, "test": 64}}}]})");
  CHECK(shell(folder.path(), "XDG_CACHE_HOME=$PWD/cache \"$0\" run e.json --device cpu --out out").status == 0);
  CHECK_FALSE(std::filesystem::is_empty(folder / "cache/troupe"));
  CHECK(json::parse(read_whole(folder / "out/products.json")).is_object());
  CHECK(shell(folder.path(), "XDG_CACHE_HOME=$PWD/cache \"$0\" run e.json --device cpu --out again").status == 0);
  CHECK(read_whole(folder / "again/products.json") == read_whole(folder / "out/products.json"));
  // A resumption reads it.
  write_whole(folder / "e.json", R"({"trainers": [{"name": "a", "stop_step": 1000000000, "workload": {"type": "mlp", "hidden": [8],
    "batch": 32, "data": {"type": "synthetic", "train": 256, "test": 64}}}]})");
  for (const std::string command : {"run e.json", "resume cut"}) {
    child cut{folder.path(), child::script{"exec \"$0\" " + command + (command == "run e.json" ? " --out cut" : "") + " --device cpu --json"}};
    REQUIRE(cut.read_until("\"started\"") != "");
    cut.signal(SIGINT);
    CHECK(cut.wait() == 1);
    CHECK(contains(cut.err(), "products.json") == (command == "resume cut"));
    write_whole(folder / "cut/products.json", "{");
  }
}

TEST_CASE("a command waits for a run that stands still as long as it was told to") {
  temporary_folder folder;
  write_whole(folder / "e.json", endless_experiment());
  child run{folder.path(), {"run", "e.json", "--slots", "1", "--device", "cpu", "--out", "out", "--json"}};
  REQUIRE(run.read_until("\"started\"") != "");
  run.signal(SIGSTOP);
  auto late = troupe(folder.path(), {"status", "out", "--timeout", "0.05"});
  CHECK(late.status == 1);
  CHECK(contains(late.err, "did not answer within 50 ms"));
  run.signal(SIGCONT);
  CHECK(troupe(folder.path(), {"stop", "out"}).status == 0);
  CHECK(run.wait() == 0);
}

TEST_CASE("a status comes though a worker stands still") {
  temporary_folder folder;
  write_whole(folder / "e.json", endless_experiment());
  child run{folder.path(), {"run", "e.json", "--workers", "1", "--slots", "1", "--device", "cpu", "--out", "out", "--json"}};
  REQUIRE(run.read_until("\"started\"") != "");
  const auto workers = children_of(json::parse(read_whole(folder / "out/control.json"))["pid"].get<int>());
  REQUIRE(workers.size() == 1);
  REQUIRE(::kill(workers[0], SIGSTOP) == 0);
  const auto status = troupe(folder.path(), {"status", "out", "--json"});
  CHECK(status.status == 0);
  const auto slots = json::parse(status.out)["slots"];
  REQUIRE(slots.size() == 1);
  CHECK(slots[0]["slot"] == "1/0");
  CHECK(slots[0]["answered"] == false);
  CHECK_FALSE(slots[0].contains("steps"));
}

TEST_CASE("each kind of JSON line has the members that are documented") {
  temporary_folder folder;
  write_whole(folder / "e.json", short_experiment());
  const auto has = [](const json& j, std::initializer_list<const char*> members) {
    for (auto* member : members) {
      INFO(member, " in ", j.dump().substr(0, 300));
      CHECK(j.contains(member));
    }
  };
  const auto lines = lines_of(troupe(folder.path(), {"run", "e.json", "--device", "cpu", "--slots", "1", "--json"}).out);
  const auto started = of_kind(lines, "started").at(0);
  has(started, {"experiment", "trainers", "slots"});
  has(started["trainers"][0], {"trainer", "name", "workload", "state", "step", "stop_step", "slot", "hyperparameters"});
  has(started["slots"][0], {"slot", "node", "device", "device_id", "model", "memory_budget"});
  const auto point = of_kind(lines, "sync_point").at(0);
  has(point, {"index", "step", "trainers"});
  has(point["trainers"][0], {"name", "step", "loss", "accuracy", "hyperparameters", "decision"});
  has(of_kind(lines, "trainer_started").at(0), {"trainer", "name", "incarnation", "step", "slot"});
  has(of_kind(lines, "trainer_finished").at(0), {"trainer", "name", "incarnation", "stopped", "metadata", "file"});
  const auto& result = lines.back();
  has(result, {"outcome", "directory", "seconds", "sync_points", "trainers", "barrier_wait_seconds", "barrier_bound_seconds", "record"});
  has(result["trainers"][0], {"state", "step", "metadata", "state_hash", "barrier_wait_seconds", "barrier_bound_seconds"});
  has(result["record"], {"unwritten", "unwritten_bytes", "most_unwritten", "held_back", "held_back_seconds"});

  write_whole(folder / "endless.json", endless_experiment());
  child run{folder.path(), {"run", "endless.json", "--slots", "1", "--device", "cpu", "--out", "out", "--json"}};
  json progress;
  for (bool reported = false; !reported;) { // the first may come before the first sync point
    const auto line = run.read_until("\"kind\":\"progress\"");
    REQUIRE(line != "");
    progress = json::parse(line);
    reported = progress["trainers"][0].contains("metadata") && progress["slots"][0].contains("busy_seconds");
  }
  has(progress, {"experiment", "trainers", "slots", "record", "seconds"});
  has(progress["slots"][0], {"trainers", "running", "waiting", "busy_seconds", "idle_seconds", "steps", "memory_used", "pages_out"});
  CHECK(troupe(folder.path(), {"stop", "out"}).status == 0);
  CHECK(run.wait() == 0);
}

TEST_CASE("a seed from the command line replaces the file's and is kept") {
  temporary_folder folder;
  write_whole(folder / "e.json", short_experiment());
  CHECK(troupe(folder.path(), {"run", "e.json", "--seed", "99", "--out", "out", "--quiet", "--device", "cpu"}).status == 0);
  CHECK(json::parse(read_whole(folder / "out/experiment.json"))["seed"] == 99);
}

TEST_CASE("a faulty experiment is wrong use and starts nothing") {
  temporary_folder folder;
  write_whole(folder / "e.json", R"({"trainers": 3})");
  auto run = troupe(folder.path(), {"run", "e.json", "--out", "out"});
  CHECK(run.status == 2);
  CHECK(contains(run.err, "/trainers: must be a list"));
  CHECK_FALSE(std::filesystem::exists(folder / "out"));
  auto as_json = lines_of(troupe(folder.path(), {"run", "e.json", "--out", "out", "--json"}).out);
  REQUIRE(as_json.size() == 1);
  CHECK(as_json[0]["kind"] == "result");
  CHECK(as_json[0]["outcome"] == "failed");
  CHECK(as_json[0]["faults"].size() == 1);
  auto device = troupe(folder.path(), {"run", TROUPE_SAMPLES "/three_networks/experiment.json", "--device", "cuda:77"});
  CHECK(device.status == 2);
  CHECK(contains(device.err, "--device: "));
}

TEST_CASE("a data set that is not there is a fault of the file beside its others") {
  temporary_folder folder;
  write_whole(folder / "e.json", R"({"trainers": [{"name": "a", "stop_step": 10, "hyperparameters": {"lr": -1},
    "workload": {"type": "mlp", "data": {"type": "fashion_mnist", "path": "/nowhere"}}}]})");
  auto run = troupe(folder.path(), {"run", "e.json", "--device", "cpu"});
  CHECK(run.status == 2);
  CHECK(contains(run.err, "'e.json' has faults"));
  CHECK(contains(run.err, "/trainers/0/workload/data: /nowhere/train-images-idx3-ubyte.gz is not there"));
  CHECK(contains(run.err, "/trainers/0/hyperparameters/lr: "));
}

TEST_CASE("a trainer that fails for good makes the run fail") {
  temporary_folder folder;
  write_whole(folder / "e.json", R"({
    "name": "bad", "failures": {"max_restarts": 0},
    "trainers": [{"name": "a", "workload": {"type": "mlp", "data": {"type": "synthetic", "train": 256, "test": 64}, "hidden": [8],
                  "batch": 32}, "hyperparameters": {"lr": 1e6}, "stop_step": 200},
                 {"name": "b", "workload": {"type": "idle"}, "stop_step": 10}]})");
  auto run = troupe(folder.path(), {"run", "e.json", "--out", "out", "--device", "cpu", "--json"});
  CHECK(run.status == 1);
  auto result = lines_of(run.out).back();
  CHECK(result["outcome"] == "failed");
  CHECK(result["trainers"][0]["state"] == "failed");
  CHECK_FALSE(result["trainers"][0]["failure"].get<std::string>().empty());
  CHECK(result["trainers"][1]["state"] == "finished");
  CHECK(contains(troupe(folder.path(), {"show", "out"}).out, "out failed"));
}

TEST_CASE("a run is steered from other processes") {
  temporary_folder folder;
  write_whole(folder / "e.json", endless_experiment());
  child run{folder.path(), {"run", "e.json", "--slots", "1", "--device", "cpu", "--out", "out", "--json"}};
  REQUIRE(run.read_until("\"started\"") != "");
  auto first = troupe(folder.path(), {"status", "out"});
  CHECK(contains(first.out, "endless: 2 trainers")); // from the first line on
  REQUIRE(run.read_until("\"sync_point\"") != "");
  auto steer = [&](std::vector<std::string> words) {
    words.insert(words.begin() + 1, "out");
    return troupe(folder.path(), words);
  };
  auto status = steer({"status"});
  CHECK(status.status == 0);
  CHECK(contains(status.out, "endless: 2 trainers"));
  CHECK(contains(status.out, "1 slot\n"));
  auto told = json::parse(steer({"status", "--json"}).out);
  CHECK(told["trainers"].size() == 2);
  REQUIRE(told["slots"].size() == 1);
  CHECK(told["slots"][0]["slot"] == "0/0");
  CHECK(told["slots"][0]["device"] == "cpu");
  CHECK(told["slots"][0]["trainers"] == 2);
  CHECK(told["slots"][0]["steps"] >= 50);

  auto paused = steer({"pause", "--trainer", "a"});
  CHECK(paused.status == 0);
  CHECK(contains(paused.out, "paused a at step "));
  auto state = json::parse(steer({"status", "--json"}).out)["trainers"][0]["state"];
  CHECK((state == "paused" || state == "parked")); // it may have been at a sync point already

  auto pushed = steer({"push", "--trainer", "a", "lr=0.5"});
  CHECK(pushed.status == 0);
  CHECK(contains(pushed.out, "changed a at step "));
  auto wrong = steer({"push", "lr=often"});
  CHECK(wrong.status == 2);
  CHECK(contains(wrong.err, "lr"));
  CHECK(steer({"push", "nothing"}).status == 2);
  CHECK(contains(steer({"pause", "--trainer", "nobody"}).err, "nobody"));

  CHECK(contains(steer({"resume", "--trainer", "nobody"}).err, "nobody"));
  auto one = steer({"resume", "--trainer", "a"});
  CHECK(one.status == 0);
  CHECK(contains(one.out, "a goes on at step "));
  CHECK_FALSE(contains(one.out, "b goes on"));
  auto resumed = steer({"resume"});
  CHECK(resumed.status == 0);
  CHECK(contains(resumed.out, "b goes on at step "));

  auto added = steer({"add", R"({"name": "c", "stop_step": 100})"});
  CHECK(added.status == 0);
  CHECK(contains(added.out, "added as trainer 2"));
  CHECK(steer({"add", R"({"name": "a"})"}).status == 2);

  CHECK(contains(steer({"stop", "--trainer", "b"}).out, "stopped b at step "));
  CHECK(steer({"stop"}).status == 0);
  CHECK(run.wait() == 0);
  auto result = lines_of(run.out()).back();
  CHECK(result["outcome"] == "done");
  CHECK(result["trainers"][0]["state"] == "stopped");
  CHECK(result["trainers"][0]["hyperparameters"]["lr"] == 0.5);

  auto over = steer({"resume", "--trainer", "a"});
  CHECK(over.status == 2);
  CHECK(contains(over.err, "is not going on"));
  auto late = steer({"pause"});
  CHECK(late.status == 1);
  CHECK(late.err != "");
  CHECK(troupe(folder.path(), {"status", "nowhere"}).status == 2);
}

TEST_CASE("an interrupted run saves and says how to go on and ends as if it had not been") {
  temporary_folder folder;
  write_whole(folder / "e.json", short_experiment());
  auto whole = troupe(folder.path(), {"run", "e.json", "--slots", "2", "--device", "cpu", "--out", "whole", "--json"});
  REQUIRE(whole.status == 0);

  auto run = cut_by(SIGINT, folder);
  REQUIRE(run.told != "");
  REQUIRE(run.status == 1);
  CHECK(contains(run.err, "again to leave at once"));
  auto cut = lines_of(run.out).back();
  CHECK(cut["outcome"] == "interrupted");
  CHECK(contains(troupe(folder.path(), {"show", "cut"}).out, "go on with `troupe resume`"));
  CHECK(json::parse(troupe(folder.path(), {"show", "cut", "--json"}).out)["outcome"] == "interrupted");

  auto rest = troupe(folder.path(), {"resume", "cut", "--slots", "1", "--device", "cpu", "--json"});
  CHECK(rest.status == 0);
  auto first = lines_of(whole.out).back(), second = lines_of(rest.out).back();
  REQUIRE(second["outcome"] == "done");
  for (std::size_t t = 0; t < 3; ++t) {
    CHECK(second["trainers"][t]["step"] == 300);
    CHECK(second["trainers"][t]["state_hash"] == first["trainers"][t]["state_hash"]);
  }
}

TEST_CASE("a killed run has every decision it told of on record and goes on to the same weights") {
  temporary_folder folder;
  write_whole(folder / "e.json", short_experiment());
  auto whole = troupe(folder.path(), {"run", "e.json", "--slots", "2", "--device", "cpu", "--out", "whole", "--json"});
  REQUIRE(whole.status == 0);

  auto run = cut_by(SIGKILL, folder);
  REQUIRE(run.told != "");
  REQUIRE(run.status == 128 + SIGKILL);
  auto on_record = of_kind(lines_of(read_whole(folder / "cut/run.jsonl")), "sync_point");
  REQUIRE(!on_record.empty());
  CHECK(on_record[0]["trainers"] == json::parse(run.told)["trainers"]);

  auto rest = troupe(folder.path(), {"resume", "cut", "--slots", "2", "--device", "cpu", "--json"});
  CHECK(rest.status == 0);
  auto first = lines_of(whole.out).back(), second = lines_of(rest.out).back();
  for (std::size_t t = 0; t < 3; ++t)
    CHECK(second["trainers"][t]["state_hash"] == first["trainers"][t]["state_hash"]);
}

TEST_CASE("a second Ctrl-C leaves at once") {
  temporary_folder folder;
  auto text = endless_experiment();
  auto step = text.find("\"step_us\": 100") + 11;
  text.replace(step, 3, "20000000"); // a step of 20 s: nothing else could end it in time
  write_whole(folder / "e.json", text);
  child run{folder.path(), {"run", "e.json", "--slots", "1", "--device", "cpu", "--out", "out", "--json"}};
  REQUIRE(run.read_until("\"started\"") != "");
  for (bool steps = false; !steps;) { // before its first step it could end before the second signal comes
    auto slots = json::parse(troupe(folder.path(), {"status", "out", "--json"}).out).at("slots");
    steps = slots.at(0).value("running", 0) > 0;
  }
  CHECK(run.signal_until_over(SIGINT) == 130);
}

TEST_CASE("a run is reached after a log-out has cleared its socket and says so when it is busy") {
  temporary_folder folder;
  write_whole(folder / "e.json", endless_experiment());
  std::filesystem::create_directory(folder / "user");
  std::filesystem::permissions(folder / "user", std::filesystem::perms::owner_all);
  const char* const before = std::getenv("XDG_RUNTIME_DIR");
  const std::string kept = before ? before : "";
  ::setenv("XDG_RUNTIME_DIR", (folder / "user").c_str(), 1);
  child run{folder.path(), {"run", "e.json", "--slots", "1", "--device", "cpu", "--out", "out", "--json"}};
  before ? ::setenv("XDG_RUNTIME_DIR", kept.c_str(), 1) : ::unsetenv("XDG_RUNTIME_DIR");
  REQUIRE(run.read_until("\"started\"") != "");
  REQUIRE_FALSE(std::filesystem::is_empty(folder / "user"));

  std::filesystem::remove_all(folder / "user");
  auto status = troupe(folder.path(), {"status", "out"});
  if (status.status != 0)
    CHECK(contains(status.err, "is going on, but process " + std::to_string(run.pid()) + " cannot be reached"));
  while (status.status != 0 && run.read_line() != "")
    status = troupe(folder.path(), {"status", "out"});
  CHECK(contains(status.out, "endless: 2 trainers"));

  const std::string path = json::parse(read_whole(folder / "out/control.json"))["socket"];
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  std::vector<int> silent;
  for (int i = 0; i < 32; ++i) {
    silent.push_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(silent.back(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  }
  status = troupe(folder.path(), {"status", "out"});
  CHECK(status.status == 1);
  CHECK(status.err == "troupe: busy: 32 other commands are with this run at the moment; try again\n");
  CHECK(json::parse(troupe(folder.path(), {"status", "out", "--json"}).out)["error"].get<std::string>().starts_with("busy: "));
  for (const int s : silent)
    ::close(s);
  while (troupe(folder.path(), {"stop", "out"}).status != 0)
    run.read_line();
  CHECK(run.wait() == 0);
}
