#include "troupe/gpu/model_workload.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>

#include "kernel_table.hpp"
#include "model_hyperparameters.hpp"
#include "option_reader.hpp"
#include "spillable.hpp"

namespace troupe::gpu {

namespace {

using clock = std::chrono::steady_clock;
using internal::default_hyperparameters;
using internal::hyperparameter_faults;

/// Models in training together; holds the steps of those that run.
class model_group final : public fusion {
public:
  model_group(context& ctx, group_options how)
    : group(ctx, std::move(how)), watch(ctx.watch()), waits_(!ctx.kernels().wants_many) {
  }

  void run(context& ctx, std::span<fused_run> runs) override;

  struct measured {
    training_group::quality quality;
    double grad_norm = 0;
  };
  /// Of a member as it is. On a GPU those whose runs have ended too are measured at once: at a sync point each will ask.
  measured measure(std::int64_t member);
  /// The member is not what it was.
  void changed(std::int64_t member) { standing_.erase(member); }

  training_group group;
  const context_watch watch;

private:
  static constexpr std::chrono::milliseconds turn_time{2};

  void take(std::span<const std::int64_t> members, std::span<fused_run> runs, std::uint64_t steps);
  void run_turns(context& ctx, std::span<fused_run> runs);
  void run_at_once(context& ctx, std::span<fused_run> runs);
  std::size_t next_turn();
  void end_turn(std::int64_t member);
  bool is_done(std::int64_t member, std::span<const fused_run> runs) const;
  bool one_is_done(std::span<const std::int64_t> members, std::span<const fused_run> runs) const;
  std::uint64_t chunk(std::span<const std::int64_t> members, std::span<const fused_run> runs) const;
  void adapt_chunk(std::uint64_t done, clock::duration took);

  const bool waits_; ///< a step is done when it returns, as on the CPU
  std::vector<std::int64_t> members_;
  std::vector<std::size_t> run_of_; ///< by member
  std::vector<training_group::losses> losses_;
  /// Members whose last run has ended, as long as they stay as they are; with what was measured of them.
  std::map<std::int64_t, std::optional<measured>> standing_;
  std::int64_t next_ = -1;          ///< one of those whose turn was cut short; -1: nobody's
  clock::duration had_{};           ///< of that turn
  std::vector<std::uint64_t> served_; ///< by member: when its newest turn ended
  std::uint64_t turn_clock_ = 0;
  std::uint64_t chunk_ = 1;
};

/// One model: a member of a group.
class model_workload final : public workload {
public:
  model_workload(context& ctx, const workload_config& cfg, std::string signature, std::shared_ptr<model_group> group)
    : group_(std::move(group)), member(group_->group.join(cfg.seed)), signature_(std::move(signature)),
      hp_(default_hyperparameters(group_->group.optimizer())) {
    try {
      set(ctx, cfg.hp);
    } catch (...) {
      group_->group.leave(member);
      throw;
    }
  }

  ~model_workload() override {
    // Dropped elsewhere, or after the context, it leaves a group that trains no more.
    if (group_->watch.here()) {
      group_->changed(member);
      group_->group.leave(member);
    }
  }

  double step(context& ctx) override {
    run_report done;
    run(ctx, 1, done);
    return done.loss_sum;
  }

  void run(context& ctx, std::uint64_t max_steps, run_report& done) override {
    fused_run alone{this, max_steps, {}, nullptr};
    group_->run(ctx, {&alone, 1});
    done = alone.report;
    if (alone.failure)
      std::rethrow_exception(alone.failure);
  }

  fusion* fused_with() noexcept override { return group_.get(); }

  evaluation evaluate(context&) override {
    evaluation out;
    const auto measured = group_->measure(member);
    out.accuracy = measured.quality.accuracy;
    out.numbers["eval_loss"] = measured.quality.loss;
    out.grad_norm = measured.grad_norm;
    if (const auto moved = group().swapped(member); moved.times > 0) {
      out.numbers["swaps"] = static_cast<double>(moved.times);
      out.numbers["swapped_bytes"] = static_cast<double>(moved.bytes);
    }
    const auto drawn = group().counters(member).batch;
    out.epoch = static_cast<double>(drawn) / static_cast<double>(group().batches_per_epoch());
    out.samples = drawn * static_cast<std::uint64_t>(group().batch());
    return out;
  }

  void save(context&, core::checkpoint& out) override { group().save(member, out); }

  std::shared_ptr<const core::checkpoint::attachment> keep_on_device(context&) override {
    return group().keep_on_device(member);
  }

  void load(context&, const core::checkpoint& in, load_mode mode) override {
    group_->changed(member);
    group().load(member, in, mode == load_mode::everything);
  }

  core::result<void> check(const core::hyperparameters& changes) const override {
    auto merged = hp_;
    merged.update(changes);
    std::string text;
    for (const auto& [key, fault] : hyperparameter_faults(group_->group.optimizer(), merged))
      text += (text.empty() ? "" : "; ") + key + ": " + fault;
    if (!text.empty())
      return core::error{core::errc::invalid_argument, std::move(text)};
    return {};
  }

  void set(context&, const core::hyperparameters& changes) override {
    if (auto ok = check(changes); !ok)
      throw std::invalid_argument(ok.error().text);
    hp_.update(changes);
    group_->changed(member);
    group().set_params(member, internal::to_params(group().optimizer(), hp_));
  }

  bool is_weight(std::string_view tensor) const override {
    // Running statistics of batch normalisation belong to the weights around them.
    return tensor.starts_with("weights.") || tensor.starts_with("statistics.");
  }

  std::string signature() const override { return signature_; }
  std::uint64_t memory_bytes() const override { return group_->group.memory_bytes_per_member(); }

private:
  training_group& group() const { return group_->group; }

  std::shared_ptr<model_group> group_;

public:
  const std::int64_t member;

private:
  std::string signature_;
  core::hyperparameters hp_; ///< complete
};

void model_group::run(context& ctx, std::span<fused_run> runs) {
  members_.clear();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto member = static_cast<model_workload*>(runs[i].work)->member;
    members_.push_back(member);
    if (run_of_.size() <= static_cast<std::size_t>(member))
      run_of_.resize(static_cast<std::size_t>(member) + 1);
    run_of_[static_cast<std::size_t>(member)] = i;
  }
  group.set_active(members_);
  losses_.resize(runs.size());
  if (waits_)
    return run_turns(ctx, runs);
  for (const auto member : members_)
    changed(member);
  if (group.turns() > 1)
    run_turns(ctx, runs);
  else
    run_at_once(ctx, runs);
  for (const auto& r : runs)
    if (r.report.steps >= r.max_steps)
      standing_[static_cast<model_workload*>(r.work)->member] = std::nullopt;
}

model_group::measured model_group::measure(std::int64_t member) {
  if (const auto at = standing_.find(member); at != standing_.end() && at->second)
    return *at->second;
  std::vector<std::int64_t> who{member};
  for (const auto& [other, known] : standing_)
    if (other != member && !known)
      who.push_back(other);
  std::vector<training_group::quality> quality(who.size());
  std::vector<double> norms(who.size());
  group.evaluate(who, quality);
  group.gradient_norm(who, norms);
  for (std::size_t i = 0; i < who.size(); ++i)
    if (const auto at = standing_.find(who[i]); at != standing_.end())
      at->second = {quality[i], norms[i]};
  return {quality.front(), norms.front()};
}

/// Counts `steps` more of these members, and fails those whose loss is not finite.
void model_group::take(std::span<const std::int64_t> members, std::span<fused_run> runs, std::uint64_t steps) {
  const auto losses = std::span(losses_).first(members.size());
  group.take_losses(members, losses);
  for (std::size_t i = 0; i < members.size(); ++i) {
    auto& r = runs[run_of_[static_cast<std::size_t>(members[i])]];
    if (losses[i].not_finite) {
      r.failure = std::make_exception_ptr(not_finite("the loss is not finite at step " + std::to_string(losses[i].step)
                                                     + (steps > 1 ? " or shortly before" : "")
                                                     + ": lower the learning rate or set clip_norm"));
      continue;
    }
    // A multiple of 2^-32: sums of these are exact, so they do not depend on how steps are grouped.
    constexpr double unit = 4294967296.0;
    r.report.loss_sum += std::nearbyint(losses[i].sum * unit) / unit;
    r.report.steps += steps;
  }
}

bool model_group::is_done(std::int64_t member, std::span<const fused_run> runs) const {
  const auto& r = runs[run_of_[static_cast<std::size_t>(member)]];
  return r.failure != nullptr || r.report.steps >= r.max_steps;
}

bool model_group::one_is_done(std::span<const std::int64_t> members, std::span<const fused_run> runs) const {
  return std::any_of(members.begin(), members.end(), [&](std::int64_t member) { return is_done(member, runs); });
}

/// The turn that was cut short, else the one whose members have waited longest: members end, leave and come back between any two
/// turns, so there is no order in which to go on.
std::size_t model_group::next_turn() {
  std::size_t best = 0;
  auto oldest = std::numeric_limits<std::uint64_t>::max();
  for (std::size_t i = 0; i < group.turns(); ++i)
    for (const auto member : group.turn(i)) {
      if (member == next_)
        return i;
      const auto at = static_cast<std::size_t>(member);
      const auto served = at < served_.size() ? served_[at] : 0;
      if (served < oldest) {
        oldest = served;
        best = i;
      }
    }
  had_ = {};
  return best;
}

void model_group::end_turn(std::int64_t member) {
  const auto at = static_cast<std::size_t>(member);
  if (served_.size() <= at)
    served_.resize(at + 1);
  served_[at] = ++turn_clock_;
}

/// Each turn's members have the caches to themselves for a while, as they would have alone, and their states the device's memory
/// where there is not enough for all.
void model_group::run_turns(context& ctx, std::span<fused_run> runs) {
  const auto n = group.turns();
  for (;;) {
    const auto at = next_turn();
    const auto who = group.turn(at);
    const auto whole = std::max<clock::duration>(turn_time * static_cast<int>(who.size()), internal::computing_per_copy * group.swap_time());
    for (auto now = clock::now(), end = now + whole - had_; n == 1 || now < end; now = clock::now()) {
      try {
        const auto steps = waits_ ? 1 : chunk(who, runs);
        for (std::uint64_t i = 0; i < steps; ++i)
          group.step(at);
        take(who, runs, steps);
        if (!waits_)
          adapt_chunk(steps, clock::now() - now);
      } catch (...) { // not the others' affair
        for (const auto member : who)
          runs[run_of_[static_cast<std::size_t>(member)]].failure = std::current_exception();
      }
      const bool over = one_is_done(who, runs);
      if (!over && !ctx.should_yield())
        continue;
      had_ = whole - (end - clock::now());
      next_ = -1;
      for (const auto member : who)
        if (is_done(member, runs))
          end_turn(member);
        else
          next_ = member;
      return;
    }
    next_ = -1;
    for (const auto member : who)
      end_turn(member);
  }
}

/// A GPU is given as many steps as keep it busy for a while; that number depends on the clock, results do not.
std::uint64_t model_group::chunk(std::span<const std::int64_t> members, std::span<const fused_run> runs) const {
  auto n = chunk_;
  for (const auto member : members) {
    const auto& r = runs[run_of_[static_cast<std::size_t>(member)]];
    n = std::min(n, r.max_steps - r.report.steps);
  }
  return n;
}

void model_group::adapt_chunk(std::uint64_t done, clock::duration took) {
  using namespace std::chrono_literals;
  if (done == chunk_ && took < 500us && chunk_ < 256)
    chunk_ *= 2;
  else if (took > 2ms && chunk_ > 1)
    chunk_ /= 2;
}

void model_group::run_at_once(context& ctx, std::span<fused_run> runs) {
  do {
    const auto n = chunk(members_, runs);
    const auto start = clock::now();
    for (std::uint64_t i = 0; i < n; ++i)
      group.step();
    take(members_, runs, n);
    adapt_chunk(n, clock::now() - start);
  } while (!one_is_done(members_, runs) && !ctx.should_yield());
}

} // namespace

std::unique_ptr<workload> make_model_workload(context& ctx, const workload_config& cfg, trained_model what) {
  const auto optimizer = std::string(to_string(what.how.optimizer));
  const auto signature = what.kind + " " + what.architecture + " on " + what.how.data->host().name + " with " + optimizer;
  const auto make = [&] { return std::make_shared<model_group>(ctx, what.how); };
  if (!cfg.fuse) {
    what.how.block = 1;
    return std::make_unique<model_workload>(ctx, cfg, signature, make());
  }
  const auto key = signature + "\n" + what.variant + "\n" + std::to_string(what.how.batch) + "\n"
                   + std::to_string(reinterpret_cast<std::uintptr_t>(what.how.data.get())) + "\n";
  // A group that cannot grow, because old and new do not fit side by side, is left as it is and another one begun.
  for (int i = 0;; ++i) {
    const auto group = ctx.share<model_group>(key + std::to_string(i), make);
    try {
      return std::make_unique<model_workload>(ctx, cfg, signature, group);
    } catch (const out_of_memory&) {
      if (group->group.members() == 0)
        throw;
    }
  }
}

void check_model_hyperparameters(optimizer_kind optimizer, const core::hyperparameters& hp, std::string_view where,
                                 std::vector<core::error>& faults) {
  for (const auto& [key, text] : hyperparameter_faults(optimizer, hp))
    faults.push_back({core::errc::invalid_argument,
                      std::string(where) + "/hyperparameters/" + internal::pointer_token(key) + ": " + text});
}

} // namespace troupe::gpu
