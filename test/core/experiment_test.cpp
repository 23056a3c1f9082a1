#include "troupe/core/experiment.hpp"

#include <doctest/doctest.h>

#include <algorithm>

#include <nlohmann/json.hpp>

using namespace troupe::core;

namespace {

/// Knows "mlp" and "cnn"; an mlp's only option is "hidden", a positive number, and its lr must be positive.
experiment_checkers checkers() {
  experiment_checkers with;
  with.known_workload = [](std::string_view type) { return type == "mlp" || type == "cnn"; };
  with.workload_names = [] { return std::vector<std::string>{"mlp", "cnn"}; };
  with.check_workload = [](std::string_view, const nlohmann::json& options, const hyperparameters& hp, std::string_view where,
                           std::vector<error>& faults) {
    for (auto& [key, x] : options.items())
      if (key != "hidden" || !x.is_number_unsigned())
        faults.push_back({errc::invalid_argument, std::string{where} + "/workload/" + key + ": is wrong"});
    if (auto lr = hp.number("lr", 1); !lr || *lr <= 0)
      faults.push_back({errc::invalid_argument, std::string{where} + "/hyperparameters/lr: must be positive"});
  };
  return with;
}

experiment parsed(std::string_view text) {
  auto x = parse_experiment(text, checkers());
  if (auto* faults = std::get_if<std::vector<error>>(&x))
    for (auto& e : *faults)
      FAIL_CHECK(e.text);
  return std::get<experiment>(x);
}

std::vector<std::string> faults_of(std::string_view text, const experiment_checkers& with = checkers()) {
  auto x = parse_experiment(text, with);
  std::vector<std::string> out;
  if (auto* faults = std::get_if<std::vector<error>>(&x))
    for (auto& e : *faults) {
      CHECK(e.code == errc::invalid_argument);
      out.push_back(e.text);
    }
  return out;
}

using texts = std::vector<std::string>;

/// An experiment of one good trainer and these further members.
std::string with_members(std::string_view members) {
  return R"({"trainers": [{"name": "a", "workload": {"type": "mlp"}, "stop_step": 10}], )" + std::string{members} + "}";
}
/// The faults of one trainer with these members beside the needed ones.
texts trainer_faults(std::string_view members) {
  return faults_of(R"({"trainers": [{"workload": {"type": "mlp"}, "stop_step": 10, )" + std::string{members} + "}]}");
}

} // namespace

TEST_CASE("the smallest experiment has documented defaults") {
  auto x = parsed(R"({"trainers": [{"workload": {"type": "mlp"}, "stop_step": 10}]})");
  CHECK(x.name == "experiment");
  CHECK(x.seed == 1);
  REQUIRE(x.trainers.size() == 1);
  CHECK(x.trainers[0].name == "trainer");
  CHECK(x.trainers[0].workload_type == "mlp");
  CHECK(x.trainers[0].workload_options == "{}");
  CHECK(x.trainers[0].stop_step == 10);
  CHECK(x.trainers[0].seed == derive_seed(1, "trainer/trainer"));
  CHECK(x.trainers[0].slot == "");
  CHECK(x.sync.schedule.every_steps == 0);
  CHECK(x.sync.quorum == 1);
  CHECK(x.sync.stragglers == straggler_treatment::wait);
  CHECK(x.policy_type == "none");
  CHECK(x.checkpoints.every_syncs == 1);
  CHECK(x.checkpoints.keep == 2);
  CHECK(x.record.max_unwritten == 4096);
  CHECK(x.record.max_unwritten_bytes == 16'777'216);
  CHECK(x.failures.max_restarts == 2);
  CHECK(x.slots.empty());
  CHECK(x.quantum_ms == 2);
  CHECK(x.fusion);
  CHECK(x.rebalance);
  CHECK(x.math == "fp32");
}

TEST_CASE("every key of an experiment is read") {
  auto x = parsed(R"({
    // comments are allowed
    "name": "all", "seed": 18446744073709551615,
    "trainers": [{"name": "a", "workload": {"type": "mlp", "hidden": 64}, "hyperparameters": {"lr": 0.1, "opt": "adam"},
                  "seed": 5, "stop_step": 1e3, "slot": 2},
                 {"name": "b", "workload": {"type": "cnn"}, "stop_step": 7, "slot": "cuda:0"}], /* so too */
    "sync": {"every_steps": 100, "at_steps": [5, 50], "quorum": 0.5, "deadline_seconds": 2.5, "stragglers": "stop"},
    "search_space": {"lr": {"type": "log_uniform", "low": 0.001, "high": 1}},
    "checkpoints": {"every_syncs": 0, "keep": 3},
    "record": {"max_unwritten": 5, "max_unwritten_bytes": 600},
    "failures": {"max_restarts": 0, "fail_fast": true, "refill": true},
    "slots": [{"device": "cuda", "count": 2, "milli_share": 500, "memory_bytes": 1000000, "pinned_bytes": 7,
               "capture": false}, {}],
    "quantum_ms": 0.5, "fusion": false, "rebalance": false, "math": "tf32"})");
  CHECK(x.name == "all");
  CHECK(x.seed == UINT64_MAX);
  CHECK(x.trainers[0].workload_options == R"({"hidden":64})");
  CHECK(x.trainers[0].hp == hyperparameters{{"lr", 0.1}, {"opt", "adam"}});
  CHECK(x.trainers[0].seed == 5);
  CHECK(x.trainers[0].stop_step == 1000);
  CHECK(x.trainers[0].slot == "2");
  CHECK(x.trainers[1].slot == "cuda:0");
  CHECK(x.sync.schedule.every_steps == 100);
  CHECK(x.sync.schedule.at_steps == std::vector<std::uint64_t>{5, 50});
  CHECK(x.sync.quorum == 0.5);
  CHECK(x.sync.deadline_seconds == 2.5);
  CHECK(x.sync.stragglers == straggler_treatment::stop);
  CHECK(x.space.domains().size() == 1);
  CHECK(x.checkpoints.every_syncs == 0);
  CHECK(x.checkpoints.keep == 3);
  CHECK(x.record.max_unwritten == 5);
  CHECK(x.record.max_unwritten_bytes == 600);
  CHECK(x.failures.max_restarts == 0);
  CHECK(x.failures.fail_fast);
  CHECK(x.failures.refill);
  REQUIRE(x.slots.size() == 2);
  CHECK(x.slots[0].device == "cuda");
  CHECK(x.slots[0].milli_share == 500);
  CHECK(x.slots[0].memory_bytes == 1'000'000);
  CHECK(x.slots[0].pinned_bytes == 7);
  CHECK_FALSE(x.slots[0].capture);
  CHECK(x.slots[1].device == "cpu");
  CHECK(x.slots[1].count == 1);
  CHECK(x.slots[1].capture);
  CHECK(x.quantum_ms == 0.5);
  CHECK_FALSE(x.fusion);
  CHECK_FALSE(x.rebalance);
  CHECK(x.math == "tf32");
}

TEST_CASE("sync points by the clock and asynchronous ones are read") {
  auto x = parsed(with_members(R"("sync": {"every_seconds": 30, "asynchronous": true})"));
  CHECK(x.sync.schedule.every_seconds == 30);
  CHECK(x.sync.asynchronous);
}

TEST_CASE("defaults lie under each trainer") {
  auto x = parsed(R"({
    "defaults": {"workload": {"type": "mlp", "hidden": 8}, "hyperparameters": {"lr": 0.5, "momentum": 0.9}, "stop_step": 20},
    "trainers": [{"name": "a"}, {"name": "b", "workload": {"hidden": 16}, "hyperparameters": {"lr": 0.1}, "stop_step": 5},
                 {"name": "c", "workload": {"type": "cnn"}}]})");
  CHECK(x.trainers[0].workload_type == "mlp");
  CHECK(x.trainers[0].workload_options == R"({"hidden":8})");
  CHECK(x.trainers[0].stop_step == 20);
  CHECK(x.trainers[1].workload_options == R"({"hidden":16})");
  CHECK(x.trainers[1].hp == hyperparameters{{"lr", 0.1}, {"momentum", 0.9}});
  CHECK(x.trainers[1].stop_step == 5);
  CHECK(x.trainers[2].workload_type == "cnn");
  CHECK(x.trainers[2].workload_options == "{}"); // options of another type of workload
}

TEST_CASE("a count stands for that many trainers with names and seeds of their own") {
  auto x = parsed(R"({"trainers": [{"name": "m", "count": 3, "workload": {"type": "mlp"}, "stop_step": 10, "seed": 7},
                                   {"name": "n", "count": 1, "workload": {"type": "mlp"}, "stop_step": 10}]})");
  REQUIRE(x.trainers.size() == 4);
  CHECK(x.trainers[0].name == "m-0");
  CHECK(x.trainers[2].name == "m-2");
  CHECK(x.trainers[2].seed == 9);
  CHECK(x.trainers[3].name == "n-0");
  CHECK(x.trainers[3].seed != x.trainers[0].seed);
}

TEST_CASE("hyperparameters of the search space are drawn where a trainer gives none") {
  auto text = [](int seed) {
    return R"({"seed": )" + std::to_string(seed) + R"(,
      "search_space": {"lr": {"type": "log_uniform", "low": 0.001, "high": 1}, "width": {"type": "integer", "low": 1, "high": 9}},
      "trainers": [{"name": "m", "count": 20, "workload": {"type": "mlp"}, "stop_step": 10, "hyperparameters": {"width": 3}}]})";
  };
  auto x = parsed(text(1));
  CHECK(*x.trainers[4].hp.find("width") == value{std::int64_t{3}});
  auto lr = [](const experiment& e, std::size_t i) { return *e.trainers[i].hp.number("lr", -1); };
  CHECK(lr(x, 0) >= 0.001);
  CHECK(lr(x, 0) <= 1);
  CHECK(lr(x, 0) != lr(x, 1));
  CHECK(lr(x, 7) == lr(parsed(text(1)), 7));
  CHECK(lr(x, 7) != lr(parsed(text(2)), 7));
}

TEST_CASE("a slot is a whole number in any form or a text that is not empty") {
  for (auto slot : {"2", "2.0", "2e0", "\"2\""}) {
    auto x = parsed(R"({"trainers": [{"workload": {"type": "mlp"}, "stop_step": 10, "slot": )" + std::string{slot} + "}]}");
    CHECK(x.trainers[0].slot == "2");
  }
  CHECK(trainer_faults(R"("slot": "")") == texts{"/trainers/0/slot: must not be empty: without it any slot will do"});
  for (auto slot : {"-1", "1.5", "4294967296", "1e300"})
    CHECK(trainer_faults("\"slot\": " + std::string{slot})[0].starts_with("/trainers/0/slot: must be a whole number from 0"));
  CHECK(trainer_faults(R"("slot": [1])")[0].starts_with("/trainers/0/slot: must be a slot's number or a device"));
}

TEST_CASE("trainers know their entry in the file") {
  auto x = parsed(R"({"trainers": [{"name": "a", "workload": {"type": "mlp"}, "stop_step": 10},
                                   {"name": "b", "count": 2, "workload": {"type": "mlp"}, "stop_step": 10}]})");
  CHECK(x.trainers[0].where == "/trainers/0");
  CHECK(x.trainers[1].where == "/trainers/1");
  CHECK(x.trainers[2].where == "/trainers/1");
}

TEST_CASE("what keeps a text from being read is told apart from what it says") {
  CHECK(document_faults("{\"trainers\": 3} // wrong, but readable").empty());
  CHECK(document_faults("{").at(0).text.starts_with("line 1, column "));
  CHECK(document_faults(R"({"a": 1, "a": 2})").at(0).text == "/a: is given twice");
}

TEST_CASE("what is no JSON is one fault with line and column") {
  auto x = faults_of("{\n  \"name\": \"a\",\n  \"seed\": ,\n}");
  REQUIRE(x.size() == 1);
  CHECK(x[0].starts_with("line 3, column 11: "));
  CHECK(faults_of("")[0].starts_with("line 1, column 1: "));
  CHECK(faults_of("{\"seed\": 1e999}")[0].starts_with("line 1, column 1"));
  CHECK(faults_of("{} {}")[0].starts_with("line 1, column 4: "));
  CHECK(faults_of(std::string_view{"{}\0", 3})[0].find("zero") != std::string::npos);
  CHECK(faults_of(std::string(100'000, '['))[0].find("64 levels") != std::string::npos);
  CHECK(faults_of("[1]") == texts{"must be an object, but is a list"});
}

TEST_CASE("a key given twice is a fault with its place") {
  CHECK(faults_of(R"({"seed": 1, "trainers": [{}, {"name": "a", "name": "b"}], "seed": 2})") ==
        texts{"/trainers/1/name: is given twice", "/seed: is given twice"});
}

TEST_CASE("all faults of a file are reported together with their places") {
  auto x = faults_of(R"({
    "nam": "x", "seed": -1, "quantum_ms": 0, "math": "fp64", "slots": {},
    "defaults": {"stop_step": 0, "lr": 1},
    "sync": {"every_steps": 0, "at_steps": [1, 1, "x"], "stragglers": "go_on", "asynchronous": 1},
    "checkpoints": {"keep": 0}, "failures": {"max_restarts": 1.5},
    "trainers": [{"name": "a/b", "workload": {"type": "mlpp"}, "hyperparameters": {"lr": [1]}, "stop_step": 5, "slot": -1},
                 {"workload": 3, "stop_step": "x"}, 7]})");
  std::ranges::sort(x);
  CHECK(x == texts{
                 "/checkpoints/keep: must be a whole number from 1 to 1000000, but is 0",
                 "/defaults/lr: is no known key; known are workload, hyperparameters, stop_step, stop",
                 "/defaults/stop_step: must be a whole number from 1 to 9007199254740992, but is 0",
                 "/failures/max_restarts: must be a whole number from 0 to 1000000, but is 1.5",
                 "/math: 'fp64' is no known mode; known are fp32, tf32",
                 "/nam: is no known key; did you mean 'name'?",
                 "/quantum_ms: must be a number above 0 up to 10000, but is 0",
                 "/seed: must be a whole number of at least 0, but is -1",
                 "/slots: must be a list, but is an object",
                 "/sync/asynchronous: must be true or false, but is a number",
                 "/sync/at_steps/1: 1 does not come after 1",
                 "/sync/at_steps/2: must be a whole number from 1 to 9007199254740992, but is a text",
                 "/sync/every_steps: must be a whole number from 1 to 9007199254740992, but is 0",
                 "/sync/stragglers: 'go_on' is no known treatment; known are wait, go_on_without, stop",
                 "/trainers/0/hyperparameters/lr: must be null, a boolean, a number or a string, but is an array",
                 "/trainers/0/name: must not contain '/', '\\' or control characters",
                 "/trainers/0/slot: must be a whole number from 0 to 4294967295, but is -1",
                 "/trainers/0/workload/type: 'mlpp' is no known workload; did you mean 'mlp'?",
                 "/trainers/1/stop_step: must be a whole number from 1 to 9007199254740992, but is a text",
                 "/trainers/1/workload/type: is missing; known are mlp, cnn",
                 "/trainers/1/workload: must be an object such as {\"type\": \"mlp\"}, but is a number",
                 "/trainers/2: must be an object, but is a number",
             });
}

TEST_CASE("an experiment without trainers is refused") {
  CHECK(faults_of("{}") == texts{"/trainers: is missing: an experiment needs at least one trainer"});
  CHECK(faults_of(R"({"trainers": []})") == texts{"/trainers: must be a list of at least one trainer"});
}

TEST_CASE("a trainer without a stop step is refused") {
  CHECK(faults_of(R"({"trainers": [{"workload": {"type": "mlp"}}]})") ==
        texts{"/trainers/0/stop_step: is missing: give it here or in /defaults/stop_step"});
}

TEST_CASE("names that cannot be file names are refused") {
  auto fault = [](std::string name) { return trainer_faults("\"name\": \"" + name + "\""); };
  CHECK(fault("fine name-1.b_c").empty());
  CHECK(fault("") == texts{"/trainers/0/name: must not be empty"});
  CHECK(fault("..") == texts{"/trainers/0/name: '..' must not begin with '.' or '-'"});
  CHECK(fault("-x").size() == 1);
  CHECK(fault("a\\nb").size() == 1);
  CHECK(fault("a\\\\b").size() == 1);
  CHECK(fault(std::string(64, 'x')).empty());
  CHECK(fault(std::string(65, 'x')).size() == 1);
  CHECK(trainer_faults("\"count\": 1000, \"name\": \"" + std::string(61, 'x') + "\"").size() == 1);
  CHECK(faults_of(with_members(R"("name": "a/b")")).size() == 1);
}

TEST_CASE("two trainers of one name are refused with both places") {
  CHECK(faults_of(R"({"defaults": {"workload": {"type": "mlp"}, "stop_step": 5},
                      "trainers": [{"name": "a-1"}, {"name": "b"}, {"name": "a", "count": 3}]})") ==
        texts{"/trainers/2/name: 'a-1' is also the name of /trainers/0"});
}

TEST_CASE("more than a million trainers are refused") {
  CHECK(trainer_faults(R"("count": 1000001)").size() == 1);
  CHECK(faults_of(R"({"defaults": {"workload": {"type": "mlp"}, "stop_step": 5},
                      "trainers": [{"name": "a"}, {"name": "b", "count": 1000000}]})") ==
        texts{"/trainers/1: makes more than 1,000,000 trainers"});
}

TEST_CASE("a workload's faults point at the trainer or at the default they come from") {
  CHECK(faults_of(R"({"defaults": {"workload": {"type": "mlp", "hiden": 3}, "hyperparameters": {"lr": 0}, "stop_step": 5},
                      "trainers": [{"name": "a"}, {"name": "b", "workload": {"hidden": "x"}}]})") ==
        texts{"/defaults/workload/hiden: is wrong", "/defaults/hyperparameters/lr: must be positive",
              "/trainers/1/workload/hidden: is wrong"});
}

TEST_CASE("a workload's faults are told beside others of its trainer") {
  const auto faults = faults_of(R"({"trainers": [
    {"name": "a/b", "workload": {"type": "mlp", "hidden": "wide"}, "hyperparameters": {"lr": -1}, "stop_step": "many", "sloot": 1}]})");
  for (const auto* place : {"/trainers/0/name: ", "/trainers/0/stop_step: ", "/trainers/0/sloot: ", "/trainers/0/workload/hidden: ",
                            "/trainers/0/hyperparameters/lr: "}) {
    CAPTURE(place);
    CHECK(std::any_of(faults.begin(), faults.end(), [&](const std::string& x) { return x.starts_with(place); }));
  }
  CHECK(faults.size() == 5);
}

TEST_CASE("drawn hyperparameters are checked by the workload too") {
  CHECK(faults_of(R"({"search_space": {"lr": {"type": "uniform", "low": -2, "high": -1}},
                      "trainers": [{"name": "m", "count": 5, "workload": {"type": "mlp"}, "stop_step": 10}]})") ==
        texts{"/trainers/0/hyperparameters/lr: must be positive"});
}

TEST_CASE("fault 18: bounds of a search space are checked before anything starts") {
  auto fault = [](std::string domain) { return faults_of(with_members(R"("search_space": {"lr": )" + domain + "}")); };
  CHECK(fault(R"({"type": "uniform", "low": 0, "high": 1})").empty());
  for (auto domain : {R"({"type": "uniform", "low": 1, "high": 0})", R"({"type": "uniform", "low": "nan", "high": 1})",
                      R"({"type": "log_uniform", "low": 0, "high": 1})", R"({"type": "choice", "values": []})",
                      R"({"type": "integer", "low": 2, "high": 1})", R"({"type": "gaussian"})", "3"}) {
    auto x = fault(domain);
    REQUIRE_FALSE(x.empty());
    CHECK(x[0].starts_with("/search_space/lr"));
  }
}

TEST_CASE("a given hyperparameter outside the search space is refused") {
  auto x = faults_of(R"({"search_space": {"lr": {"type": "uniform", "low": 0, "high": 1}},
                         "trainers": [{"workload": {"type": "mlp"}, "stop_step": 10, "hyperparameters": {"lr": 3}}]})");
  REQUIRE(x.size() == 1);
  CHECK(x[0].starts_with("/trainers/0/hyperparameters/lr"));
}

TEST_CASE("sync options that contradict each other are refused") {
  auto faults = [](std::string sync) { return faults_of(with_members("\"sync\": {" + sync + "}")).size(); };
  CHECK(faults(R"("every_steps": 5, "every_seconds": 5)") == 1);
  CHECK(faults(R"("every_steps": 5, "stragglers": "stop")") == 1);
  CHECK(faults(R"("every_steps": 5, "stragglers": "stop", "deadline_seconds": 1)") == 0);
  CHECK(faults(R"("every_steps": 5, "stragglers": "go_on_without", "quorum": 0.5)") == 0);
  CHECK(faults(R"("every_steps": 5, "asynchronous": true, "quorum": 0.5)") == 1);
  CHECK(faults(R"("quorum": 0)") == 1);
  CHECK(faults(R"("quorum": 1.1)") == 1);
  CHECK(faults(R"("deadline_seconds": -1)") == 1);
}

TEST_CASE("whether a slot captures its steps is true or false and nothing else") {
  CHECK(faults_of(with_members(R"("slots": [{"device": "cuda", "capture": "never"}])")) ==
        texts{"/slots/0/capture: must be true or false, but is a text"});
  CHECK(faults_of(with_members(R"("slots": [{"device": "cuda", "captures": false}])")).size() == 1);
}

TEST_CASE("slots cannot take more than the whole device") {
  CHECK(faults_of(with_members(R"("slots": [{"device": "cuda:0", "count": 3, "milli_share": 300},
                                            {"device": "cuda:0", "milli_share": 200}])")) ==
        texts{"/slots/1/milli_share: makes the slots of 'cuda:0' take 1100 thousandths of the device; it has 1000"});
}

TEST_CASE("a policy is checked by its registry") {
  auto with = checkers();
  auto policies = builtin_policies();
  with.policies = &policies;
  auto faults = [&](std::string policy, std::string sync = R"("sync": {"every_steps": 5}, )") {
    return faults_of(with_members(sync + "\"policy\": " + policy), with);
  };
  CHECK(faults(R"({"type": "none"})", "").empty());
  CHECK(faults(R"({"type": "average"})").empty());
  auto x = faults(R"({"type": "avrage"})");
  CHECK(x == texts{"/policy/type: 'avrage' is no known policy; did you mean 'average'?"});
  CHECK(faults(R"({})")[0].starts_with("/policy/type: is missing"));
  CHECK(faults("7")[0].starts_with("/policy: must be an object"));
  CHECK(faults(R"({"type": "average"})", "")[0].find("decides at sync points") != std::string::npos);
  x = faults(R"({"type": "pbt", "metrik": "loss"})");
  REQUIRE_FALSE(x.empty());
  CHECK(x[0].starts_with("/policy"));
}

TEST_CASE("one more trainer is read by the rules of the experiment") {
  auto x = parsed(R"({"defaults": {"workload": {"type": "mlp", "hidden": 8}, "stop_step": 20},
                      "search_space": {"lr": {"type": "uniform", "low": 0.1, "high": 1}}, "trainers": [{"name": "a"}]})");
  auto t = parse_trainer(R"({"name": "b"})", x, checkers());
  REQUIRE(std::holds_alternative<trainer_spec>(t));
  auto& b = std::get<trainer_spec>(t);
  CHECK(b.name == "b");
  CHECK(b.workload_options == R"({"hidden":8})");
  CHECK(b.stop_step == 20);
  CHECK(*b.hp.number("lr", -1) != *x.trainers[0].hp.number("lr", -1));
  auto faults = [&](std::string_view text) {
    auto y = parse_trainer(text, x, checkers());
    return std::get<std::vector<error>>(y).front().text;
  };
  CHECK(faults(R"({"name": "a"})") == "/name: 'a' is also the name of trainer 0");
  CHECK(faults(R"({"name": "c", "count": 2})").starts_with("/count: is no known key"));
  CHECK(faults(R"({"name": "c", "workload": {"hidden": "x"}})") == "/workload/hidden: is wrong");
  CHECK(faults("{").starts_with("line 1"));
}

TEST_CASE("an experiment written out parses to the same experiment") {
  auto x = parsed(R"({"name": "all", "seed": 3,
    "trainers": [{"name": "a", "count": 2, "workload": {"type": "mlp", "hidden": 64}, "hyperparameters": {"opt": "adam"},
                  "stop_step": 10, "slot": 2}],
    "sync": {"at_steps": [5, 50], "quorum": 0.5, "stragglers": "stop"},
    "search_space": {"lr": {"type": "log_uniform", "low": 0.001, "high": 1},
                     "n": {"type": "integer", "low": 1, "high": 4, "log": true},
                     "q": {"type": "uniform", "low": 0, "high": 1, "quantum": 0.25},
                     "c": {"type": "choice", "values": [null, "x", 3, 0.5], "ordered": true}},
    "slots": [{"device": "cuda", "count": 2, "milli_share": 500}, {"capture": false}]})");
  auto text = experiment_text(x);
  auto y = parsed(text);
  REQUIRE(y.slots.size() == 2);
  CHECK(y.slots[0].capture);
  CHECK_FALSE(y.slots[1].capture);
  CHECK(experiment_text(y) == text);
  CHECK(y.trainers[1].hp == x.trainers[1].hp);
  CHECK(y.trainers[1].seed == x.trainers[1].seed);
}
