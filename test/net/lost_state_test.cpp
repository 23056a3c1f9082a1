/// States that are lost on their way from the process that has them to the head.
#include <doctest/doctest.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <string>

#include <nlohmann/json.hpp>

#include "tiny_workload.hpp"
#include "troupe/actors/prepare.hpp"
#include "troupe/core/run_reader.hpp"
#include "troupe/net/cluster.hpp"

using namespace troupe;
using namespace troupe::net;

namespace {

using hashes = std::map<std::string, std::uint64_t>;

std::string two_networks(const std::string& more) {
  return R"({"name": "two", "seed": 5, "defaults": {"workload": {"type": "tiny"}, "stop_step": 120},
             "trainers": [{"name": "a", "hyperparameters": {"lr": 0.1}}, {"name": "b", "hyperparameters": {"lr": 0.2}}])" +
         more + "}";
}

actors::run_options prepared(const std::string& experiment) {
  actors::program mine;
  mine.workloads = *tiny_workloads();
  mine.slots.assign(2, {});
  auto o = actors::prepare_run(experiment, mine);
  REQUIRE_MESSAGE(o, o.error().text);
  for (auto& s : o->slots)
    s.plan = nullptr;
  return std::move(*o);
}

hashes hashes_of(const actors::run_summary& s) {
  hashes out;
  for (const auto& t : s.trainers)
    out[t.name] = t.final_hash;
  return out;
}

hashes undisturbed() {
  auto run = actors::run_session::start(prepared(two_networks("")));
  REQUIRE(run);
  return hashes_of((*run)->wait());
}

struct outcome {
  actors::run_summary summary;
  int fetched = 0; ///< states that were asked for
};

/// On two workers; the transfer number `lost` fails.
outcome run_with_lost_transfer(const std::string& experiment, const std::string& directory, int lost) {
  auto o = prepared(experiment);
  cluster_options c;
  c.command = {TROUPE_TEST_WORKER, "worker"};
  c.slots = deal_slots(o.slots, 2);
  auto head = cluster_head::start(std::move(c));
  REQUIRE_MESSAGE(head, head.error().text);
  o.slots.clear();
  o.directory = directory;
  (*head)->prepare(o);
  auto count = std::make_shared<std::atomic<int>>(0);
  o.fetch = [real = o.fetch, count, lost](const actors::remote_state& x, auto then) {
    if (++*count == lost)
      then(core::error{core::errc::io, "the connection broke"});
    else
      real(x, std::move(then));
  };
  outcome out;
  {
    auto run = actors::run_session::start(std::move(o));
    REQUIRE_MESSAGE(run, run.error().text);
    (*head)->attach(**run);
    out.summary = (*run)->wait();
  }
  (*head)->stop();
  out.fetched = *count;
  return out;
}

struct folder {
  std::string path = [] {
    char name[] = "/tmp/troupe-lost-state-XXXXXX";
    return std::string{::mkdtemp(name)};
  }();
  ~folder() { std::filesystem::remove_all(path); }
};

} // namespace

TEST_CASE("a trainer whose last state is lost before it was saved has not finished and begins again") {
  const auto expected = undisturbed();
  folder f;
  const auto got = run_with_lost_transfer(two_networks(""), f.path + "/run", 1);
  CHECK(got.fetched == 3);
  CHECK_MESSAGE(got.summary.outcome == actors::run_outcome_kind::done, got.summary.error.text);
  CHECK(hashes_of(got.summary) == expected);
  std::uint32_t lives = 0;
  for (const auto& t : got.summary.trainers) {
    lives += t.incarnation;
    CHECK(t.restarts == 0); // it is not its fault
    CHECK(std::filesystem::exists(f.path + "/run/final/" + t.name + ".safetensors"));
  }
  CHECK(lives == 1);
}

TEST_CASE("a set of which a state is lost has the trainer's older one or is left out") {
  const auto expected = undisturbed();
  const auto sets = R"(, "sync": {"every_steps": 40}, "checkpoints": {"keep": 100})";
  int most = 1;
  for (int lost = 1; lost <= most; ++lost) {
    CAPTURE(lost);
    folder f;
    const auto got = run_with_lost_transfer(two_networks(sets), f.path + "/run", lost);
    most = std::min(got.fetched, 6);
    CHECK_MESSAGE(got.summary.outcome == actors::run_outcome_kind::done, got.summary.error.text);
    CHECK(hashes_of(got.summary) == expected);
    const auto record = core::read_run(f.path + "/run");
    REQUIRE(record);
    for (const auto& x : record->sets) {
      CHECK(x.missing == "");
      CHECK(x.set.trainers.size() == 2);
    }
  }
}
