#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/checkpoint.hpp"
#include "troupe/gpu/context.hpp"
#include "troupe/gpu/dataset.hpp"
#include "troupe/gpu/network.hpp"
#include "troupe/gpu/ops.hpp"

namespace troupe::gpu {

enum class optimizer_kind : std::uint8_t { sgd, adamw };
std::string_view to_string(optimizer_kind x) noexcept;

/// K models of one architecture in training at once on one context: network, optimizer, place in the data and
/// hyperparameters of each. A model that trains alone is a group of one.
///
/// Hyperparameters and counters lie in device memory, one per member, so that changing them costs one small copy. A
/// step allocates nothing and waits for nothing. All random numbers are functions of (a member's seed, its counters), so a
/// member's training does not depend on how its steps are grouped into calls.
class training_group {
public:
  training_group(context& ctx, network_spec spec, optimizer_kind optimizer, std::int64_t members, std::int64_t batch,
                 std::shared_ptr<const resident_data> data);
  ~training_group();
  training_group(const training_group&) = delete;
  training_group& operator=(const training_group&) = delete;

  network& net() noexcept;
  const network& net() const noexcept;
  optimizer_kind optimizer() const noexcept;
  std::int64_t members() const noexcept;
  std::int64_t batch() const noexcept;
  const resident_data& data() const noexcept;
  std::int64_t batches_per_epoch() const noexcept;

  /// Fresh weights, optimizer state and counters from `seed`.
  void reset(std::int64_t member, std::uint64_t seed);
  /// In effect from the next step on.
  void set_params(std::int64_t member, const member_params& params);
  const member_params& params(std::int64_t member) const;
  /// One byte per member: who takes part in the next steps.
  void set_active(std::span<const std::uint8_t> active);

  /// Enqueues one optimizer update of every active member.
  void step();
  /// Waits for the steps so far.
  member_counters counters(std::int64_t member);
  /// What the losses since the last call were, and starts again; waits for the steps so far.
  struct losses {
    double sum = 0;
    std::uint64_t count = 0;
    std::uint64_t correct = 0;
    bool not_finite = false;
  };
  losses take_losses(std::int64_t member);

  /// On the held-out examples, all of them in order, without dropout and smoothing.
  struct quality {
    double accuracy = 0; ///< 0 to 1
    double loss = 0;     ///< mean cross-entropy
  };
  std::vector<quality> evaluate();
  /// L2 norm of the gradient of each member's last batch (the first, before any step) at its present weights. Changes
  /// nothing that training depends on.
  std::vector<double> gradient_norms();

  /// Adds weights, statistics, optimizer state and counters.
  void save(std::int64_t member, core::checkpoint& out);
  /// `with_counters`: counters, seed and place in the data too. Throws `std::invalid_argument` naming the tensor that is
  /// missing or does not fit; nothing has changed then.
  void load(std::int64_t member, const core::checkpoint& in, bool with_counters);

  std::uint64_t memory_bytes() const noexcept; ///< without the data, which is shared

private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

} // namespace troupe::gpu
