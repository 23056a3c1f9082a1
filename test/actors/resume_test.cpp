/// Runs that are left, in order or not, and gone on with.
#include <doctest/doctest.h>

#include <fstream>

#include "mixing_policy.hpp"
#include "run_fixture.hpp"
#include "troupe/core/random.hpp"
#include "troupe/core/run_reader.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

core::experiment uneven() {
  auto e = experiment_of(4, 700, 100);
  e.trainers[3].stop_step = 350;
  return e;
}

} // namespace

TEST_CASE("a run that was interrupted goes on to the same weights as one that was not") {
  const auto undisturbed = hashes(set_up(uneven(), 2, nullptr, mix).run());
  temporary_folder folder;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    CAPTURE(seed);
    core::random_stream rng(seed, "interrupt");
    const auto directory = folder.path("run" + std::to_string(seed));
    run_summary summary;
    int sessions = 0;
    do {
      set_up s(uneven(), 2, nullptr, mix);
      s.options.directory = directory;
      s.options.resume = sessions++ > 0;
      auto run = s.start();
      if (sessions <= 3) {
        const auto syncs = static_cast<std::size_t>(rng.below(3));
        s.seen->wait([&](const recorder& r) {
          return (r.started() && r.sync_points().size() >= syncs) || !r.events("run_ended").empty();
        });
        run->control().interrupt();
      }
      summary = run->wait();
      REQUIRE(summary.error.text.empty());
    } while (summary.outcome == run_outcome_kind::interrupted);
    for (const auto& t : summary.trainers)
      CHECK(t.failure.text == "");
    CHECK(summary.outcome == run_outcome_kind::done);
    for (const auto& t : summary.trainers)
      if (t.final_hash != 0) // those that ended in an earlier session have none in this one
        CHECK(t.final_hash == undisturbed.at(t.name));
  }
}

TEST_CASE("a run that was cut off anywhere goes on to the same weights") {
  const auto undisturbed = hashes(set_up(uneven(), 2, nullptr, mix).run());
  temporary_folder folder;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    CAPTURE(seed);
    core::random_stream rng(seed, "cut off");
    const auto directory = folder.path("run" + std::to_string(seed));
    std::map<std::string, std::uint64_t> seen;
    for (int session = 0;; ++session) {
      set_up s(uneven(), 2, nullptr, mix);
      s.options.directory = directory;
      s.options.resume = session > 0;
      auto run = s.start();
      if (session < 3) {
        const auto syncs = static_cast<std::size_t>(rng.below(4));
        s.seen->wait([&](const recorder& r) {
          return r.sync_points().size() >= syncs || !r.events("run_ended").empty();
        });
        run.reset(); // as if it had died
        continue;
      }
      const auto summary = run->wait();
      CHECK(summary.outcome == run_outcome_kind::done);
      for (const auto& t : summary.trainers)
        if (t.final_hash != 0)
          CHECK(t.final_hash == undisturbed.at(t.name));
      break;
    }
  }
}

TEST_CASE("a power cut that takes lines behind the newest set takes no weights and no decision") {
  std::map<core::sync_index, nlohmann::json> decided;
  const auto decisions = [](const sync_point_event& x) {
    auto out = nlohmann::json::object();
    for (const auto& [t, d] : x.decisions)
      out[std::to_string(t)] = core::to_json(d);
    return out;
  };
  set_up whole(uneven(), 2, nullptr, mix);
  const auto undisturbed = hashes(whole.run());
  for (const auto& x : whole.seen->sync_points())
    decided[x.index] = decisions(x);
  temporary_folder folder;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    CAPTURE(seed);
    core::random_stream rng(seed, "power cut");
    const auto directory = folder.path("run" + std::to_string(seed));
    {
      set_up s(uneven(), 2, nullptr, mix);
      s.options.directory = directory;
      auto run = s.start();
      REQUIRE(s.seen->wait_for_sync(1 + seed));
      run.reset();
    }
    // All that the disk is promised to hold: up to the newest set, or to the first line where there is none. Of what follows any
    // part may be there, and of the table any.
    const auto record = core::read_run(directory);
    REQUIRE(record);
    const auto log = directory + "/run.jsonl", table = directory + "/metadata.csv";
    std::uint64_t safe = 0;
    if (record->sets.empty()) {
      std::ifstream in(log, std::ios::binary);
      std::string first;
      std::getline(in, first);
      safe = first.size() + 1;
    } else {
      safe = record->sets.back().position;
    }
    std::filesystem::resize_file(log, safe + (seed == 0 ? 0 : rng.below(std::filesystem::file_size(log) - safe + 1)));
    std::filesystem::resize_file(table, rng.below(std::filesystem::file_size(table) + 1));

    set_up s(uneven(), 2, nullptr, mix);
    s.options.directory = directory;
    s.options.resume = true;
    const auto summary = s.run();
    CHECK(summary.outcome == run_outcome_kind::done);
    for (const auto& t : summary.trainers)
      if (t.final_hash != 0)
        CHECK(t.final_hash == undisturbed.at(t.name));
    for (const auto& x : s.seen->sync_points())
      CHECK(decisions(x) == decided.at(x.index));
  }
}

TEST_CASE("a damaged newest set is passed over for the one before") {
  const auto undisturbed = hashes(set_up(uneven(), 2, nullptr, mix).run());
  temporary_folder folder;
  const auto directory = folder.path("run");
  {
    set_up s(uneven(), 2, nullptr, mix);
    s.options.directory = directory;
    auto run = s.start();
    REQUIRE(s.seen->wait_for_event("checkpoints_written", 3));
    run.reset();
  }
  const auto record = core::read_run(directory);
  REQUIRE(record);
  REQUIRE(record->sets.size() >= 2);
  {
    std::ofstream f(directory + "/" + record->sets.back().set.trainers.front().file,
                    std::ios::binary | std::ios::in | std::ios::out);
    f.seekp(-3, std::ios::end);
    f.put('?');
  }
  set_up s(uneven(), 2, nullptr, mix);
  s.options.directory = directory;
  s.options.resume = true;
  const auto summary = s.run();
  CHECK(summary.outcome == run_outcome_kind::done);
  CHECK(s.seen->sync_points().front().index <= *record->sets.back().set.sync);
  for (const auto& t : summary.trainers)
    if (t.final_hash != 0)
      CHECK(t.final_hash == undisturbed.at(t.name));
}

TEST_CASE("only as many sets stay as the experiment keeps and final states are files") {
  temporary_folder folder;
  const auto directory = folder.path("run");
  auto exp = experiment_of(2, 1000, 100);
  exp.checkpoints.keep = 2;
  set_up s(exp);
  s.options.directory = directory;
  const auto summary = s.run();
  CHECK(summary.outcome == run_outcome_kind::done);
  CHECK(summary.directory == directory);
  std::size_t folders = 0;
  for ([[maybe_unused]] const auto& x : std::filesystem::directory_iterator(directory + "/checkpoints"))
    ++folders;
  CHECK(folders == 2);
  for (const auto* name : {"t0", "t1"})
    CHECK(core::read_checkpoint(directory + "/final/" + name + ".safetensors"));
  const auto record = core::read_run(directory);
  REQUIRE(record);
  CHECK(record->outcome == "done");
  for (const auto& t : record->trainers)
    CHECK(t.state == core::trainer_record::status::finished);
}

TEST_CASE("FAULTS row 23 a run that ended by an error goes on with those that had not finished") {
  temporary_folder folder;
  const auto directory = folder.path("run");
  auto exp = experiment_of(3, 600, 100);
  exp.failures.max_restarts = 0;
  exp.failures.fail_fast = true;
  const auto undisturbed = hashes(set_up(exp).run());
  {
    auto what = std::make_shared<mischief>();
    what->fail("t1", 250);
    set_up s(exp, 2, what);
    s.options.directory = directory;
    CHECK(s.run().outcome == run_outcome_kind::failed);
  }
  set_up s(exp);
  s.options.directory = directory;
  s.options.resume = true;
  const auto summary = s.run();
  CHECK(summary.outcome == run_outcome_kind::failed);
  CHECK(find(summary, "t1").state == trainer_state::failed);
  CHECK(find(summary, "t1").failure.text.find("step 250") != std::string::npos);
  for (const auto* name : {"t0", "t2"}) {
    CHECK(find(summary, name).state == trainer_state::finished);
    CHECK(find(summary, name).final_hash == undisturbed.at(name));
  }
}

TEST_CASE("a run with nothing left to do says so when it is gone on with") {
  temporary_folder folder;
  set_up first(experiment_of(2, 20, 10));
  first.options.directory = folder.path("run");
  CHECK(first.run().outcome == run_outcome_kind::done);
  set_up again(experiment_of(2, 20, 10));
  again.options.directory = folder.path("run");
  SUBCASE("not by resume") {
    auto run = run_session::start(again.options);
    REQUIRE_FALSE(run);
    CHECK(run.error().text.find("resume") != std::string::npos);
  }
  SUBCASE("by resume") {
    again.options.resume = true;
    CHECK(again.run().outcome == run_outcome_kind::done);
  }
}
