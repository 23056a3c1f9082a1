#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "troupe/core/checkpoint.hpp"
#include "troupe/core/metadata.hpp"
#include "troupe/gpu/workload.hpp"

/// What a trainer writes into its checkpoints beside its workload's tensors.
///
///   text                   what
///   troupe.step            optimizer updates done
///   troupe.sync            sync points held so far: a trainer restored at a sync step holds that one only if its number is
///                          not below this
///   troupe.loss            of the steps since the newest report: the bit pattern of the sum of their losses, and their number
///   troupe.hyperparameters in effect, as JSON
///   troupe.signature       of the workload
///   troupe.incarnation     the trainer's life that saved it
///   troupe.weights         names of the tensors that may be averaged, separated by blanks; absent where all of them and no
///                          others begin with "weights."
namespace troupe::actors::internal {

struct trainer_mark {
  std::uint64_t step = 0;
  core::sync_index syncs_done = 0;
  double loss_sum = 0; ///< since the newest report
  std::uint64_t loss_count = 0;
  core::hyperparameters hp;
  std::string signature;
  std::uint32_t incarnation = 0;
};

/// Saves the workload with its mark. On the slot's thread.
core::checkpoint_ptr save_state(gpu::context& ctx, gpu::workload& w, const trainer_mark& mark, bool copied = false);

/// The mark, or an error that names the text that is missing or wrong.
core::result<trainer_mark> read_mark(const core::checkpoint& x);

/// Refuses weights of another architecture, with both signatures in the text.
core::result<void> check_signature(const core::checkpoint& x, std::string_view own);

} // namespace troupe::actors::internal
