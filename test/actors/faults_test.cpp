/// Faults that users of other systems met, at the level of whole runs. Every wait is for an event; gates hold work back.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "run_fixture.hpp"
#include "troupe/actors/blob_store.hpp"
#include "troupe/actors/caf.hpp"
#include "troupe/actors/node_agent.hpp"
#include "troupe/actors/run_access.hpp"
#include "troupe/core/random.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr std::uint64_t endless = 2'000'000'000;

bool ended(run_session& run) { return run.wait_for(std::chrono::seconds(60)); }

/// One of `n` trainers is the last to arrive at a sync point, and there it is to take the weights of another.
struct last_arriver {
  unsigned n, victim, donor;
  core::sync_index k;

  explicit last_arriver(std::uint64_t seed) {
    core::random_stream rng(seed, "last arriver", 0);
    n = 2 + static_cast<unsigned>(rng.below(4));
    victim = static_cast<unsigned>(rng.below(n));
    donor = (victim + 1 + static_cast<unsigned>(rng.below(n - 1))) % n;
    k = static_cast<core::sync_index>(rng.below(3));
  }
  std::string name() const { return "t" + std::to_string(victim); }
  std::uint64_t step() const { return 10 * (std::uint64_t{k} + 1); }
  deciding policy() const {
    return [*this](const core::policy_input& in, core::random_stream&) {
      std::map<core::trainer_id, core::decision> out;
      if (in.index == k && in.only.value_or(victim) == victim) {
        out[victim].copy_from = donor;
        out[victim].changes = {{"lr", 0.9}};
      }
      return out;
    };
  }
  /// Alone on its slot, so that others can go on while it is held.
  core::experiment experiment(std::uint64_t steps_of_others) const {
    auto exp = experiment_of(n, steps_of_others, 0);
    exp.sync.schedule.at_steps = {10, 20, 30};
    for (auto& t : exp.trainers)
      t.slot = "0";
    exp.trainers[victim].slot = "1";
    exp.trainers[victim].stop_step = 40;
    return exp;
  }
};

} // namespace

TEST_CASE("FAULTS row 8 a save in flight of the last to arrive and to be exploited holds up nobody for good") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    CAPTURE(seed);
    const last_arriver x(seed);
    auto what = std::make_shared<mischief>();
    what->hold(x.name(), x.step());
    set_up s(x.experiment(40), 2, what, x.policy());
    auto run = s.start();
    const auto c = run->control();
    wait_for_status(c, [&](const run_status& now) {
      return std::all_of(now.trainers.begin(), now.trainers.end(), [&](const trainer_info& t) {
        return t.id == x.victim || (t.state == trainer_state::parked && t.newest && t.newest->sync == x.k);
      });
    });
    what->hold_saves(x.name());
    what->release();
    REQUIRE(what->wait_until_saving(x.name()));
    // What it takes is in it, but nobody goes on before that is safe.
    const auto held = good(c.status());
    CHECK(held.open_round == x.k);
    for (const auto& t : held.trainers)
      CHECK(t.state == trainer_state::parked);
    auto pausing = seed % 2 == 0 ? c.pause(x.name()) : std::future<core::result<acknowledgements>>{};
    what->release_saves();
    if (pausing.valid()) {
      CHECK(good(std::move(pausing)).size() == 1);
      (void)good(c.resume(x.name()));
    }
    REQUIRE(ended(*run));
    const auto summary = run->wait();
    CHECK(summary.outcome == run_outcome_kind::done);
    CHECK(summary.rounds == 3);
    CHECK(find(summary, x.name()).step == 40);
    CHECK(find(summary, x.name()).hp == core::hyperparameters{{"lr", 0.9}});
    CHECK(s.seen->events("decision_refused").empty());
    for (const auto& p : s.seen->sync_points())
      CHECK(p.reports.size() == x.n);
  }
}

TEST_CASE("FAULTS row 8 a decision that comes during a save for a checkpoint is applied after it without waiting too") {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    const last_arriver x(seed);
    auto what = std::make_shared<mischief>();
    temporary_folder folder;
    auto exp = x.experiment(endless);
    exp.trainers[x.victim].stop_step = endless; // a decision may come late, but not after the end
    exp.sync.asynchronous = true;
    exp.checkpoints.every_syncs = x.k + 1; // no set before this one
    what->hold(x.name(), x.step());
    set_up s(exp, 2, what, x.policy());
    s.options.directory = folder.path("run");
    auto run = s.start();
    const auto c = run->control();
    // All others have passed every sync point: it is the last one at this, which begins a checkpoint set.
    REQUIRE(s.seen->wait_for_sync(3 * (x.n - 1) + x.k));
    what->hold_saves(x.name());
    what->release();
    REQUIRE(what->wait_until_saving(x.name()));
    REQUIRE(s.seen->wait_for_sync(3 * (x.n - 1) + x.k + 1)); // its own report: the decision is on its way
    what->release_saves();
    wait_for_status(c, [&](const run_status& now) {
      const auto& t = now.trainers[x.victim];
      return t.hp == core::hyperparameters{{"lr", 0.9}} && t.step > 100;
    });
    (void)good(c.stop());
    REQUIRE(ended(*run));
    const auto summary = run->wait();
    CHECK(summary.outcome == run_outcome_kind::done);
    CHECK(s.seen->events("trainer_failed").empty());
    CHECK(s.seen->events("checkpoints_failed").empty());
    CHECK(s.seen->events("decision_refused").empty());
  }
}

TEST_CASE("FAULTS row 31 a push that lands while its trainer restarts runs once when it is back") {
  for (const bool to_all : {false, true}) {
    CAPTURE(to_all);
    auto what = std::make_shared<mischief>();
    what->fail("t0", 100, 1);
    what->hold("t0", 50);
    auto exp = experiment_of(2, endless, 0);
    exp.failures.max_restarts = 1;
    set_up s(exp, 2, what);
    auto run = s.start();
    const auto c = run->control();
    REQUIRE(what->wait_until_held("t0")); // its first life is built
    what->hold_builds("t0");
    what->release();
    REQUIRE(what->wait_until_building("t0"));
    auto pushing = c.push(to_all ? "" : "t0", {{"lr", 0.7}});
    const auto during = good(c.status()); // answered after the push was taken in
    CHECK(during.trainers[0].state == trainer_state::restarting);
    CHECK(during.trainers[0].restarts == 1);
    CHECK(what->times_set("t0", 0.7) == 0);
    what->release_builds();
    const auto pushed = good(std::move(pushing));
    CHECK(pushed.size() == (to_all ? 2 : 1));
    const auto after = good(c.status());
    CHECK(after.trainers[0].incarnation == 1);
    CHECK(after.trainers[0].restarts == 1);
    CHECK(after.trainers[0].hp == core::hyperparameters{{"lr", 0.7}});
    CHECK(after.trainers[1].hp == core::hyperparameters{{"lr", to_all ? 0.7 : 0.1}});
    CHECK(s.seen->wait_for_event("pushed", pushed.size()));
    (void)good(c.stop());
    CHECK(run->wait().outcome == run_outcome_kind::done);
    CHECK(what->times_set("t0", 0.7) == 1);
    CHECK(s.seen->events("pushed").size() == pushed.size());
  }
}

// -- row 32: moved, paused, interrupted --------------------------------------------------------------------------------

namespace {

/// Agents that come and go, all in this process, for runs that have no slots of their own.
class wandering_slots {
public:
  explicit wandering_slots(std::shared_ptr<mischief> what) : workloads_(walks(std::move(what))) {}

  void prepare(run_options& o) {
    o.slots.clear();
    o.other_nodes = 1;
    o.system = &system_;
    o.blobs = store(0);
    o.fetch = [this](const remote_state& x, auto done) { fetch(x.port, x.blob, done); };
  }
  void arrive(const run_session& run) {
    node_setup setup;
    setup.node = ++newest_;
    gpu::slot_options slot;
    slot.device = *gpu::find_device(gpu::find_devices(), "cpu");
    workers_.push_back(std::make_shared<gpu::slot_worker>(slot));
    setup.slots.push_back(workers_.back());
    setup.workloads = workloads_;
    setup.blobs = store(newest_);
    setup.fetch = [this](const state_ref& x, auto done) { fetch(x.port, x.blob, done); };
    setup.host = "here";
    setup.port = newest_;
    setup.observer = run_access::nodes(run);
    agents_.push_back(spawn_node_agent(system_, setup));
  }
  void oldest_leaves() {
    caf::anon_send_exit(agents_.front(), caf::exit_reason::user_shutdown);
    agents_.erase(agents_.begin());
  }

private:
  std::shared_ptr<blob_store> store(std::uint16_t node) {
    auto x = std::make_shared<blob_store>(node);
    x->set_address("here", node);
    const std::lock_guard lock(mutex_);
    stores_.emplace(node, x);
    return x;
  }
  void fetch(std::uint16_t node, std::uint64_t blob, const std::function<void(core::result<core::checkpoint_ptr>)>& done) {
    std::unique_lock lock(mutex_);
    auto state = stores_.at(node)->get(blob);
    lock.unlock();
    if (state)
      done(std::move(state));
    else
      done(core::error{core::errc::not_found, "its process is gone"});
  }

  std::shared_ptr<gpu::workload_registry> workloads_;
  std::vector<std::shared_ptr<gpu::slot_worker>> workers_; // outlive the system
  std::mutex mutex_;
  std::map<std::uint16_t, std::shared_ptr<blob_store>> stores_;
  system_config config_;
  caf::actor_system system_{config_};
  std::vector<node_agent_actor> agents_;
  std::uint16_t newest_ = 0;
};

} // namespace

TEST_CASE("FAULTS row 32 ten moves and ten pauses do not touch a failure budget of one") {
  const auto undisturbed = hashes(set_up(experiment_of(1, 120, 10), 1).run());
  auto what = std::make_shared<mischief>();
  wandering_slots slots(what);
  auto exp = experiment_of(1, 120, 10);
  exp.failures.max_restarts = 1;
  set_up s(exp, 1);
  slots.prepare(s.options);
  what->hold("t0", 5);
  auto run = s.start();
  const auto c = run->control();
  slots.arrive(*run);
  for (unsigned move = 1; move <= 10; ++move) {
    REQUIRE(s.seen->wait_for_event("trainer_started", move));
    auto pausing = c.pause();
    what->hold("t0", 10 * move + 5);
    const auto paused = good(std::move(pausing));
    REQUIRE(paused.size() == 1);
    (void)good(c.resume());
    REQUIRE(s.seen->wait_for_sync(move));
    slots.arrive(*run);
    REQUIRE(s.seen->wait_for_event("node_joined", move + 1));
    slots.oldest_leaves();
    REQUIRE(s.seen->wait_for_event("node_lost", move));
    what->hold("t0", 10 * move + 6);
  }
  REQUIRE(s.seen->wait_for_event("trainer_started", 11));
  what->fail("t0", 117, 1); // the one failure that it may have
  what->release();
  REQUIRE(ended(*run));
  const auto summary = run->wait();
  CHECK(summary.outcome == run_outcome_kind::done);
  CHECK(find(summary, "t0").restarts == 1);
  CHECK(find(summary, "t0").incarnation >= 11);
  CHECK(hashes(summary) == undisturbed);
}

TEST_CASE("FAULTS row 32 ten interruptions do not touch a failure budget of none") {
  const auto undisturbed = hashes(set_up(experiment_of(2, 120, 10), 1).run());
  temporary_folder folder;
  for (unsigned i = 0; i <= 10; ++i) {
    auto what = std::make_shared<mischief>();
    auto exp = experiment_of(2, 120, 10);
    exp.failures.max_restarts = 0;
    set_up s(exp, 1, what);
    s.options.directory = folder.path("run");
    s.options.resume = i > 0;
    if (i < 10)
      what->hold("t0", 10 * i + 5);
    auto run = s.start();
    if (i == 10) {
      CHECK(run->wait().outcome == run_outcome_kind::done);
      CHECK(hashes(run->wait()) == undisturbed);
      break;
    }
    REQUIRE(s.seen->wait([](const recorder& r) { return r.started(); }));
    run->control().interrupt();
    what->release();
    REQUIRE(ended(*run));
    CHECK(run->wait().outcome == run_outcome_kind::interrupted);
    CHECK(s.seen->events("trainer_failed").empty());
  }
}

// -- row 32: out of memory -----------------------------------------------------------------------------------------------

namespace {

/// `trainers` that hold 400 bytes each, on slots with room for so many.
set_up crowd(unsigned trainers, std::vector<unsigned> room, std::shared_ptr<mischief> what = nullptr,
             std::uint32_t max_restarts = 0) {
  auto exp = experiment_of(trainers, 40, 10);
  for (auto& t : exp.trainers)
    t.workload_options = R"({"size":4,"bytes":400})";
  exp.failures.max_restarts = max_restarts;
  set_up s(exp, static_cast<unsigned>(room.size()), std::move(what));
  for (std::size_t i = 0; i < room.size(); ++i)
    s.options.slots[i].memory_budget = 400 * room[i] + 300;
  return s;
}

} // namespace

TEST_CASE("FAULTS row 32 who finds no memory waits for a neighbour to leave and holds up nobody") {
  const auto expected = hashes(set_up(experiment_of(3, 40, 10), 1).run());
  auto s = crowd(3, {2});
  auto run = s.start();
  REQUIRE(ended(*run));
  const auto summary = run->wait();
  CHECK(summary.outcome == run_outcome_kind::done);
  CHECK(hashes(summary) == expected);
  for (const auto& t : summary.trainers)
    CHECK(t.restarts == 0);
  const auto waits = s.seen->events("trainer_waits");
  REQUIRE(waits.size() == 1);
  CHECK(waits[0].details["reason"].get<std::string>().find("beside 2 others") != std::string::npos);
  const auto failures = s.seen->events("trainer_failed");
  REQUIRE(failures.size() == 1); // not again and again
  CHECK(failures[0].details["name"] == waits[0].details["name"]);
  CHECK(failures[0].details["final"] == false);
  REQUIRE(s.seen->sync_points().size() == 3);
  CHECK(s.seen->sync_points()[0].reports.size() == 2); // they did not wait for it
}

TEST_CASE("FAULTS row 32 who finds no memory goes to another slot that may have some") {
  auto s = crowd(4, {1, 3});
  auto run = s.start();
  REQUIRE(ended(*run));
  const auto summary = run->wait();
  CHECK(summary.outcome == run_outcome_kind::done);
  CHECK(s.seen->events("trainer_waits").empty());
  const auto failures = s.seen->events("trainer_failed");
  REQUIRE(failures.size() == 1);
  CHECK(find(summary, failures[0].details["name"].get<std::string>()).slot == "0/1");
  for (const auto& p : s.seen->sync_points())
    CHECK(p.reports.size() == 4);
}

TEST_CASE("FAULTS row 32 who needs more than there is uses up its budget and fails with the numbers") {
  auto s = crowd(2, {2}, nullptr, 2);
  s.options.exp.trainers[1].workload_options = R"({"size":4,"bytes":1200})";
  auto run = s.start();
  REQUIRE(ended(*run));
  const auto summary = run->wait();
  CHECK(summary.outcome == run_outcome_kind::failed);
  CHECK(find(summary, "t0").state == trainer_state::finished);
  const auto& big = find(summary, "t1");
  CHECK(big.state == trainer_state::failed);
  CHECK(big.restarts == 2);
  CHECK(big.failure.code == core::errc::out_of_memory);
  CHECK(big.failure.text.find("1200 bytes were requested") != std::string::npos);
  CHECK(big.failure.text.find("beside 0 others") != std::string::npos);
}

TEST_CASE("FAULTS row 32 who waits for memory can be paused and pushed to and stopped at once") {
  auto what = std::make_shared<mischief>();
  for (const auto* name : {"t0", "t1", "t2", "t3"})
    what->hold_builds(name);
  auto s = crowd(4, {2}, what);
  auto run = s.start();
  const auto c = run->control();
  // Whoever finds room is paused before its first step, so that the slot is free for the others to try.
  auto pausing = c.pause();
  (void)good(c.status()); // heard after the pause
  what->release_builds();
  REQUIRE(good(std::move(pausing)).size() == 4);
  std::set<std::string> waiting; // one may have tried twice
  REQUIRE(s.seen->wait([&](const recorder& r) {
    for (const auto& x : r.events("trainer_waits"))
      waiting.insert(x.details["name"].get<std::string>());
    return waiting.size() == 2;
  }));
  const auto first = *waiting.begin(), second = *waiting.rbegin();
  const auto pushed = good(c.push(first, {{"lr", 0.7}}));
  REQUIRE(pushed.size() == 1);
  CHECK(pushed.front().step == 0);
  (void)good(c.resume(first));
  CHECK(good(c.pause(first)).size() == 1);
  (void)good(c.resume(first));
  CHECK(good(c.stop(second)).size() == 1);
  (void)good(c.resume());
  REQUIRE(ended(*run));
  const auto summary = run->wait();
  CHECK(summary.outcome == run_outcome_kind::done);
  CHECK(find(summary, first).state == trainer_state::finished);
  CHECK(find(summary, first).hp == core::hyperparameters{{"lr", 0.7}});
  CHECK(find(summary, second).state == trainer_state::stopped);
  CHECK(find(summary, second).final_hash == 0);
  CHECK(what->times_set(first, 0.7) == 1);
}
