#include "arguments.hpp"

#include <doctest/doctest.h>

#include <sstream>

#include <nlohmann/json.hpp>

using namespace troupe::cli;

namespace {

struct outcome {
  parsed_arguments parsed;
  std::string out, err;
};

outcome parse(std::vector<const char*> words) {
  words.insert(words.begin(), "troupe");
  std::ostringstream out, err;
  auto parsed = parse_arguments(static_cast<int>(words.size()), words.data(), out, err);
  return {std::move(parsed), out.str(), err.str()};
}

template <class T>
T read_as(std::vector<const char*> words) {
  auto x = parse(std::move(words));
  CHECK(x.err == "");
  REQUIRE(x.parsed.what);
  return std::get<T>(*x.parsed.what);
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

} // namespace

TEST_CASE("run takes an experiment and where it runs") {
  auto a = read_as<run_arguments>({"run", "e.json", "--slots", "4", "--device", "cuda:0,cuda:1", "--device", "cpu", "--out", "d",
                                   "--workers", "2", "--json", "--seed", "18446744073709551615", "-q"});
  CHECK(a.experiment == "e.json");
  CHECK(a.session.slots == 4);
  CHECK(a.session.devices == std::vector<std::string>{"cuda:0", "cuda:1", "cpu"});
  CHECK(a.out == "d");
  CHECK(a.session.workers == 2);
  CHECK(a.session.json);
  CHECK(a.session.quiet);
  CHECK(a.seed == UINT64_MAX);
  auto last = read_as<run_arguments>({"run", "--device", "cpu", "e.json"});
  CHECK(last.experiment == "e.json");
  CHECK(last.session.devices == std::vector<std::string>{"cpu"});
  auto plain = read_as<run_arguments>({"run", "e.json"});
  CHECK_FALSE(plain.session.slots);
  CHECK_FALSE(plain.seed);
}

TEST_CASE("control commands take a run and a trainer") {
  auto push = read_as<control_arguments>({"push", "runs/a", "--trainer", "fast", "lr=0.1", "n=3"});
  CHECK(push.what == control_arguments::verb::push);
  CHECK(push.run == "runs/a");
  CHECK(push.trainer == "fast");
  CHECK(push.assignments == std::vector<std::string>{"lr=0.1", "n=3"});
  CHECK(read_as<control_arguments>({"pause", "r"}).what == control_arguments::verb::pause);
  CHECK(read_as<control_arguments>({"stop", "r"}).what == control_arguments::verb::stop);
  CHECK(read_as<control_arguments>({"status", "r", "--json"}).json);
  CHECK(read_as<control_arguments>({"add", "r", "{}"}).entry == "{}");
  CHECK(read_as<resume_arguments>({"resume", "r", "--slots", "2"}).session.slots == 2);
  CHECK(read_as<resume_arguments>({"resume", "r"}).trainer == "");
  CHECK(read_as<resume_arguments>({"resume", "r", "-t", "fast"}).trainer == "fast");
  CHECK(read_as<show_arguments>({"show", "r"}).run == "r");
  CHECK(read_as<check_arguments>({"check", "e.json"}).experiment == "e.json");
  CHECK(read_as<doctor_arguments>({"doctor", "--json"}).json);
}

TEST_CASE("wrong use says what is wrong and ends with status 2") {
  auto nothing = parse({});
  CHECK(nothing.parsed.status == 2);
  CHECK(contains(nothing.err, "Examples:"));
  for (auto& words : std::vector<std::vector<const char*>>{{"run"},
                                                           {"run", "e.json", "--slots", "0"},
                                                           {"run", "e.json", "--slots", "many"},
                                                           {"run", "e.json", "--no-such-option"},
                                                           {"run", "e.json", "--seed", "-1"},
                                                           {"push", "r"},
                                                           {"check", "a", "b"}}) {
    auto x = parse(words);
    CHECK_FALSE(x.parsed.what);
    CHECK(x.parsed.status == 2);
    CHECK(x.err.starts_with("troupe: "));
    CHECK(x.out == "");
  }
  CHECK(contains(parse({"rnu", "e.json"}).err, "'rnu' is no command; did you mean 'run'?"));
}

TEST_CASE("numbers that an option cannot hold are refused instead of bent") {
  const auto refused = [](std::vector<const char*> words) {
    auto x = parse(words);
    CHECK_FALSE(x.parsed.what);
    CHECK(x.parsed.status == 2);
    return x.err;
  };
  CHECK(contains(refused({"run", "e", "--seed", "99999999999999999999"}),
                 "--seed: must be a whole number from 0 to 18446744073709551615, but is '99999999999999999999'"));
  for (auto* number : {"18446744073709551616", "-1", "+1", "0x10", "1e3", "1.0", " 1", "1 ", "", "nan"})
    CHECK(contains(refused({"run", "e", "--seed", number}), "--seed: must be a whole number"));
  for (auto* number : {"0", "4097", "4294967297", "18446744073709551617", "", "-4", "1.5"})
    CHECK(contains(refused({"run", "e", "--slots", number}), "--slots: must be a whole number from 1 to 4096"));
  for (auto* number : {"1025", "4294967296", "", "-1"})
    CHECK(contains(refused({"run", "e", "--workers", number}), "--workers: must be a whole number from 0 to 1024"));
  for (auto* number : {"0", "-1", "nan", "inf", "-nan", "1e7", "1e999", "0x1p3", "", "1s"})
    CHECK(contains(refused({"status", "r", "--timeout", number}), "--timeout: must be a number from 0.001 to 1e+06"));
  CHECK(read_as<run_arguments>({"run", "e", "--seed", "010"}).seed == 10); // decimal
  CHECK(read_as<run_arguments>({"run", "e", "--slots", "4096"}).session.slots == 4096);
  CHECK(read_as<control_arguments>({"status", "r", "--timeout", "0.5"}).timeout_seconds == 0.5);
}

TEST_CASE("an empty text is refused wherever something must be named") {
  for (auto& words : std::vector<std::vector<const char*>>{{"run", ""},
                                                           {"run", "e", "--out", ""},
                                                           {"run", "e", "--device", ""},
                                                           {"run", "e", "--device", "cpu", "--device", ""},
                                                           {"resume", ""},
                                                           {"resume", "r", "-t", ""},
                                                           {"status", ""},
                                                           {"pause", "r", "--trainer", ""},
                                                           {"push", "r", ""},
                                                           {"push", "r", "--trainer", "", "lr=1"},
                                                           {"stop", "r", "-t", ""},
                                                           {"add", "r", ""},
                                                           {"add", "", "{}"},
                                                           {"check", ""},
                                                           {"show", ""}}) {
    auto x = parse(words);
    INFO(words[0]);
    CHECK(x.parsed.status == 2);
    CHECK(contains(x.err, ": must not be empty"));
  }
}

TEST_CASE("an option that is given twice or without its value is refused") {
  CHECK(contains(parse({"run", "e", "--out", "a", "--out", "b"}).err, "--out is given 2 times"));
  CHECK(contains(parse({"run", "e", "--seed", "1", "--seed", "1"}).err, "--seed is given 2 times"));
  CHECK(contains(parse({"status", "r", "--timeout", "1", "--timeout", "2"}).err, "--timeout is given 2 times"));
  CHECK(contains(parse({"pause", "r", "-t", "a", "--trainer", "b"}).err, "--trainer is given 2 times"));
  CHECK(contains(parse({"run", "e", "--out", "--json"}).out, "--out: needs a value, and '--json' is an option"));
  CHECK(contains(parse({"run", "e", "--device", "--quiet"}).err, "--device: needs a value, and '--quiet' is an option"));
  CHECK(contains(parse({"pause", "r", "-t", "-x"}).err, "--trainer: needs a value"));
  CHECK(contains(parse({"run", "e", "--out"}).err, "--out needs a value"));
  CHECK(contains(parse({"run", "e", "--out="}).err, "--out needs a value"));
  CHECK(parse({"run", "e", "--json=no"}).parsed.status == 2);
  CHECK(parse({"run", "e", "--quiet=0"}).parsed.status == 2);
}

TEST_CASE("an unknown option is named with what was probably meant") {
  CHECK(contains(parse({"run", "e", "--devices", "cpu"}).err, "'--devices' is no option of `troupe run`; did you mean '--device'?"));
  CHECK(contains(parse({"run", "e", "--slot=2"}).err, "'--slot=2' is no option of `troupe run`; did you mean '--slots'?"));
  CHECK(contains(parse({"check", "e", "--slots", "2"}).err, "'--slots' is no option of `troupe check`"));
  CHECK(contains(parse({"status", "r", "-t", "a"}).err, "'-t' is no option of `troupe status`"));
  CHECK(contains(parse({"-v"}).err, "'-v' is no option of `troupe` itself, and no command is given"));
  CHECK(contains(parse({"run", "e", "f"}).err, "not expected: f"));
}

TEST_CASE("a complaint is JSON on standard output where JSON is asked for") {
  for (auto& words : std::vector<std::vector<const char*>>{{"run", "--json"},
                                                           {"run", "e", "--json", "--slots", "0"},
                                                           {"push", "r", "--json"},
                                                           {"doctor", "--json", "more"},
                                                           {"--json"},
                                                           {"nothing", "--json"}}) {
    auto x = parse(words);
    CHECK(x.parsed.status == 2);
    CHECK(x.parsed.json);
    CHECK(x.err == "");
    const auto j = nlohmann::json::parse(x.out);
    CHECK(j["kind"] == "result");
    CHECK(j["ok"] == false);
    CHECK(j["outcome"] == "failed");
    CHECK_FALSE(j["error"].get<std::string>().empty());
  }
  CHECK(parse({"run", "--", "e", "--json"}).out == "");
}

TEST_CASE("what was given for the session is known by name") {
  CHECK(read_as<resume_arguments>({"resume", "r", "--json"}).session.given.empty());
  CHECK(read_as<resume_arguments>({"resume", "r", "-q", "--workers", "0", "--device", "cpu", "--slots", "1"}).session.given ==
        std::vector<std::string>{"--slots", "--device", "--workers", "--quiet"});
}

TEST_CASE("help and version are printed with status 0 for every command") {
  auto version = parse({"--version"});
  CHECK(version.parsed.status == 0);
  CHECK(version.out.starts_with("troupe 0."));
  CHECK(contains(parse({"--help"}).out, "Examples:"));
  for (auto name : {"run", "resume", "status", "pause", "push", "stop", "add", "doctor", "check", "show"}) {
    auto x = parse({name, "--help"});
    CHECK(x.parsed.status == 0);
    CHECK_FALSE(x.parsed.what);
    CHECK(contains(x.out, "Example"));
    CHECK(contains(x.out, "troupe " + std::string{name}));
  }
}
