#include "run_fixture.hpp"

#include <cmath>
#include <limits>
#include <stdexcept>

#include <doctest/doctest.h>

#include <unistd.h>

#include "troupe/core/random.hpp"

namespace troupe::test {

namespace {

constexpr auto patience = std::chrono::seconds(60);

class walk final : public gpu::workload {
public:
  walk(gpu::context& ctx, const gpu::workload_config& cfg, std::shared_ptr<mischief> what)
      : name_(cfg.name), seed_(cfg.seed), what_(std::move(what)), weights_(cfg.options->value("size", 4u)),
        momentum_(weights_.size()) {
    if (what_)
      what_->before_build(name_);
    if (what_ && what_->fails_build(name_))
      throw std::runtime_error(name_ + " cannot be built");
    memory_ = ctx.allocate(cfg.options->value("bytes", std::size_t{0}));
    apply(cfg.hp);
  }

  double step(gpu::context&) override {
    const auto n = step_ + 1;
    if (what_) {
      what_->wait_if_held(name_, n);
      if (what_->fails(name_, n))
        throw std::runtime_error("step " + std::to_string(n) + " of " + name_ + " failed");
    }
    double loss = 0;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      core::random_stream rng(seed_, "walk", step_ * 1000 + i);
      momentum_[i] = 0.5f * momentum_[i] + static_cast<float>(rng.uniform(-1, 1));
      weights_[i] += static_cast<float>(lr_) * momentum_[i];
      loss += std::abs(weights_[i]);
    }
    ++step_;
    if (what_ && what_->spoils(name_, n))
      return std::numeric_limits<double>::quiet_NaN();
    return loss / static_cast<double>(weights_.size());
  }

  gpu::evaluation evaluate(gpu::context&) override {
    if (what_)
      what_->before_evaluation(name_);
    gpu::evaluation out;
    double sum = 0;
    for (const auto w : weights_)
      sum += std::abs(w);
    out.accuracy = 1 / (1 + sum / static_cast<double>(weights_.size()));
    out.samples = step_;
    out.numbers["lr"] = lr_;
    return out;
  }

  void save(gpu::context&, core::checkpoint& out) override {
    if (what_)
      what_->before_save(name_);
    const auto n = static_cast<std::int64_t>(weights_.size());
    out.add("weights.w", core::dtype::f32, {n}, std::span<const float>(weights_));
    out.add("momentum.w", core::dtype::f32, {n}, std::span<const float>(momentum_));
    const std::uint64_t counters[] = {seed_, step_};
    out.add("counters", core::dtype::u64, {2}, std::span<const std::uint64_t>(counters));
  }

  void load(gpu::context&, const core::checkpoint& in, load_mode mode) override {
    const std::int64_t n[] = {static_cast<std::int64_t>(weights_.size())};
    const std::int64_t two[] = {2};
    const auto w = in.expect("weights.w", core::dtype::f32, n);
    const auto m = in.expect("momentum.w", core::dtype::f32, n);
    const auto c = in.expect("counters", core::dtype::u64, two);
    for (const auto* x : {&w, &m, &c})
      if (!*x)
        throw std::invalid_argument(x->error().text);
    const auto ws = (*w)->as<float>();
    const auto ms = (*m)->as<float>();
    weights_.assign(ws.begin(), ws.end());
    momentum_.assign(ms.begin(), ms.end());
    if (mode == load_mode::everything) {
      seed_ = (*c)->as<std::uint64_t>()[0];
      step_ = (*c)->as<std::uint64_t>()[1];
    }
  }

  core::result<void> check(const core::hyperparameters& changes) const override {
    for (const auto& [key, value] : changes) {
      if (key != "lr")
        return core::error{core::errc::invalid_argument, "there is no hyperparameter \"" + key + "\""};
      const auto x = core::as_number(value);
      if (!x || *x < 0)
        return core::error{core::errc::invalid_argument, "lr must be a number that is not negative"};
    }
    return {};
  }
  void set(gpu::context&, const core::hyperparameters& changes) override {
    apply(changes);
    if (what_)
      what_->note_set(name_, lr_);
  }
  std::string signature() const override { return "walk " + std::to_string(weights_.size()); }
  std::uint64_t memory_bytes() const override { return 8 * weights_.size(); }

private:
  void apply(const core::hyperparameters& hp) { lr_ = *hp.number("lr", lr_); }

  std::string name_;
  std::uint64_t seed_;
  std::shared_ptr<mischief> what_;
  std::vector<float> weights_, momentum_;
  std::uint64_t step_ = 0;
  double lr_ = 0.1;
  gpu::buffer memory_;
};

class asked_policy final : public core::policy {
public:
  explicit asked_policy(deciding f) : f_(std::move(f)) {}
  std::map<core::trainer_id, core::decision> decide(const core::policy_input& in,
                                                    core::random_stream& rng) const override {
    return f_(in, rng);
  }
  bool moves_weights() const override { return true; }

private:
  deciding f_;
};

} // namespace

// -- mischief
// ------------------------------------------------------------------------------------------------------------

void mischief::set(table& t, const std::string& who, std::uint64_t at, int times) {
  const std::lock_guard lock(mutex_);
  t[who] = {at, times};
  changed_.notify_all();
}

bool mischief::hit(table& t, const std::string& who, std::uint64_t step) {
  const std::lock_guard lock(mutex_);
  const auto i = t.find(who);
  return i != t.end() && i->second.at == step && i->second.times-- > 0;
}

void mischief::hold(const std::string& who, std::uint64_t at) { set(held_, who, at, 1); }

void mischief::release() {
  const std::lock_guard lock(mutex_);
  held_.clear();
  changed_.notify_all();
}

void mischief::wait_if_held(const std::string& who, std::uint64_t step) {
  std::unique_lock lock(mutex_);
  const auto may_go_on = [&] {
    const auto i = held_.find(who);
    return i == held_.end() || step < i->second.at;
  };
  if (may_go_on())
    return;
  standing_.insert(who);
  changed_.notify_all();
  changed_.wait_for(lock, patience, may_go_on);
  standing_.erase(who);
}

bool mischief::wait_until_held(const std::string& who) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, patience, [&] { return standing_.contains(who); });
}

void mischief::close(gate& g, const std::string& who) {
  const std::lock_guard lock(mutex_);
  g.closed.insert(who);
}

void mischief::open(gate& g) {
  const std::lock_guard lock(mutex_);
  g.closed.clear();
  changed_.notify_all();
}

void mischief::pass(gate& g, const std::string& who) {
  std::unique_lock lock(mutex_);
  g.waiting.insert(who);
  changed_.notify_all();
  changed_.wait_for(lock, patience, [&] { return !g.closed.contains(who); });
  g.waiting.erase(who);
}

bool mischief::wait_until_at(gate& g, const std::string& who) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, patience, [&] { return g.closed.contains(who) && g.waiting.contains(who); });
}

void mischief::note_set(const std::string& who, double lr) {
  const std::lock_guard lock(mutex_);
  ++sets_[{who, lr}];
}

int mischief::times_set(const std::string& who, double lr) {
  const std::lock_guard lock(mutex_);
  return sets_[{who, lr}];
}

// -- registries
// ------------------------------------------------------------------------------------------------------------

std::shared_ptr<gpu::workload_registry> walks(std::shared_ptr<mischief> what) {
  auto out = std::make_shared<gpu::workload_registry>();
  out->add("walk", [what](gpu::context& ctx, const gpu::workload_config& cfg) -> std::unique_ptr<gpu::workload> {
    return std::make_unique<walk>(ctx, cfg, what);
  });
  return out;
}

std::shared_ptr<core::policy_registry> asks(deciding f) {
  auto out = std::make_shared<core::policy_registry>(core::builtin_policies());
  out->add("ask",
           [f](const nlohmann::json&, const core::search_space&, std::span<const std::string>,
               std::string_view, std::vector<core::error>&) -> std::unique_ptr<core::policy> {
             return std::make_unique<asked_policy>(f);
           });
  return out;
}

core::experiment experiment_of(unsigned trainers, std::uint64_t steps, std::uint64_t every) {
  core::experiment e;
  e.name = "walks";
  e.seed = 7;
  for (unsigned i = 0; i < trainers; ++i) {
    core::trainer_spec t;
    t.name = "t" + std::to_string(i);
    t.workload_type = "walk";
    t.workload_options = R"({"size":4})";
    t.hp.set("lr", 0.1);
    t.seed = 100 + i;
    t.stop_step = steps;
    e.trainers.push_back(std::move(t));
  }
  e.sync.schedule.every_steps = every;
  return e;
}

// -- recorder
// ----------------------------------------------------------------------------------------------------------------

void recorder::on_started(const run_status&) {
  const std::lock_guard lock(mutex_);
  started_ = true;
  changed();
}

void recorder::on_sync_point(const sync_point_event& x) {
  const std::lock_guard lock(mutex_);
  sync_points_.push_back(x);
  changed();
}

void recorder::on_event(std::string_view kind, const nlohmann::json& details) {
  const std::lock_guard lock(mutex_);
  events_.push_back({std::string(kind), details});
  changed();
}

void recorder::on_finished(const run_summary&) {
  const std::lock_guard lock(mutex_);
  finished_ = true;
  changed();
}

std::vector<sync_point_event> recorder::sync_points() const {
  const std::lock_guard lock(mutex_);
  return sync_points_;
}

std::vector<recorder::told> recorder::events(std::string_view kind) const {
  const std::lock_guard lock(mutex_);
  std::vector<told> out;
  for (const auto& e : events_)
    if (e.kind == kind)
      out.push_back(e);
  return out;
}

bool recorder::started() const {
  const std::lock_guard lock(mutex_);
  return started_;
}

bool recorder::wait(const std::function<bool(const recorder&)>& until) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, patience, [&] { return until(*this); });
}

bool recorder::wait_for_event(std::string_view kind, std::size_t count) const {
  return wait([&](const recorder& r) { return r.events(kind).size() >= count; });
}

bool recorder::wait_for_sync(std::size_t count) const {
  return wait([&](const recorder& r) { return r.sync_points().size() >= count; });
}

// -- runs
// --------------------------------------------------------------------------------------------------------------------

set_up::set_up(core::experiment exp, unsigned slots, std::shared_ptr<mischief> what, deciding f) {
  if (f)
    exp.policy_type = "ask";
  options.exp = std::move(exp);
  options.workloads = walks(std::move(what));
  options.policies = asks(std::move(f));
  options.listener = seen;
  const auto cpu = gpu::find_device(gpu::find_devices(), "cpu");
  REQUIRE(cpu);
  for (unsigned i = 0; i < slots; ++i) {
    gpu::slot_options s;
    s.device = *cpu;
    s.index = i;
    options.slots.push_back(s);
  }
}

std::unique_ptr<run_session> set_up::start() {
  auto run = run_session::start(options);
  if (!run)
    FAIL(run.error().text);
  return std::move(*run);
}

temporary_folder::temporary_folder() {
  auto name = (std::filesystem::temp_directory_path() / "troupe-XXXXXX").string();
  REQUIRE(::mkdtemp(name.data()) != nullptr);
  folder_ = name;
}

temporary_folder::~temporary_folder() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::map<std::string, std::uint64_t> hashes(const run_summary& x) {
  std::map<std::string, std::uint64_t> out;
  for (const auto& t : x.trainers)
    out[t.name] = t.final_hash;
  return out;
}

const trainer_summary& find(const run_summary& x, const std::string& name) {
  for (const auto& t : x.trainers)
    if (t.name == name)
      return t;
  throw std::out_of_range("no trainer " + name);
}

} // namespace troupe::test
