#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "troupe/core/checkpoint.hpp"
#include "troupe/core/result.hpp"
#include "troupe/core/value.hpp"
#include "troupe/gpu/fwd.hpp"

namespace troupe::gpu {

/// What `workload::run` did.
struct run_report {
  std::uint64_t steps = 0; ///< optimizer updates done in this call
  double loss_sum = 0;     ///< of these steps' batch losses
};

/// What `workload::evaluate` found; goes into the sync point's metadata.
struct evaluation {
  double accuracy = std::numeric_limits<double>::quiet_NaN();  ///< on held-out data, 0 to 1
  double grad_norm = std::numeric_limits<double>::quiet_NaN(); ///< L2
  double epoch = 0;
  std::uint64_t samples = 0;
  std::map<std::string, double, std::less<>> numbers; ///< anything else worth reporting
};

/// Thrown by a step whose loss is not finite; fails that trainer alone.
class not_finite : public std::runtime_error {
public:
  using std::runtime_error::runtime_error;
};

class workload;

/// One workload's part in steps that run as one.
struct fused_run {
  workload* work = nullptr;
  std::uint64_t max_steps = 0; ///< at least 1
  run_report report;           ///< filled in; no steps where its turn did not come
  std::exception_ptr failure;  ///< filled in: this one failed, after `report`; the others do not notice
};

/// What workloads have in common whose steps can run as one. Lives at least as long as one of them; used on the slot's thread.
class fusion {
public:
  virtual ~fusion() = default;
  /// Up to `max_steps` steps of each. Returns when one of them has done its steps or failed, or when `ctx.should_yield()`, after
  /// at least one step. An exception fails all of them. What each of them computes must not depend on the others.
  virtual void run(context& ctx, std::span<fused_run> runs) = 0;
  /// The most of them that run as one.
  virtual std::size_t most() const noexcept { return std::numeric_limits<std::size_t>::max(); }
};

/// One model in training: what a trainer actor runs on its slot. Users derive their own.
///
/// A workload is built, used and destroyed on its slot's thread, so it needs no locks; it may throw anything
/// derived from `std::exception` to fail its trainer (the text is kept). Its results must be a function of
/// its configuration, its seed and the steps done: never of the clock, of `should_yield`, or of how steps are
/// grouped into calls.
class workload {
public:
  virtual ~workload() = default;

  /// One optimizer update; returns the loss of its batch.
  virtual double step(context& ctx) = 0;

  /// Up to `max_steps` steps, fewer when `ctx.should_yield()` after at least one. The default calls `step`
  /// and throws `not_finite` for a loss that is NaN or infinite. GPU workloads override it to enqueue many
  /// steps at once. `done`, empty at first, is kept up to date: what it says when something is thrown counts, so that a failure
  /// has its step.
  virtual void run(context& ctx, std::uint64_t max_steps, run_report& done);

  /// Equal, and not null, for workloads whose steps may run as one; the slot then calls `fusion::run` in place of `run`. Says the
  /// same each time and throws nothing.
  virtual fusion* fused_with() noexcept { return nullptr; }

  /// Measures at a sync point; must leave what training depends on unchanged.
  virtual evaluation evaluate(context& ctx) = 0;

  /// Adds everything that exact resumption needs: weights, optimizer state, counters, place in the data.
  virtual void save(context& ctx, core::checkpoint& out) = 0;

  /// A copy of what `save` saves that lies in device memory, for a slot of this process to take in `load` without the way through
  /// host memory: it is attached to the checkpoint that `save` made at the same step. Null, as the default is: there is none, because
  /// it would gain nothing, or there is no room. Its memory counts as this slot's until it is dropped, on any thread.
  virtual std::shared_ptr<const core::checkpoint::attachment> keep_on_device(context&) { return nullptr; }

  /// How much of a checkpoint to take over.
  enum class load_mode : std::uint8_t {
    everything, ///< resume: the same trainer goes on
    model ///< exploit or averaging: weights and optimizer state, not counters, seeds or place in the data
  };
  /// Throws `std::invalid_argument` naming the tensor if something is missing or of another shape; is then
  /// unchanged.
  virtual void load(context& ctx, const core::checkpoint& in, load_mode mode) = 0;

  /// Checks new hyperparameters without applying them: error texts name the key. Only the given keys change.
  virtual core::result<void> check(const core::hyperparameters& changes) const = 0;
  /// Applies them from the next step on. Precondition: `check` accepted them.
  virtual void set(context& ctx, const core::hyperparameters& changes) = 0;

  /// Names of the tensors that averaging may average (weights); all others are taken from the first donor.
  virtual bool is_weight(std::string_view tensor) const { return tensor.substr(0, 8) == "weights."; }

  /// Equal for two workloads whose weights have the same names, shapes and meaning; weights are copied and
  /// averaged only between equals.
  virtual std::string signature() const = 0;

  /// Device memory held, in bytes.
  virtual std::uint64_t memory_bytes() const { return 0; }
};

/// What a workload is built from: an entry of the experiment file.
struct workload_config {
  std::string name; ///< the trainer's, for error texts
  std::uint64_t seed = 0;
  const nlohmann::json* options =
      nullptr; ///< the "workload" object of the trainer less "type"; never null when building
  core::hyperparameters hp;
  bool fuse = true; ///< may run as one with others of its kind
};

/// Workloads by name. Explicit: nothing registers itself; a program fills one and passes it on.
class workload_registry {
public:
  /// Builds the workload on `ctx` (the slot's thread). May throw; the text reaches the user with the
  /// trainer's name.
  using factory = std::function<std::unique_ptr<workload>(context& ctx, const workload_config& cfg)>;
  /// Checks options and hyperparameters without a device, before anything starts; appends one text per fault,
  /// each beginning with the JSON pointer of the fault: where + "/workload/…" or where +
  /// "/hyperparameters/…".
  using checker = std::function<void(const nlohmann::json& options, const core::hyperparameters& hp,
                                     std::string_view where, std::vector<core::error>& faults)>;

  /// Replaces an entry of the same name.
  void add(std::string type, factory make, checker check = nullptr);
  /// An error that lists the known names.
  core::result<std::unique_ptr<workload>> make(context& ctx, std::string_view type,
                                               const workload_config& cfg) const;
  void check(std::string_view type, const nlohmann::json& options, const core::hyperparameters& hp,
             std::string_view where, std::vector<core::error>& faults) const;
  bool contains(std::string_view type) const;
  std::vector<std::string> names() const;

private:
  struct entry {
    factory make;
    checker check;
  };
  std::map<std::string, entry, std::less<>> entries_;
};

/// A registry with Troupe's own workloads: "mlp", "cnn", "transformer" and "idle" (steps that cost nothing, for
/// measurements).
workload_registry builtin_workloads();

} // namespace troupe::gpu
