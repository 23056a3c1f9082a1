#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/checkpoint.hpp"
#include "troupe/gpu/context.hpp"
#include "troupe/gpu/dataset.hpp"
#include "troupe/gpu/model.hpp"
#include "troupe/gpu/ops.hpp"

namespace troupe::gpu {

enum class optimizer_kind : std::uint8_t { sgd, adamw };
std::string_view to_string(optimizer_kind x) noexcept;

/// What the members of a group have in common.
struct group_options {
  model_factory make;
  optimizer_kind optimizer = optimizer_kind::sgd;
  std::int64_t batch = 128;
  std::shared_ptr<const resident_data> data;
  std::int64_t block = 0; ///< CPU: the most members of a turn; 0: chosen by the model's size
};

/// Models of one architecture in training at once on one context: optimizer, place in the data and hyperparameters of each.
/// Members come and go between any two steps; a model that trains alone is a group of one.
///
/// A member's state (weights, moments, statistics) is one record in a slab, its hyperparameters and counters lie in device
/// memory, so that a member is moved by one copy and a push is one small copy. Records are dense: the last one takes the place
/// of one that leaves. A step allocates nothing, and waits for nothing but the place of batches that come from the host. All random
/// numbers are functions of (a member's seed, its counters), so a member's training does not depend on how its steps are grouped into calls, nor on the company it keeps: bit
/// for bit on the CPU, within rounding on a GPU.
///
/// On a GPU the active members step at once, in capacities of powers of two; a full group doubles. On the CPU they step in turns,
/// blocks of a few where models are so small that one call over several is faster than several calls, else one by one. A
/// block has only members that would call the same operations alone.
///
/// Where the slot's budget has no room for all states, members still join: states take turns in device memory, the one needed
/// longest ago goes to pinned host memory, and what the next turn needs comes while this one computes. The groups of a context make
/// room for each other in the same way, and for whatever else is allocated on it: between two calls a group's states may all wait on
/// the host, and its workspace be given back; the next call that needs them brings them. Where the data set is
/// not on the device (`resident_data::staged`), batches come the same way. Where the context wants it, steps are captured and
/// launched whole. What members compute does not depend on any of it.
class training_group {
public:
  /// A group without members. Throws `std::invalid_argument` for a batch that does not fit the data or the model.
  training_group(context& ctx, group_options options);
  ~training_group();
  training_group(const training_group&) = delete;
  training_group& operator=(const training_group&) = delete;

  /// To look at; holds until the next allocation on the context. Throws `out_of_memory`.
  const model& net() const;
  optimizer_kind optimizer() const noexcept;
  std::int64_t batch() const noexcept;
  const resident_data& data() const noexcept;
  std::int64_t batches_per_epoch() const noexcept;

  // -- members -------------------------------------------------------------------------------------------------------

  /// A new member with fresh weights, optimizer state and counters from `seed` and default hyperparameters; it does not take
  /// part in steps yet. Returns its number, which stays its own until it leaves. Throws `out_of_memory` where not even its state
  /// alone has room on the device, or the pinned memory is used up; the members are then as they were. So may all functions below
  /// that compute or copy, where states or workspace can't come back; they have then done nothing.
  std::int64_t join(std::uint64_t seed);
  void leave(std::int64_t member) noexcept;
  std::int64_t members() const noexcept;  ///< how many
  std::int64_t capacity() const noexcept; ///< how many there is memory for, pinned memory counted
  bool swaps() const noexcept;            ///< some states are on the host
  /// How often a member's state went out or came in, with those it shares a page with, and their bytes.
  struct moved_state {
    std::uint64_t times = 0, bytes = 0;
  };
  moved_state swapped(std::int64_t member) const;
  /// About how long the states of a turn take to go out or to come in; 0 where nothing is swapped.
  std::chrono::nanoseconds swap_time() const noexcept;

  /// Fresh weights, optimizer state and counters.
  void reset(std::int64_t member, std::uint64_t seed);
  /// In effect from the next step on.
  void set_params(std::int64_t member, const member_params& params);
  const member_params& params(std::int64_t member) const;
  /// Makes `to` what `from` is: weights, statistics and optimizer state; `with_counters`: counters, seed and place in the data
  /// too. On the device.
  void copy(std::int64_t from, std::int64_t to, bool with_counters);

  // -- steps ---------------------------------------------------------------------------------------------------------

  /// Who takes part in the next steps; the others rest.
  void set_active(std::span<const std::int64_t> members);
  /// The active members in the parts that step at once: on a GPU one part where all states are on the device, on the CPU blocks.
  /// They hold until members, active ones or hyperparameters change. Where states are swapped, take turns in order, and turns that
  /// are long against `swap_time`.
  std::size_t turns();
  std::span<const std::int64_t> turn(std::size_t i) const;
  /// Enqueues one optimizer update of every member of a turn.
  void step(std::size_t turn);
  /// Of every active member.
  void step();

  /// Waits for the steps so far.
  member_counters counters(std::int64_t member);
  /// What a member's losses since the last call were; they start again.
  struct losses {
    double sum = 0;
    std::uint64_t count = 0;
    std::uint64_t correct = 0;
    std::uint64_t step = 0; ///< steps done
    bool not_finite = false;
  };
  losses take_losses(std::int64_t member);
  /// Of several members in one exchange with the device.
  void take_losses(std::span<const std::int64_t> members, std::span<losses> out);

  // -- measuring and keeping -----------------------------------------------------------------------------------------

  /// On the held-out examples, all of them in order, without dropout and smoothing.
  struct quality {
    double accuracy = 0; ///< 0 to 1
    double loss = 0;     ///< mean cross-entropy
  };
  quality evaluate(std::int64_t member);
  /// Of several, on a GPU at once.
  void evaluate(std::span<const std::int64_t> members, std::span<quality> out);
  /// L2 norm of the gradient of the last batch (the first, before any step) at the present weights. Changes nothing that
  /// training depends on.
  double gradient_norm(std::int64_t member);
  void gradient_norm(std::span<const std::int64_t> members, std::span<double> out);

  /// Adds weights, statistics, optimizer state and counters.
  void save(std::int64_t member, core::checkpoint& out);
  /// A copy of the member's weights, statistics and optimizer state in device memory, to be attached to the checkpoint of the same
  /// moment: `load` then takes it, in any group of this process whose models are alike. Null on the CPU, whose host memory is as
  /// near, where the state is not on the device, and where the copy would take more than half of the memory that is free.
  std::shared_ptr<const core::checkpoint::attachment> keep_on_device(std::int64_t member);
  /// `with_counters`: counters, seed and place in the data too. Throws `std::invalid_argument` naming the tensor that is
  /// missing or does not fit; nothing has changed then.
  void load(std::int64_t member, const core::checkpoint& in, bool with_counters);

  std::uint64_t memory_bytes() const noexcept; ///< without the data, which is shared
  /// Its share, the same for all.
  std::uint64_t memory_bytes_per_member() const noexcept;

private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

} // namespace troupe::gpu
