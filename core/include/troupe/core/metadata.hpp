#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "troupe/core/value.hpp"

namespace troupe::core {

/// Number of a trainer within its experiment, in the order of the experiment file; trainers added later
/// follow.
using trainer_id = std::uint32_t;

/// A sync point's number: 0, 1, 2 …
using sync_index = std::uint32_t;

/// What a trainer reports at a sync point, and when it finishes.
struct metadata {
  trainer_id trainer = 0;
  std::string name;                                       ///< the trainer's name in the experiment file
  std::uint32_t incarnation = 0;                          ///< 0 at first, one more after each restart
  sync_index sync = 0;                                    ///< the sync point this belongs to
  std::uint64_t step = 0;                                 ///< optimizer updates done
  double epoch = 0;                                       ///< passes over the training data, with fraction
  std::uint64_t samples = 0;                              ///< training samples drawn
  double loss = std::numeric_limits<double>::quiet_NaN(); ///< mean training loss since the last report
  double accuracy = std::numeric_limits<double>::quiet_NaN(); ///< on held-out data, 0 to 1; NaN: not measured
  double grad_norm =
      std::numeric_limits<double>::quiet_NaN();       ///< L2 norm of the newest gradient; NaN: not measured
  double compute_seconds = 0;                         ///< on the slot, training, since the start
  double wait_seconds = 0;                            ///< ready but waiting for a slot, since the start
  double sync_seconds = 0;                            ///< parked at sync points, since the start
  std::uint64_t memory_bytes = 0;                     ///< of the device, held by this trainer
  std::map<std::string, double, std::less<>> numbers; ///< the workload's own
  hyperparameters hp;                                 ///< in effect when this was measured

  /// A named number: loss, accuracy, grad_norm, step, epoch, or one of `numbers`; NaN if there is none.
  double number(std::string_view key) const;
  /// Why there is none: "it reports no number "acc", only accuracy, …"; empty where there is one, finite or not.
  std::string lacks(std::string_view key) const;
};

/// One object; numbers that are not finite become strings, as for `value`.
nlohmann::json to_json(const metadata& x);
/// "trainer", "sync" and "step" must be there, other keys may be missing; an unknown key is an error.
result<metadata> metadata_from_json(const nlohmann::json& j, std::string_view where);

} // namespace troupe::core
