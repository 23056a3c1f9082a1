/// Faults that users of other systems met, at the level of whole runs. Every wait is for an event; gates hold work back.
#include <doctest/doctest.h>

#include <algorithm>

#include "run_fixture.hpp"
#include "troupe/core/random.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr std::uint64_t endless = 2'000'000'000;

template <class T>
T good(std::future<core::result<T>> x) {
  auto answer = x.get();
  if (!answer)
    FAIL(answer.error().text);
  return std::move(*answer);
}

/// One asks again until it is so; each answer is waited for.
void wait_for_status(const run_control& c, const std::function<bool(const run_status&)>& until) {
  const auto enough = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!until(good(c.status())))
    if (std::chrono::steady_clock::now() > enough)
      FAIL("a state never came");
}

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
    REQUIRE(s.seen->wait_for_event("trainer_finished"));
    (void)good(c.stop());
    REQUIRE(ended(*run));
    const auto summary = run->wait();
    CHECK(summary.outcome == run_outcome_kind::done);
    CHECK(find(summary, x.name()).state == trainer_state::finished);
    CHECK(find(summary, x.name()).step == 40);
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
    REQUIRE(s.seen->wait([](const recorder& r) { return r.started(); }));
    what->hold_builds("t0"); // its first life is built
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
