#pragma once

#include <memory>
#include <string>

#include "troupe/gpu/training_group.hpp"
#include "troupe/gpu/workload.hpp"

namespace troupe::gpu {

/// A model to train and how.
struct trained_model {
  std::string kind;         ///< "mlp": begins the signature
  std::string architecture; ///< "784-256-10 relu": equal exactly where weights mean the same
  std::string variant;      ///< what else tells its arithmetic apart, such as the precision
  group_options how;
};

/// A workload that trains one, with the hyperparameters of docs/workloads.md; for factories of `workload_registry`. Those of one
/// context whose `trained_model`s are equal (by the texts, optimizer, batch and data) are members of one group and run as one,
/// unless `cfg.fuse` is false. Throws `std::invalid_argument`, `out_of_memory`; the others of its group do not notice.
std::unique_ptr<workload> make_model_workload(context& ctx, const workload_config& cfg, trained_model what);

/// Whether hyperparameters suit such a workload; appends one text per fault, each beginning with where + "/hyperparameters/…".
void check_model_hyperparameters(optimizer_kind optimizer, const core::hyperparameters& hp, std::string_view where,
                                 std::vector<core::error>& faults);

} // namespace troupe::gpu
