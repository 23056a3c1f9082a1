// Workloads of equal models that run as one, through the slot's worker.
#include <algorithm>
#include <array>
#include <future>
#include <set>

#include <doctest/doctest.h>

#include "gpu/cuda_emulation.hpp"
#include "gpu/model_support.hpp"
#include "kernel_table.hpp"
#include "troupe/core/random.hpp"
#include "troupe/gpu/model_workload.hpp"
#include "troupe/gpu/slot_worker.hpp"

using namespace troupe;
using namespace troupe::gpu;
using namespace model_test;

namespace {

using nlohmann::json;

core::hyperparameters some_hp(std::size_t i) {
  core::hyperparameters hp{{"lr", 0.01 * static_cast<double>(1 + i % 4)}};
  if (i % 3 == 0)
    hp.set("dropout", 0.1);
  if (i % 4 == 1)
    hp.set("clip_norm", 0.5);
  if (i % 5 == 2)
    hp.set("momentum", 0.5);
  return hp;
}

/// A slot, and trainers on it as the actors would drive them.
struct slot {
  slot_worker worker;
  workload_registry registry = builtin_workloads();

  explicit slot(bool emulated = false, std::uint64_t budget = 0, std::uint64_t pinned = 0) : worker(options(budget, pinned)) {
    if (emulated)
      task([](context& ctx) { internal::kernel_override::use(ctx, cuda_emulation::table()); });
  }
  static slot_options options(std::uint64_t budget, std::uint64_t pinned) {
    auto o = cpu_slot();
    o.memory_budget = budget;
    o.pinned_budget = pinned;
    return o;
  }

  void task(const slot_worker::task& t) {
    std::promise<core::result<void>> p;
    worker.post(t, [&](core::result<void> r) { p.set_value(std::move(r)); });
    if (auto r = p.get_future().get(); !r)
      throw std::runtime_error(r.error().text);
  }
  std::shared_ptr<hosted> build(const std::string& type, const json& options, std::size_t i, bool fuse = true) {
    auto out = std::make_shared<hosted>();
    task([&](context& ctx) {
      auto made = registry.make(ctx, type, {"t" + std::to_string(i), 40 + i, &options, some_hp(i), fuse});
      if (!made)
        throw std::runtime_error(made.error().text);
      out->work = std::move(*made);
    });
    return out;
  }
  std::future<run_outcome> start(const std::shared_ptr<hosted>& who, std::uint64_t steps) {
    auto p = std::make_shared<std::promise<run_outcome>>();
    worker.run(who, steps, [p](run_outcome o) { p->set_value(std::move(o)); });
    return p->get_future();
  }
  core::checkpoint saved(hosted& who) {
    core::checkpoint out;
    task([&](context& ctx) { who.work->save(ctx, out); });
    return out;
  }
  void drop(std::shared_ptr<hosted>& who) {
    task([&](context&) { who->work.reset(); });
    who.reset();
  }
};

bool near(const core::checkpoint& a, const core::checkpoint& b, double tolerance) {
  for (const auto& t : a.tensors()) {
    if (t.type != core::dtype::f32) {
      if (!(*b.find(t.name) == t))
        return false;
      continue;
    }
    const auto x = t.as<float>(), y = b.find(t.name)->as<float>();
    double top = 1e-3, off = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      top = std::max(top, std::abs(static_cast<double>(x[i])));
      off = std::max(off, std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i])));
    }
    if (!(off <= tolerance * top))
      return false;
  }
  return true;
}

/// Trainers that run, are interrupted, get other hyperparameters, copy each other, come and go; then each again alone, with as
/// many steps between as it had.
void same_as_alone(const std::string& type, const json& options, bool emulated, int actions, double tolerance) {
  CAPTURE(options.dump());
  struct act {
    std::uint64_t steps = 0;
    core::hyperparameters push;
    std::shared_ptr<core::checkpoint> load;
  };
  struct trainer {
    std::size_t number;
    std::shared_ptr<hosted> who;
    std::vector<act> past;
    std::future<run_outcome> run;
    std::uint64_t steps = 0;
  };
  slot s(emulated);
  core::random_stream rng(static_cast<std::uint64_t>(actions), "fusion");
  const auto any = [&](std::size_t n) { return static_cast<std::size_t>(rng.uniform(0, 1) * static_cast<double>(n)) % n; };
  std::vector<trainer> all;
  std::size_t born = 0;
  std::vector<std::tuple<std::size_t, std::vector<act>, core::checkpoint, double>> ends;
  const auto stop = [&](trainer& t) {
    if (!t.run.valid())
      return;
    s.worker.interrupt(t.who);
    const auto o = t.run.get();
    REQUIRE(o.failure.text.empty());
    t.past.push_back({o.steps, {}, nullptr});
    t.steps += o.steps;
  };
  const auto end = [&](trainer& t) {
    stop(t);
    CHECK(t.who->progress == t.steps);
    CHECK(t.who->loss_count == t.steps);
    ends.emplace_back(t.number, t.past, s.saved(*t.who), t.who->loss_sum);
    s.drop(t.who);
  };
  for (int i = 0; i < actions; ++i) {
    const auto what = rng.uniform(0, 1);
    if (all.size() < 3 || (what < 0.2 && all.size() < 8)) {
      all.push_back({born, s.build(type, options, born), {}, {}});
      ++born;
      all.back().run = s.start(all.back().who, 1'000'000);
      continue;
    }
    auto& t = all[any(all.size())];
    stop(t);
    if (what < 0.35) {
      end(t);
      all.erase(all.begin() + (&t - all.data()));
      continue;
    }
    if (what < 0.6) {
      t.past.push_back({0, some_hp(any(60)), nullptr});
      s.task([&](context& ctx) { t.who->work->set(ctx, t.past.back().push); });
    } else if (what < 0.8) {
      auto& from = all[any(all.size())]; // may be running
      t.past.push_back({0, {}, std::make_shared<core::checkpoint>(s.saved(*from.who))});
      s.task([&](context& ctx) { t.who->work->load(ctx, *t.past.back().load, workload::load_mode::model); });
    }
    t.run = s.start(t.who, what < 0.9 ? 1'000'000 : 1 + any(50));
    if (what >= 0.9) {
      const auto o = t.run.get();
      t.past.push_back({o.steps, {}, nullptr});
      t.steps += o.steps;
      t.run = s.start(t.who, 1'000'000);
    }
  }
  // All at once for a while, whatever happened so far.
  for (auto& t : all)
    stop(t);
  std::promise<void> go;
  s.worker.post([f = go.get_future().share()](context&) { f.wait(); }, nullptr);
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i].run = s.start(all[i].who, 5 + i);
  go.set_value();
  for (auto& t : all) {
    const auto o = t.run.get();
    t.past.push_back({o.steps, {}, nullptr});
    t.steps += o.steps;
  }
  for (auto& t : all)
    end(t);
  CHECK(s.worker.snapshot().fused_slices > 0);
  slot alone(emulated);
  for (const auto& [number, past, state, sum] : ends) {
    auto who = alone.build(type, options, number);
    for (const auto& a : past) {
      if (a.steps > 0)
        CHECK(alone.start(who, a.steps).get().steps == a.steps);
      alone.task([&](context& ctx) {
        if (!a.push.empty())
          who->work->set(ctx, a.push);
        if (a.load)
          who->work->load(ctx, *a.load, workload::load_mode::model);
      });
    }
    if (tolerance == 0) {
      CHECK(core::content_hash(alone.saved(*who)) == core::content_hash(state));
      CHECK(who->loss_sum == sum);
    } else {
      CHECK(near(alone.saved(*who), state, tolerance));
      CHECK(who->loss_sum == doctest::Approx(sum).epsilon(1e-3));
    }
    alone.drop(who);
  }
}

json with(json base, const json& changes) {
  base.update(changes);
  return base;
}

} // namespace

TEST_CASE("trainers that run as one and come and go end as each would alone bit for bit") {
  same_as_alone("mlp", small_mlp(), false, 60, 0);
  same_as_alone("mlp", with(small_mlp(), {{"norm", "batch"}, {"precision", "bf16"}}), false, 40, 0);
  same_as_alone("cnn", small_cnn(), false, 30, 0);
  same_as_alone("transformer", with(small_transformer(), {{"optimizer", "sgd"}}), false, 24, 0);
}

TEST_CASE("every member runs as one and a loss that is not finite fails its own alone") {
  for (const bool emulated : {false, true}) {
    if (emulated && !cuda_emulation::available)
      continue;
    slot s(emulated);
    std::vector<std::shared_ptr<hosted>> who;
    for (std::size_t i = 0; i < 5; ++i)
      who.push_back(s.build("mlp", small_mlp(), i));
    s.task([&](context& ctx) { who[2]->work->set(ctx, {{"lr", 1e6}, {"clip_norm", 0.0}}); });
    std::promise<void> go;
    s.worker.post([f = go.get_future().share()](context&) { f.wait(); }, nullptr);
    std::vector<std::future<run_outcome>> runs;
    const std::uint64_t n = emulated ? 12 : 200;
    for (auto& w : who)
      runs.push_back(s.start(w, n));
    go.set_value();
    std::vector<run_outcome> out;
    for (auto& r : runs)
      out.push_back(r.get());
    CHECK(mentions(out[2].failure.text, "the loss is not finite at step "));
    CHECK_FALSE(out[2].device_lost);
    const auto c = s.worker.snapshot();
    CHECK(c.fused_members >= 2 * c.fused_slices);
    CHECK(c.fused_slices > 0);
    slot alone(emulated);
    for (const std::size_t i : {0, 1, 3, 4}) {
      CAPTURE(i);
      CHECK(out[i].failure.text.empty());
      CHECK(out[i].steps == n);
      auto a = alone.build("mlp", small_mlp(), i);
      CHECK(alone.start(a, n).get().steps == n);
      if (emulated)
        CHECK(near(alone.saved(*a), s.saved(*who[i]), 1e-3));
      else
        CHECK(core::content_hash(alone.saved(*a)) == core::content_hash(s.saved(*who[i])));
      alone.drop(a);
    }
    for (auto& w : who)
      s.drop(w);
    CHECK(s.worker.snapshot().memory_used == 0);
  }
}

#if !defined(__SANITIZE_THREAD__) // which does not know coroutines
TEST_CASE("on an emulated GPU trainers that run as one end as each would alone within rounding") {
  auto tiny = small_mlp();
  tiny["hidden"] = {12};
  same_as_alone("mlp", tiny, true, 14, 1e-3);
  auto reader = small_transformer();
  reader["data"] = {{"type", "synthetic_text"}, {"classes", 2}, {"vocabulary", 6}, {"length", 4}, {"train", 32}, {"test", 8}};
  reader["optimizer"] = "sgd";
  reader["batch"] = 4;
  reader["width"] = reader["hidden"] = 8;
  same_as_alone("transformer", reader, true, 8, 1e-3);
}
#endif

TEST_CASE("those that ran as one are measured as each would be alone and anew when they have changed") {
  auto tiny = small_mlp();
  tiny["hidden"] = {12};
  for (const bool emulated : {false, true}) {
    if (emulated && !cuda_emulation::available)
      continue;
    CAPTURE(emulated);
    slot s(emulated), alone(emulated);
    const auto measure = [](slot& on, hosted& who) {
      evaluation out;
      on.task([&](context& ctx) { out = who.work->evaluate(ctx); });
      return out;
    };
    const auto same = [&](const evaluation& x, const evaluation& y) {
      if (!emulated)
        return x.accuracy == y.accuracy && x.grad_norm == y.grad_norm && x.numbers == y.numbers && x.samples == y.samples;
      return std::abs(x.accuracy - y.accuracy) < 0.02 && std::abs(x.grad_norm - y.grad_norm) < 1e-2 * (0.1 + y.grad_norm)
             && std::abs(x.numbers.at("eval_loss") - y.numbers.at("eval_loss")) < 1e-3 && x.samples == y.samples;
    };
    std::vector<std::shared_ptr<hosted>> who;
    for (std::size_t i = 0; i < 4; ++i)
      who.push_back(s.build("mlp", tiny, i));
    std::vector<std::future<run_outcome>> runs;
    for (auto& w : who)
      runs.push_back(s.start(w, 15));
    for (auto& r : runs)
      CHECK(r.get().steps == 15);
    for (std::size_t i = 0; i < 4; ++i) {
      auto a = alone.build("mlp", tiny, i);
      CHECK(alone.start(a, 15).get().steps == 15);
      CHECK(same(measure(s, *who[i]), measure(alone, *a)));
      alone.drop(a);
    }
    const auto before = measure(s, *who[0]), other = measure(s, *who[1]);
    CHECK_FALSE(before.numbers == other.numbers);
    const auto state = s.saved(*who[1]);
    s.task([&](context& ctx) { who[0]->work->load(ctx, state, workload::load_mode::model); });
    CHECK(same(measure(s, *who[1]), other));
    CHECK(measure(s, *who[0]).numbers.at("eval_loss") == doctest::Approx(other.numbers.at("eval_loss")).epsilon(1e-4));
    CHECK(s.start(who[1], 5).get().steps == 5);
    CHECK_FALSE(measure(s, *who[1]).numbers == other.numbers);
    s.drop(who[1]);
    CHECK(measure(s, *who[2]).samples == 15 * 16);
    for (auto* w : {&who[0], &who[2], &who[3]})
      s.drop(*w);
  }
}

TEST_CASE("only equal models on the same slot run as one and none that shall not") {
  slot s;
  const auto base = small_mlp();
  const auto group_of = [](const std::shared_ptr<hosted>& x) { return x->work->fused_with(); };
  auto a = s.build("mlp", base, 0), b = s.build("mlp", base, 1), lone = s.build("mlp", base, 2, false);
  CHECK(group_of(a) != nullptr);
  CHECK(group_of(a) == group_of(b));
  CHECK(group_of(lone) != group_of(a));
  std::set<fusion*> groups{group_of(a), group_of(lone)};
  std::vector<std::shared_ptr<hosted>> others;
  for (const json& change : {json{{"batch", 8}}, json{{"precision", "bf16"}}, json{{"optimizer", "adamw"}}, json{{"hidden", {24}}},
                             json{{"norm", "layer"}}, json{{"data", {{"type", "synthetic"}, {"classes", 4}, {"features", 16}}}}}) {
    others.push_back(s.build("mlp", with(base, change), 3));
    CHECK(groups.insert(group_of(others.back())).second);
  }
  slot elsewhere;
  auto c = elsewhere.build("mlp", base, 0);
  CHECK(group_of(c) != group_of(a));
  elsewhere.drop(c);
  // A group goes with its last member.
  const auto before = s.worker.snapshot().memory_used;
  for (auto& o : others)
    s.drop(o);
  s.drop(lone);
  s.drop(a);
  s.drop(b);
  CHECK(before > 0);
  CHECK(s.worker.snapshot().memory_used == 0);
}

TEST_CASE("a group that has no room to grow takes its states in turns and without pinned memory for them refuses the next") {
  // On a GPU growing needs the old and the new memory at once.
  const auto used = [](std::size_t n, std::uint64_t budget, std::uint64_t pinned = 0) {
    slot s(true, budget, pinned);
    std::vector<std::shared_ptr<hosted>> who;
    std::set<fusion*> groups;
    for (std::size_t i = 0; i < n; ++i) {
      who.push_back(s.build("mlp", small_mlp(), i));
      groups.insert(who.back()->work->fused_with());
    }
    const auto c = s.worker.snapshot();
    for (auto& w : who)
      s.drop(w);
    return std::pair{c, groups.size()};
  };
  const auto [one, one_group] = used(1, 0);
  const auto [five, five_groups] = used(5, 0);
  CHECK(one_group == 1);
  CHECK(five_groups == 1);
  REQUIRE(five.memory_peak > one.memory_used * 6);
  const auto [tight, tight_groups] = used(5, one.memory_used * 6);
  CHECK(tight_groups == 1);
  CHECK(tight.memory_peak <= one.memory_used * 6);
  const auto refused = thrown_text([&] { used(64, one.memory_used * 3, 1); });
  CHECK(mentions(refused, "bytes of the slot's memory budget are in use"));
}

TEST_CASE("workloads of a group may be dropped on another thread or after their slot") {
  auto s = std::make_unique<slot>();
  auto a = s->build("mlp", small_mlp(), 0), b = s->build("mlp", small_mlp(), 1), c = s->build("mlp", small_mlp(), 2);
  CHECK(s->start(a, 3).get().steps == 3);
  b->work.reset(); // here, though the slot lives: its place is lost to the group, nothing else
  CHECK(s->start(a, 3).get().steps == 3);
  s.reset();
  a.reset();
  c.reset();
}

TEST_CASE("a trainer whose turn is behind those of others that end and begin again has its turn too") {
  slot s;
  std::vector<std::shared_ptr<hosted>> who;
  for (std::size_t i = 0; i < 4; ++i) {
    who.push_back(s.build("mlp", small_mlp(), i));
    // Another momentum each, so that each has a turn of its own.
    s.task([&](context& ctx) { who[i]->work->set(ctx, {{"momentum", 0.1 * static_cast<double>(i)}, {"clip_norm", 0.0}, {"dropout", 0.0}}); });
  }
  std::promise<void> go;
  s.worker.post([f = go.get_future().share()](context&) { f.wait(); }, nullptr);
  auto busy = s.start(who[0], 1'000'000);
  // Two that take turns in being there: who ends lets the other begin.
  int rounds = 0;
  std::promise<void> all_done;
  std::function<void(std::size_t)> begin = [&](std::size_t i) {
    s.worker.run(who[i], 1, [&, i](run_outcome) { ++rounds < 50 ? begin(3 - i) : all_done.set_value(); });
  };
  begin(1);
  int before_it = 0;
  std::promise<void> had_turn;
  s.worker.run(who[3], 1, [&](run_outcome) {
    before_it = rounds;
    had_turn.set_value();
  });
  go.set_value();
  had_turn.get_future().wait();
  all_done.get_future().wait();
  s.worker.interrupt(who[0]);
  CHECK(busy.get().interrupted);
  CHECK(before_it < 5);
  for (auto& w : who)
    s.drop(w);
}

namespace {

/// A user's model: one matrix and a bias, softmax regression.
class linear final : public model {
public:
  linear(context& ctx, std::int64_t features, std::int64_t classes, std::int64_t lanes, std::int64_t rows)
    : model(ctx, plan(features, classes), lanes, rows), features_(features), classes_(classes), input_(take<float>(rows * features)),
      logits_(take<float>(rows * classes)), error_(take<float>(rows * classes)), labels_(take<std::int32_t>(rows)) {
  }

  void load_input(const data_source& data, const member_counters* counters, std::int64_t offset, std::int64_t rows) override {
    gather(ctx(), members(), data, counters, offset, input_.view(rows, features_), labels_.flat(rows));
  }
  void forward(const pass& p) override {
    gemm(ctx(), members(), false, false, 1, input_.view(p.rows, features_), weight(), 0, logits_.view(p.rows, classes_));
  }
  void loss(const pass& p) override {
    softmax_cross_entropy<float>(ctx(), members(), logits_.view(p.rows, classes_), bias(), labels_.flat(p.rows), p.params, {}, {},
                                 p.counters, p.active);
  }
  void backward(const pass& p, const gradient_target& to) override {
    const auto d = error_.view(p.rows, classes_);
    softmax_cross_entropy(ctx(), members(), logits_.view(p.rows, classes_), bias(), labels_.flat(p.rows), p.params, d,
                          vec<float>{to.vectors + layout().matrix_size, classes_, to.vector_stride}, p.counters, p.active);
    gemm(ctx(), members(), true, false, 1, input_.view(p.rows, features_), d, to.product_scale,
         mat<float>{to.products, features_, classes_, classes_, to.product_stride});
  }

private:
  static model_layout plan(std::int64_t features, std::int64_t classes) {
    model_layout l;
    l.add_matrix("w", {features, classes}, features);
    l.add_vector("b", classes, 0);
    return l;
  }
  mat<const float> weight() const { return {state().weights, features_, classes_, classes_, state().stride}; }
  vec<const float> bias() const { return {state().weights + layout().matrix_size, classes_, state().stride}; }

  std::int64_t features_, classes_;
  lane_memory<float> input_, logits_, error_;
  lane_memory<std::int32_t> labels_;
};

} // namespace

TEST_CASE("a model of one's own learns and runs as one with others of its kind") {
  std::vector<core::error> faults;
  const auto host = std::make_shared<const dataset>(make_synthetic(data_spec::from_json(small_data(), "", faults)));
  auto cache = std::make_shared<data_cache>();
  for (const bool emulated : {false, true}) {
    if (emulated && !cuda_emulation::available)
      continue;
    slot s(emulated), alone;
    for (auto* x : {&s, &alone})
      x->registry.add("linear", [host, cache](context& ctx, const workload_config& cfg) {
        trained_model what;
        what.kind = "linear";
        what.architecture = "16-4";
        what.how.make = [](context& c, std::int64_t lanes, std::int64_t rows) {
          return std::make_unique<linear>(c, 16, 4, lanes, rows);
        };
        what.how.batch = 16;
        what.how.data = cache->resident(ctx, host);
        return make_model_workload(ctx, cfg, std::move(what));
      });
    const json none = json::object();
    std::vector<std::shared_ptr<hosted>> who;
    std::vector<std::future<run_outcome>> runs;
    const std::uint64_t n = emulated ? 40 : 150;
    for (std::size_t i = 0; i < 3; ++i)
      who.push_back(s.build("linear", none, i));
    CHECK(who[0]->work->fused_with() == who[1]->work->fused_with());
    CHECK(who[0]->work->signature() == "linear 16-4 on synthetic with sgd");
    for (auto& w : who)
      runs.push_back(s.start(w, n));
    for (auto& r : runs)
      CHECK(r.get().steps == n);
    auto a = alone.build("linear", none, 1);
    CHECK(alone.start(a, n).get().steps == n);
    CHECK(near(alone.saved(*a), s.saved(*who[1]), emulated ? 1e-3 : 0));
    double accuracy = 0;
    s.task([&](context& ctx) { accuracy = who[1]->work->evaluate(ctx).accuracy; });
    CHECK(accuracy > 0.7);
    alone.drop(a);
    for (auto& w : who)
      s.drop(w);
  }
}
