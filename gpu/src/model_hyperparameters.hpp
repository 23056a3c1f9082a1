#pragma once

#include <string>
#include <utility>
#include <vector>

#include "troupe/core/value.hpp"
#include "troupe/gpu/ops.hpp"
#include "troupe/gpu/training_group.hpp"

namespace troupe::gpu::internal {

/// The hyperparameters of "mlp" and "cnn" at their defaults, complete, for this optimizer.
core::hyperparameters default_hyperparameters(optimizer_kind optimizer);

/// (key, what is wrong with it) for each fault of `hp`, which may be partial: missing and null values count as defaults.
std::vector<std::pair<std::string, std::string>> hyperparameter_faults(optimizer_kind optimizer, const core::hyperparameters& hp);

/// As the kernels read them. Precondition: no faults.
member_params to_params(optimizer_kind optimizer, const core::hyperparameters& hp);

} // namespace troupe::gpu::internal
