#pragma once

#include <vector>

#include "troupe/core/checkpoint.hpp"

namespace troupe::actors::internal {

/// The mean of several trainers' weights, in double precision and in the order given, so that the same states
/// give the same bits wherever they come from. Weights are the tensors that every state's text
/// "troupe.weights" names, separated by blanks, or without that text those whose name begins with "weights.";
/// everything else is taken from the first. Refused with the tensor's name if one lacks it or has another
/// shape or type.
core::result<core::checkpoint_ptr> average(const std::vector<core::checkpoint_ptr>& states);

} // namespace troupe::actors::internal
