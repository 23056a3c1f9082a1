#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "troupe/core/policy.hpp"

using namespace troupe::core;
using json = nlohmann::json;

namespace {

search_space space_of(const char* text) {
  return std::get<search_space>(search_space::from_json(json::parse(text), ""));
}

const char* lr_and_list = R"({"lr": {"type": "log_uniform", "low": 0.001, "high": 1},
                              "act": {"type": "choice", "values": ["relu", "tanh", "gelu"]}})";

std::unique_ptr<policy> make(const std::string& type, const search_space& space,
                             const json& options = json::object()) {
  std::vector<std::string> names;
  for (int i = 0; i < 16; ++i)
    names.push_back("t" + std::to_string(i));
  std::vector<error> faults;
  auto out = builtin_policies().make(type, options, space, names, "/policy", faults);
  for (const auto& f : faults)
    FAIL(f.text);
  return out;
}

/// A metric that grows by so much a sync point: most where lr is 0.1, and where that is drifts if asked for.
struct population {
  std::vector<metadata> now, history;
  double drift = 0;
  std::vector<double> explored; ///< learning rates, in order
  std::set<trainer_id> copied;  ///< who took weights in the newest round
  std::function<double(const metadata&)> gain_of;

  explicit population(std::size_t n, std::uint64_t seed) {
    random_stream rng(seed, "population");
    const auto space = space_of(lr_and_list);
    for (std::size_t i = 0; i < n; ++i) {
      metadata m;
      m.trainer = static_cast<trainer_id>(i);
      m.name = "t" + std::to_string(i);
      m.loss = 1;
      m.accuracy = 0;
      m.hp = space.sample(rng);
      now.push_back(m);
    }
  }

  double gain(const metadata& m) const {
    if (gain_of)
      return gain_of(m);
    const double at = std::log10(*m.hp.number("lr", 0)) + 1 + drift * m.sync;
    return std::exp(-2 * at * at);
  }

  void round(const policy& p, sync_index k, std::uint64_t seed,
             std::function<std::string_view(trainer_id)> signature = nullptr) {
    for (auto& m : now) {
      m.sync = k;
      m.step = 100 * (k + 1);
      m.accuracy += gain(m);
      history.push_back(m);
    }
    policy_input in;
    in.index = k;
    in.reports = now;
    in.history = history;
    in.signature = std::move(signature);
    copied.clear();
    random_stream rng(seed, "policy", k);
    const auto reports = now;
    for (const auto& [t, d] : p.decide(in, rng)) {
      if (d.copy_from)
        now[t].accuracy = reports[*d.copy_from].accuracy;
      now[t].hp.update(d.changes);
      if (!d.copy_from)
        continue;
      copied.insert(t);
      explored.push_back(*now[t].hp.number("lr", 0));
    }
  }
  double best() const {
    double x = 0;
    for (const auto& m : now)
      x = std::max(x, m.accuracy);
    return x;
  }
};

} // namespace

TEST_CASE("pb2 comes to explore where most is gained") {
  const auto space = space_of(lr_and_list);
  const auto p = make("pb2", space);
  double off = 0;
  std::size_t n = 0;
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    population x(8, seed);
    for (sync_index k = 0; k < 12; ++k)
      x.round(*p, k, seed);
    REQUIRE(x.explored.size() > 12);
    for (std::size_t i = x.explored.size() / 2; i < x.explored.size(); ++i, ++n)
      off += std::abs(std::log10(x.explored[i]) + 1);
    for (const auto lr : x.explored) {
      CHECK(lr >= 0.001);
      CHECK(lr <= 1);
    }
  }
  // Draws from the whole space are off by 0.83 decades on average.
  CHECK(off / static_cast<double>(n) < 0.5);
}

TEST_CASE("pb2 gains more than population based training from few trainers") {
  const auto space = space_of(lr_and_list);
  const auto pb2 = make("pb2", space), pbt = make("pbt", space);
  double with_model = 0, without = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    population a(4, seed), b(4, seed);
    for (sync_index k = 0; k < 10; ++k) {
      a.round(*pb2, k, seed);
      b.round(*pbt, k, seed);
    }
    with_model += a.best();
    without += b.best();
  }
  CHECK(with_model > without);
}

TEST_CASE("pb2 reckons gains among trainers of one signature alone") {
  const auto space = space_of(lr_and_list);
  const auto p = make("pb2", space);
  double off = 0;
  std::size_t n = 0;
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    population x(16, seed);
    for (auto& m : x.now)
      m.accuracy = m.trainer % 2 == 1 ? 1000 : 0; // another task, whose numbers are larger
    for (sync_index k = 0; k < 12; ++k)
      x.round(*p, k, seed, [](trainer_id t) -> std::string_view { return t % 2 == 1 ? "odd" : "even"; });
    REQUIRE(x.explored.size() > 24);
    for (std::size_t i = x.explored.size() / 2; i < x.explored.size(); ++i, ++n)
      off += std::abs(std::log10(x.explored[i]) + 1);
  }
  CHECK(off / static_cast<double>(n) < 0.4);
}

TEST_CASE("pb2 takes no jump to better weights for the gain of settings that it chose once more") {
  // Where only 2 gains anything, whoever is replaced and draws 1 or 3 again has won much, but by its new weights.
  const auto space = space_of(R"({"width": {"type": "choice", "values": [1, 2, 3], "ordered": true}})");
  const auto p = make("pb2", space);
  std::size_t wrong = 0;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    population x(8, seed);
    random_stream rng(seed, "widths");
    for (auto& m : x.now)
      m.hp = space.sample(rng);
    x.gain_of = [](const metadata& m) { return *m.hp.integer("width", 0) == 2 ? 1.0 : 0.0; };
    for (sync_index k = 0; k < 12; ++k) {
      x.round(*p, k, seed);
      for (const auto t : x.copied)
        wrong += k >= 2 && *x.now[t].hp.integer("width", 0) != 2;
    }
  }
  CHECK(wrong < 25); // 38 where such a jump counts
}

TEST_CASE("pb2 is a function of the history and the random numbers alone") {
  const auto space = space_of(lr_and_list);
  population a(6, 1), b(6, 1), c(6, 1);
  for (sync_index k = 0; k < 8; ++k) {
    a.round(*make("pb2", space), k, 1);
    b.round(*make("pb2", space), k, 1);
    c.round(*make("pb2", space), k, 2);
  }
  CHECK(a.explored == b.explored);
  CHECK(a.explored != c.explored);
}

TEST_CASE("pb2 moves lists without an order as population based training does and never gives NaN a part") {
  const auto space = space_of(lr_and_list);
  const auto p = make("pb2", space);
  population x(8, 3);
  std::map<std::string, int> acts;
  for (sync_index k = 0; k < 12; ++k) {
    x.now[5].accuracy = std::numeric_limits<double>::quiet_NaN();
    x.round(*p, k, 3);
    for (const auto& m : x.now)
      ++acts[*m.hp.text("act", "")];
  }
  CHECK(acts.size() == 3);
  for (const auto& m : x.now)
    CHECK(space.check(m.hp, "").empty());
}

TEST_CASE("pb2 looks elsewhere for the second that explores at a sync point") {
  const auto space = space_of(R"({"lr": {"type": "uniform", "low": 0, "high": 1}})");
  const auto p = make("pb2", space, {{"quantile", 0.5}});
  std::vector<metadata> now, history;
  for (sync_index k = 0; k < 2; ++k) {
    now.clear();
    for (trainer_id t = 0; t < 8; ++t) {
      metadata m;
      m.trainer = t;
      m.name = "t" + std::to_string(t);
      m.sync = k;
      m.step = 100 * (k + 1);
      m.loss = 1;
      m.hp.set("lr", 0.4 + 0.02 * t);
      m.accuracy = 0.1 * (k + 1) + 0.001 * t;
      now.push_back(m);
      history.push_back(m);
    }
  }
  policy_input in;
  in.index = 1;
  in.reports = now;
  in.history = history;
  random_stream rng(1, "policy");
  std::vector<double> lrs;
  for (const auto& [t, d] : p->decide(in, rng))
    if (d.copy_from)
      lrs.push_back(*d.changes.number("lr", -1));
  REQUIRE(lrs.size() == 4);
  std::sort(lrs.begin(), lrs.end());
  CHECK(lrs.back() - lrs.front() > 0.3);
}

TEST_CASE("wrong options of pb2 are refused with the key") {
  const auto fault = [](const char* options, const search_space& space) {
    std::vector<error> faults;
    CHECK(builtin_policies().make("pb2", json::parse(options), space, {}, "/policy", faults) == nullptr);
    return faults.empty() ? "" : faults.front().text;
  };
  CHECK(fault(R"({"factor": 1.2})", space_of(lr_and_list)).starts_with("/policy/factor: "));
  CHECK(fault(R"({"max_points": 3})", space_of(lr_and_list)).starts_with("/policy/max_points: "));
  CHECK(fault(R"({"candidates": 0})", space_of(lr_and_list)).starts_with("/policy/candidates: "));
  CHECK(fault("{}", {}).starts_with("/policy: population based bandits need"));
  CHECK(fault("{}", space_of(R"({"a": {"type": "choice", "values": [1, 2]}})"))
            .starts_with("/policy: population based bandits need"));
}
