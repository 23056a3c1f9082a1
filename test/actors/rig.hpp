#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "troupe/actors/node_agent.hpp"
#include "troupe/gpu/context.hpp"
#include "troupe/gpu/device.hpp"
#include "troupe/gpu/slot_worker.hpp"

/// A process with slots under test: a system, an agent, a workload whose steps the test can hold, and a log of all facts.
namespace rig {

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;

/// Everything that trainers and nodes report, in the order of arrival. A test waits for facts, never for time.
class fact_log {
public:
  using fact = std::variant<trainer_up, sync_report, state_exported, decision_applied, trainer_paused, trainer_resumed, push_ack,
                            trainer_moved, trainer_finished, trainer_failed, node_up, slot_lost>;

  void add(fact x) {
    std::lock_guard lock(mutex_);
    facts_.push_back(std::move(x));
    arrived_.notify_all();
  }

  /// Takes the first fact of this type (from this trainer); throws if none comes within 20 s.
  template <class T>
  T next(std::optional<std::uint32_t> trainer = std::nullopt) {
    std::unique_lock lock(mutex_);
    std::optional<T> out;
    const auto found = [&] {
      for (auto i = facts_.begin(); i != facts_.end(); ++i)
        if (const auto* x = std::get_if<T>(&*i); x && is_from(*x, trainer)) {
          out = *x;
          facts_.erase(i);
          return true;
        }
      return false;
    };
    if (!arrived_.wait_for(lock, 20s, found))
      throw std::runtime_error{std::string{"no fact came: "} + typeid(T).name()};
    return *out;
  }

  template <class T>
  std::size_t count() {
    std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(
        std::count_if(facts_.begin(), facts_.end(), [](const fact& x) { return std::holds_alternative<T>(x); }));
  }

private:
  template <class T>
  static bool is_from(const T& x, std::optional<std::uint32_t> trainer) {
    if constexpr (requires { x.from; })
      return !trainer || x.from.trainer == *trainer;
    else
      return true;
  }
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<fact> facts_;
};

inline trainer_observer spawn_observer(caf::actor_system& sys, std::shared_ptr<fact_log> log) {
  return sys.spawn([log](trainer_observer::pointer) -> trainer_observer::behavior_type {
    return {[log](const trainer_up& x) { log->add(x); },       [log](const sync_report& x) { log->add(x); },
            [log](const state_exported& x) { log->add(x); },   [log](const decision_applied& x) { log->add(x); },
            [log](const trainer_paused& x) { log->add(x); },   [log](const trainer_resumed& x) { log->add(x); },
            [log](const push_ack& x) { log->add(x); },         [log](const trainer_moved& x) { log->add(x); },    [log](const trainer_finished& x) { log->add(x); },
            [log](const trainer_failed& x) { log->add(x); }};
  });
}

inline node_observer spawn_node_observer(caf::actor_system& sys, std::shared_ptr<fact_log> log) {
  return sys.spawn([log](node_observer::pointer) -> node_observer::behavior_type {
    return {[log](const node_up& x) { log->add(x); }, [log](const slot_lost& x) { log->add(x); }};
  });
}

/// Holds the steps of all "sum" workloads: each takes one permit.
class gate {
public:
  void allow(std::uint64_t steps) {
    std::lock_guard lock(mutex_);
    permits_ = steps > ~0ull - permits_ ? ~0ull : permits_ + steps;
    changed_.notify_all();
  }
  void open() { allow(~0ull); }
  void pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return permits_ > 0; });
    if (permits_ != ~0ull)
      --permits_;
    --waiting_;
  }
  /// Until a step waits at the gate.
  void await_waiting() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, 20s, [this] { return waiting_ > 0 && permits_ == 0; }))
      throw std::runtime_error{"no step came to the gate"};
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t permits_ = 0;
  unsigned waiting_ = 0;
};

/// Adds lr * (step + 1) to its one weight: what it has shows which steps it made with which lr. Options: "width" (another
/// architecture), "fail_at", "nan_at" (a step), "refuse" (fails when built), "fail_evaluation", "big" (numbers reported), "keeps".
class sum_workload : public gpu::workload {
public:
  sum_workload(const gpu::workload_config& cfg, std::shared_ptr<gate> g) : gate_(std::move(g)), options_(*cfg.options) {
    if (options_.contains("refuse"))
      throw std::invalid_argument{cfg.name + " cannot be built: " + options_["refuse"].get<std::string>()};
    lr_ = *cfg.hp.number("lr", 1);
    width_ = options_.value("width", 1);
    weights_.resize(static_cast<std::size_t>(width_));
  }
  double step(gpu::context&) override {
    if (gate_)
      gate_->pass();
    if (step_ + 1 == options_.value("fail_at", std::uint64_t{0}))
      throw std::runtime_error{"step " + std::to_string(step_ + 1) + " went wrong"};
    if (step_ + 1 == options_.value("lose_at", std::uint64_t{0}))
      throw gpu::device_error{"cudaLaunchKernel: illegal address", true};
    ++step_;
    for (auto& w : weights_)
      w += lr_ * static_cast<double>(step_);
    if (step_ == options_.value("nan_at", std::uint64_t{0}))
      return std::numeric_limits<double>::quiet_NaN();
    return weights_[0];
  }
  gpu::evaluation evaluate(gpu::context&) override {
    if (options_.contains("fail_evaluation"))
      throw std::runtime_error{"no held-out data"};
    gpu::evaluation out;
    out.accuracy = 0.5;
    out.epoch = static_cast<double>(step_) / 10;
    out.samples = step_ * 4;
    out.numbers["weight"] = weights_[0];
    for (int i = 0; i < options_.value("big", 0); ++i)
      out.numbers["number_with_a_rather_long_name_" + std::to_string(i)] = i;
    return out;
  }
  void save(gpu::context&, core::checkpoint& out) override {
    out.add("weights.sum", core::dtype::f64, {width_}, std::span<const double>{weights_});
    const auto n = static_cast<std::int64_t>(step_);
    out.add("counter", core::dtype::i64, {1}, std::span<const std::int64_t>{&n, 1});
  }
  void load(gpu::context&, const core::checkpoint& in, load_mode mode) override {
    const std::int64_t shape[] = {width_};
    auto w = in.expect("weights.sum", core::dtype::f64, shape);
    if (!w)
      throw std::invalid_argument{w.error().text};
    auto xs = (*w)->as<double>();
    weights_.assign(xs.begin(), xs.end());
    if (const auto* near = dynamic_cast<const near_copy*>(in.attached()))
      weights_ = near->weights;
    if (mode == load_mode::everything)
      step_ = static_cast<std::uint64_t>(in.find("counter")->as<std::int64_t>()[0]);
  }
  /// With the option "keeps": stands for a copy in device memory, and `load` takes it.
  struct near_copy : core::checkpoint::attachment {
    std::vector<double> weights;
  };
  std::shared_ptr<const core::checkpoint::attachment> keep_on_device(gpu::context&) override {
    if (!options_.contains("keeps"))
      return nullptr;
    auto out = std::make_shared<near_copy>();
    out->weights.assign(weights_.size(), 1e6); // to be told from those of the checkpoint
    return out;
  }
  core::result<void> check(const core::hyperparameters& changes) const override {
    for (const auto& [key, what] : changes)
      if (key != "lr")
        return core::error{core::errc::invalid_argument, "there is no hyperparameter \"" + key + "\""};
    auto lr = changes.number("lr", 1);
    if (!lr)
      return lr.error();
    if (*lr < 0)
      return core::error{core::errc::invalid_argument, "lr must not be negative"};
    return {};
  }
  void set(gpu::context&, const core::hyperparameters& changes) override { lr_ = *changes.number("lr", lr_); }
  std::string signature() const override { return "sum/" + std::to_string(width_); }
  std::uint64_t memory_bytes() const override { return weights_.size() * sizeof(double); }

private:
  std::shared_ptr<gate> gate_;
  nlohmann::json options_;
  double lr_ = 1;
  std::int64_t width_ = 1;
  std::uint64_t step_ = 0;
  std::vector<double> weights_;
};

/// One process. Members are in the order in which they must die, last first.
struct process {
  explicit process(unsigned slots = 1, bool gated = false, fetch_state fetch = nullptr) {
    if (gated)
      the_gate = std::make_shared<gate>();
    for (unsigned i = 0; i < slots; ++i) {
      gpu::slot_options o;
      o.device.id = "cpu";
      o.device.name = "test";
      o.index = i;
      workers.push_back(std::make_shared<gpu::slot_worker>(o));
    }
    auto registry = std::make_shared<gpu::workload_registry>();
    registry->add("sum", [g = the_gate](gpu::context&, const gpu::workload_config& cfg) {
      return std::make_unique<sum_workload>(cfg, g);
    });
    cfg.scheduler_threads(2);
    sys.emplace(cfg);
    node_setup setup;
    setup.slots = workers;
    setup.workloads = registry;
    setup.blobs = blobs;
    setup.fetch = std::move(fetch);
    setup.observer = spawn_node_observer(*sys, log);
    agent = spawn_node_agent(*sys, setup);
    observer = spawn_observer(*sys, log);
  }
  ~process() {
    if (the_gate)
      the_gate->open();
    caf::anon_send_exit(agent, caf::exit_reason::user_shutdown);
  }

  host_trainer order(std::uint32_t trainer, std::uint64_t stop_step, const std::string& options = "{}") const {
    host_trainer out;
    out.who = {7, trainer, 0};
    out.name = "t" + std::to_string(trainer);
    out.workload_type = "sum";
    out.workload_options = options;
    out.hp = to_wire(core::hyperparameters{{"lr", 1.0}});
    out.stop_step = stop_step;
    out.observer = observer;
    return out;
  }
  trainer_up host(host_trainer x) {
    const auto trainer = x.who.trainer;
    anon_mail(std::move(x)).send(agent);
    return log->next<trainer_up>(trainer);
  }
  template <class Command>
  void tell(const trainer_up& t, Command x) {
    x.to = t.from;
    anon_mail(std::move(x)).urgent().send(t.who);
  }

  std::vector<std::shared_ptr<gpu::slot_worker>> workers;
  std::shared_ptr<gate> the_gate;
  std::shared_ptr<fact_log> log = std::make_shared<fact_log>();
  std::shared_ptr<blob_store> blobs = std::make_shared<blob_store>();
  system_config cfg;
  std::optional<caf::actor_system> sys;
  node_agent_actor agent;
  trainer_observer observer;
};

} // namespace rig
