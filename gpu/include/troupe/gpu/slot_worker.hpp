#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "troupe/core/result.hpp"
#include "troupe/gpu/context.hpp"
#include "troupe/gpu/workload.hpp"

namespace troupe::gpu {

/// A workload and what its slot measures of it. Made by the trainer, filled and used only on the slot's
/// thread, except `interrupt` and `progress`, which any thread may use.
struct hosted {
  std::unique_ptr<workload> work;
  std::atomic<bool> interrupt{false};     ///< ends the run after its current step
  std::atomic<std::uint64_t> progress{0}; ///< steps done since it was built or loaded, for status displays
  double compute_seconds = 0;             ///< its share of the device's time
  double wait_seconds = 0;                ///< ready, but the device was others'
  double step_seconds = 0;                ///< of its newest steps; 0: not measured yet
  double move_seconds = 0;                ///< what taking it to another slot would cost, as its maker estimates it
  double settled_at = 0;                  ///< compute_seconds when it came to this slot
  std::uint64_t number = 0;               ///< by which its maker knows it
  double loss_sum = 0;                    ///< since the last time the trainer reset it
  std::uint64_t loss_count = 0;
};

/// Which runs go first; see core::goes_before.
struct run_hint {
  std::int32_t priority = 0;
  bool before_barrier = false; ///< it ends at a sync point at which others wait
};

/// How a run ended.
struct run_outcome {
  std::uint64_t steps = 0;  ///< done in this run, all its slices together
  bool interrupted = false; ///< fewer than asked for, because `interrupt` was set
  core::error failure;      ///< empty text: none
  bool device_lost = false; ///< the context is unusable
};

/// The exception being handled, as an error with its text: out_of_memory, device or failed. Call it in a
/// `catch`. `device_lost`, where given, is set for errors after which the context is unusable.
core::error current_error(bool* device_lost = nullptr) noexcept;

/// The one thread that computes on a slot, and its run queue.
///
/// Two kinds of work: *runs* (train this workload for up to n steps) share the device in time slices, round
/// robin, except that runs of a higher priority go first, and of those before a barrier the longest; *tasks* (anything else: build, evaluate, save, load, GPU actors' handlers) go ahead of the next
/// slice, in the order they came. A run keeps its place until its steps are done or it is interrupted, so a
/// lone trainer costs no hand-over between slices, and a run that waits is ended at once by an interrupt. A
/// task or an interrupt that arrives during a slice is served after the step at hand; the slice then goes on
/// with what is left of it. Runs of one priority whose workloads are `fused_with` the same take their turns as one, as long as
/// all their turns together, unless one of a higher priority comes; each has its own outcome, and others join between two steps. Completions are called on the slot's thread and must only post (they may not
/// block or throw).
class slot_worker {
public:
  using clock = std::chrono::steady_clock;
  struct settings {
    std::chrono::microseconds slice{2000}; ///< a run's turn while others wait; never less than one step
  };

  /// Starts the thread and opens the context there; throws what the context threw.
  slot_worker(slot_options options, settings s);
  explicit slot_worker(slot_options options) : slot_worker(std::move(options), settings{}) {}
  /// Ends after the step at hand; work still queued completes with `cancelled`. Joins.
  ~slot_worker();

  using run_done = std::function<void(run_outcome)>;
  /// Thread-safe. One run per `who` at a time: a second one completes as refused.
  void run(std::shared_ptr<hosted> who, std::uint64_t steps, run_done done, run_hint hint = {});
  /// Ends `who`'s run after its current step, at once if it is not running now. No effect without a run.
  /// Thread-safe.
  void interrupt(const std::shared_ptr<hosted>& who);

  /// `task` runs on the slot's thread; an exception it throws arrives at `done` as an error with its text.
  using task = std::function<void(context&)>;
  using task_done = std::function<void(core::result<void>)>;
  void post(task work, task_done done);

  struct counters {
    std::uint64_t slices = 0, steps = 0, tasks = 0;
    /// Slices in which several runs ran as one, how many of them (summed over these slices), and their steps.
    std::uint64_t fused_slices = 0, fused_members = 0, fused_steps = 0;
    double busy_seconds = 0, idle_seconds = 0;
    std::uint64_t memory_used = 0, memory_peak = 0, memory_budget = 0;
    std::uint64_t pinned_budget = 0; ///< bytes; 0: no limit
    context::usage device;           ///< what its context did and holds
    std::size_t running = 0; ///< runs that have the device, several only as one
    std::size_t waiting = 0; ///< runs in the queue
  };
  counters snapshot() const;

  /// A run that has the device, alone or with others as one, or waits for it.
  struct run_load {
    std::uint64_t number = 0;    ///< hosted::number
    std::uint64_t steps_left = 0;
    double step_seconds = 0;     ///< 0: not measured yet
    double move_seconds = 0;
    double settled_seconds = 0;  ///< computed since it came to this slot
  };
  struct load {
    bool idle = false;           ///< the thread sleeps, and there is nothing to wake it for
    std::vector<run_load> runs;  ///< in the order of their turns; of very many, the first
  };
  load current_load() const;
  enum class turn { idle, shared };
  /// Calls `then` once, as soon as the slot is idle, or two runs share it: at once if it is so already. On any thread; it may only
  /// post. Another call of the same kind replaces it, null forgets it.
  void when(turn what, std::function<void()> then);
  const slot_options& options() const noexcept;

private:
  struct impl;
  std::shared_ptr<impl> impl_; // shared with the thread
};

} // namespace troupe::gpu
