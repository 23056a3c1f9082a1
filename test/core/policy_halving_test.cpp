/// Successive halving, in rounds and without waiting, with the sync engine and trainers that only count.
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "troupe/core/experiment.hpp"
#include "troupe/core/policy.hpp"
#include "troupe/core/sync_engine.hpp"

using namespace troupe::core;
using engine = sync_engine;
using json = nlohmann::json;

namespace {

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

std::unique_ptr<policy> make(const std::string& type, const json& options = json::object()) {
  std::vector<error> faults;
  auto out = builtin_policies().make(type, options, {}, {}, "/policy", faults);
  for (const auto& f : faults)
    FAIL(f.text);
  return out;
}

/// Trainers on one slot that take turns of one step.
class simulation {
public:
  simulation(const std::string& type, std::vector<std::uint64_t> rungs, std::uint64_t max_t,
             std::uint64_t eta, std::vector<double> qualities)
      : policy_(make(type, {{"eta", eta}})), max_t_(max_t), quality_(std::move(qualities)),
        step_(quality_.size()), standing_(quality_.size()), asynchronous_(type == "asha"),
        engine_(options(), std::nullopt, asynchronous_) {
    schedule_.at_steps = std::move(rungs);
    for (trainer_id t = 0; t < quality_.size(); ++t) {
      runs_.insert(t);
      obey(engine_.member_up(t, 0, next(t), {}));
    }
  }

  /// `fails`: whether this trainer fails for good at this step.
  void run(const std::function<bool(trainer_id, std::uint64_t)>& fails = {}) {
    for (trainer_id turn = 0; !runs_.empty(); ++turn) {
      auto i = runs_.lower_bound(turn);
      if (i == runs_.end())
        i = runs_.begin();
      turn = *i;
      step(turn, fails);
    }
  }

  std::uint64_t steps_of(trainer_id t) const { return step_[t]; }
  std::uint64_t total_steps() const {
    std::uint64_t n = 0;
    for (const auto x : step_)
      n += x;
    return n;
  }
  std::size_t with_steps(std::uint64_t n) const {
    return static_cast<std::size_t>(
        std::count_if(step_.begin(), step_.end(), [n](auto x) { return x >= n; }));
  }
  trainer_standing standing(trainer_id t) const { return standing_[t]; }
  std::size_t count(trainer_standing x) const {
    return static_cast<std::size_t>(std::count(standing_.begin(), standing_.end(), x));
  }
  std::size_t held_at_most() const { return held_at_most_; }
  bool done() const { return done_ && engine_.live() == 0; }
  const std::map<trainer_id, std::string>& reasons() const { return reasons_; }

private:
  sync_options options() const {
    sync_options o;
    o.asynchronous = asynchronous_;
    return o;
  }
  std::optional<sync_index> next(trainer_id t) const {
    const auto at = schedule_.next_after(step_[t], max_t_);
    return at ? std::optional(schedule_.index_of(*at)) : std::nullopt;
  }

  void step(trainer_id t, const std::function<bool(trainer_id, std::uint64_t)>& fails) {
    ++step_[t];
    if (fails && fails(t, step_[t])) {
      runs_.erase(t);
      standing_[t] = trainer_standing::failed;
      obey(engine_.member_down(t, 0, false, {}));
    } else if (step_[t] == max_t_) {
      runs_.erase(t);
      standing_[t] = trainer_standing::finished;
      obey(engine_.member_finished(t, 0, {}));
    } else if (std::binary_search(schedule_.at_steps.begin(), schedule_.at_steps.end(), step_[t])) {
      runs_.erase(t);
      metadata m;
      m.trainer = t;
      m.sync = schedule_.index_of(step_[t]);
      m.step = step_[t];
      m.loss = 1;
      m.accuracy = quality_[t];
      obey(engine_.reported(std::move(m), next(t), {}));
    }
  }

  void obey(const engine::actions& as) {
    for (const auto& a : as)
      std::visit([this](const auto& x) { act(x); }, a);
  }
  void act(const engine::decide& x) {
    policy_input in;
    in.index = x.index;
    in.reports = x.reports;
    if (asynchronous_ && !x.last_call)
      in.only = x.reports.at(0).trainer;
    history_.insert(history_.end(), x.reports.begin(), x.reports.end());
    in.history = history_;
    in.standing = standing_;
    in.last_call = x.last_call;
    random_stream rng(1, "test");
    auto d = policy_->decide(in, rng);
    sanitize(d, in);
    for (const auto& [t, what] : d)
      reasons_[t] = what.reason;
    obey(engine_.decided(x.index, std::move(d), {}));
  }
  void act(const engine::apply& x) {
    if (x.what.act == decision::action::stop) {
      standing_[x.trainer] = trainer_standing::stopped;
      reasons_[x.trainer] = x.what.reason;
    }
    obey(engine_.applied(x.index, x.trainer, 0, true, {}));
    if (x.what.act == decision::action::stop)
      obey(engine_.member_finished(x.trainer, 0, {}));
  }
  void act(const engine::resume& x) { runs_.insert(x.trainers.begin(), x.trainers.end()); }
  void act(const engine::release& x) { runs_.insert(x.trainer); }
  void act(const engine::promote& x) {
    standing_[x.trainer] = trainer_standing::running;
    runs_.insert(x.trainer);
  }
  void act(const engine::hold& x) {
    standing_[x.trainer] = trainer_standing::held;
    held_at_most_ = std::max(held_at_most_, count(trainer_standing::held));
  }
  void act(const engine::all_done&) { done_ = true; }
  template <class Other>
  void act(const Other&) {}

  std::unique_ptr<policy> policy_;
  std::uint64_t max_t_;
  std::vector<double> quality_;
  std::vector<std::uint64_t> step_;
  std::vector<trainer_standing> standing_;
  bool asynchronous_;
  engine engine_;
  sync_schedule schedule_;
  std::set<trainer_id> runs_;
  std::vector<metadata> history_;
  std::map<trainer_id, std::string> reasons_;
  std::size_t held_at_most_ = 0;
  bool done_ = false;
};

std::vector<double> best_first(std::size_t n) {
  std::vector<double> out;
  for (std::size_t i = 0; i < n; ++i)
    out.push_back(1 - static_cast<double>(i) / static_cast<double>(n));
  return out;
}

std::vector<std::uint64_t> rungs_below(std::uint64_t max_t, std::uint64_t eta) {
  std::vector<std::uint64_t> out;
  for (std::uint64_t r = 1; r < max_t; r *= eta)
    out.push_back(r);
  return out;
}

} // namespace

TEST_CASE(
    "FAULTS row 9 nine members on one slot of which three go on to the second rung and one to the end") {
  for (const std::string type : {"halving", "asha"}) {
    CAPTURE(type);
    simulation s(type, {1, 3}, 9, 3, best_first(9));
    s.run();
    CHECK(s.done());
    CHECK(s.with_steps(1) == 9);
    CHECK(s.with_steps(3) == 3);
    CHECK(s.with_steps(9) == 1);
    CHECK(s.total_steps() == 9 + 6 + 6);
    CHECK(s.standing(0) == trainer_standing::finished);
    CHECK(s.count(trainer_standing::stopped) == 8);
    CHECK(s.held_at_most() > 0);
  }
}

TEST_CASE("in another order halving lets as many go on and asha more within its bound") {
  auto worst_first = best_first(9);
  std::reverse(worst_first.begin(), worst_first.end());
  simulation halving("halving", {1, 3}, 9, 3, worst_first);
  halving.run();
  CHECK(halving.total_steps() == 21);
  CHECK(halving.standing(8) == trainer_standing::finished);
  simulation asha("asha", {1, 3}, 9, 3, worst_first);
  asha.run();
  CHECK(asha.done());
  CHECK(asha.standing(8) == trainer_standing::finished);
  // Each rung's promotions are the best of it at some time: never all of it.
  CHECK(asha.with_steps(3) >= 3);
  CHECK(asha.with_steps(3) <= 7);
  CHECK(asha.total_steps() <= 9 + 2 * 7 + 6 * 5);
}

TEST_CASE("FAULTS row 10 every run of any size ends with nobody held") {
  std::uint64_t finished = 0, failed = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    random_stream rng(seed, "halving sizes");
    const auto max_t = 1 + rng.below(81);
    const auto eta = 2 + rng.below(4);
    const auto members = 1 + rng.below(40);
    CAPTURE(max_t);
    CAPTURE(eta);
    CAPTURE(members);
    std::vector<double> qualities;
    for (std::uint64_t i = 0; i < members; ++i)
      qualities.push_back(rng.below(10) == 0 ? nan_value : rng.uniform());
    const auto faults = rng.below(3); // in half of the runs, now and then somebody fails for good
    for (const std::string type : {"halving", "asha"}) {
      CAPTURE(type);
      simulation s(type, rungs_below(max_t, eta), max_t, eta, qualities);
      s.run([&](trainer_id t, std::uint64_t step) {
        return faults > 0 && random_stream(seed, "fails", t * 1000 + step).below(30) < faults;
      });
      CHECK(s.done());
      CHECK(s.count(trainer_standing::held) == 0);
      CHECK(s.count(trainer_standing::running) == 0);
      for (trainer_id t = 0; t < members; ++t)
        if (std::isnan(qualities[t]) && max_t > 1) {
          CHECK(s.steps_of(t) <= 1); // never promoted
          CHECK(s.standing(t) != trainer_standing::finished);
        }
      const auto healthy =
          std::count_if(qualities.begin(), qualities.end(), [](double q) { return !std::isnan(q); });
      if (faults == 0 && healthy > 0)
        CHECK(s.count(trainer_standing::finished) > 0);
      finished += s.count(trainer_standing::finished);
      failed += s.count(trainer_standing::failed);
    }
  }
  CHECK(finished > 400);
  CHECK(failed > 400);
}

TEST_CASE("in halving the place of one that failed is taken by the best of those that are held") {
  simulation s("halving", {1, 3}, 9, 3, best_first(9));
  s.run([](trainer_id t, std::uint64_t step) { return t == 1 && step == 2; });
  CHECK(s.done());
  CHECK(s.standing(1) == trainer_standing::failed);
  CHECK(s.steps_of(3) == 3);
  CHECK(s.with_steps(3) == 3);
  CHECK(s.standing(0) == trainer_standing::finished);
  SUBCASE("also at the last rung") {
    simulation last("halving", {1, 3}, 9, 3, best_first(9));
    last.run([](trainer_id t, std::uint64_t step) { return t == 0 && step == 5; });
    CHECK(last.done());
    CHECK(last.standing(1) == trainer_standing::finished);
    CHECK(last.steps_of(1) == 9);
    CHECK(last.count(trainer_standing::finished) == 1);
  }
}

TEST_CASE("asha stops those that cannot be promoted any more as soon as that is certain") {
  simulation s("asha", {1, 3}, 9, 3, best_first(9));
  s.run();
  CHECK(s.reasons().at(8) == "stopped by policy: accuracy 0.1111 cannot be among the best 3 any more");
  CHECK(s.reasons().at(0) == "promoted: accuracy 1 is number 1 of 3");
}

TEST_CASE("in a last call asha lets go on who came to be among the best while it was not there") {
  const auto asha = make("asha");
  std::vector<metadata> history;
  for (trainer_id t = 0; t < 6; ++t) {
    metadata m;
    m.trainer = t;
    m.step = 1;
    m.loss = 1;
    m.accuracy = 1 - 0.1 * t;
    history.push_back(m);
  }
  // Trainer 1 is held since it was among few, and 0 has come to its end.
  using standing = trainer_standing;
  const std::vector<standing> standings{standing::finished, standing::held,    standing::held,
                                        standing::stopped,  standing::stopped, standing::stopped};
  policy_input in;
  in.history = history;
  in.standing = standings;
  in.last_call = true;
  random_stream rng(1, "policy", 0);
  const auto decisions = asha->decide(in, rng);
  REQUIRE(decisions.size() == 1);
  CHECK(decisions.at(1).act == decision::action::go_on);
  CHECK(decisions.at(1).reason == "promoted: accuracy 0.9 is number 2 of 6");
}

TEST_CASE("an infinite value is never promoted in either direction") {
  const double inf = std::numeric_limits<double>::infinity();
  for (const std::string type : {"halving", "asha"})
    for (const double bad : {inf, -inf, nan_value}) {
      auto q = best_first(9);
      q[4] = bad;
      simulation s(type, {1, 3}, 9, 3, q);
      s.run();
      CHECK(s.done());
      CHECK(s.steps_of(4) == 1);
      CHECK(s.standing(0) == trainer_standing::finished);
    }
}

TEST_CASE("a metric that nobody reports is named with those that there are") {
  const auto halving = make("halving", {{"metric", "acuracy"}});
  std::vector<metadata> reports;
  for (trainer_id t = 0; t < 2; ++t) {
    metadata m;
    m.trainer = t;
    m.name = "t" + std::to_string(t);
    m.step = 1;
    m.loss = t == 0 ? 0.5 : nan_value;
    m.accuracy = 0.9;
    m.numbers["eval_loss"] = 0.4;
    reports.push_back(m);
  }
  policy_input in;
  in.reports = reports;
  in.history = reports;
  random_stream rng(1, "policy", 0);
  const auto decisions = halving->decide(in, rng);
  REQUIRE(decisions.size() == 2);
  CHECK(decisions.at(0).reason ==
        "stopped by policy: t0 is never promoted: it reports no number \"acuracy\", only accuracy, epoch, "
        "eval_loss, grad_norm, loss, step");
  CHECK(decisions.at(1).reason == "stopped by policy: t1 is never promoted: its loss is not finite");
}

TEST_CASE("a policy of halving says what it needs of the experiment") {
  const auto faults_of = [](const std::string& sync, const std::string& type, const std::string& more = "") {
    const auto policies = builtin_policies();
    experiment_checkers with;
    with.policies = &policies;
    auto x = parse_experiment(R"({"trainers": [{"workload": {"type": "idle"}, "stop_step": 9}], "sync": )" +
                                  sync + more + R"(, "policy": {"type": ")" + type + R"("}})",
                              with);
    std::string out;
    if (auto* faults = std::get_if<std::vector<error>>(&x))
      for (const auto& f : *faults)
        out += f.text + "\n";
    return out;
  };
  CHECK(faults_of(R"({"at_steps": [1, 3]})", "halving") == "");
  CHECK(faults_of(R"({"at_steps": [1, 3], "asynchronous": true})", "asha") == "");
  CHECK(faults_of(R"({"at_steps": [1, 3]})", "asha").starts_with("/sync/asynchronous: must be true"));
  CHECK(faults_of(R"({"at_steps": [1, 3], "asynchronous": true})", "halving")
            .starts_with("/sync/asynchronous: cannot"));
  CHECK(faults_of(R"({"every_seconds": 1})", "halving").starts_with("/sync/every_seconds: cannot be used"));
  CHECK(faults_of(R"({"at_steps": [1], "quorum": 0.5})", "halving")
            .starts_with("/sync/stragglers: cannot leave"));
  CHECK(faults_of(R"({"at_steps": [1]})", "halving", R"(, "failures": {"refill": true})")
            .starts_with("/failures/refill"));
  CHECK(faults_of("{}", "halving").starts_with("/policy: 'halving' decides at sync points"));
}

TEST_CASE("rungs can be given by their first step and a factor") {
  const auto steps_of = [](const std::string& sync) {
    auto x = parse_experiment(
        R"({"trainers": [{"workload": {"type": "idle"}, "stop_step": 100}], "sync": )" + sync + "}", {});
    auto* faults = std::get_if<std::vector<error>>(&x);
    return faults ? std::pair(std::vector<std::uint64_t>{}, faults->front().text)
                  : std::pair(std::get<experiment>(x).sync.schedule.at_steps, std::string{});
  };
  CHECK(steps_of(R"({"geometric": {"first": 10, "count": 3}})").first ==
        std::vector<std::uint64_t>{10, 30, 90});
  CHECK(steps_of(R"({"geometric": {"first": 5, "factor": 4, "count": 2}, "at_steps": [5, 7]})").first ==
        std::vector<std::uint64_t>{5, 7, 20});
  CHECK(steps_of(R"({"geometric": {"first": 1, "factor": 2}})").first.size() == 54);
  CHECK(steps_of(R"({"geometric": {"first": 1125899906842624, "factor": 65536}})").first ==
        std::vector<std::uint64_t>{1125899906842624}); // times the factor it would be 0 in 64 bits
  CHECK(steps_of(R"({"geometric": {"factor": 2}})").second ==
        "/sync/geometric/first: is missing: the step of the first sync point");
  CHECK(steps_of(R"({"geometric": {"first": 1, "factor": 1}})").second.starts_with("/sync/geometric/factor"));
  CHECK(steps_of(R"({"geometric": {"first": 1}, "every_seconds": 1})")
            .second.starts_with("/sync/every_seconds: cannot"));
}
