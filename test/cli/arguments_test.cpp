#include "arguments.hpp"

#include <doctest/doctest.h>

#include <sstream>

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
