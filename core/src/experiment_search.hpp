#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "troupe/core/search_space.hpp"

namespace troupe::core::internal {

constexpr std::size_t max_trainers = 1'000'000;

/// The values of a grid search, by hyperparameter.
using grid = std::map<std::string, std::vector<value>>;

/// How many trainers a search makes; what a grid says goes to `into`.
/// Hyperparameters that the trainer gives itself (`fixed`) stay as they are.
std::uint64_t read_search(const nlohmann::json& j, const std::string& where, const search_space& space,
                          const hyperparameters& fixed, grid& into, std::vector<error>& faults);

/// The values of point `i` of the grid; the last key changes fastest, repeats come last.
void take_point(const grid& points, std::uint64_t i, hyperparameters& into);

} // namespace troupe::core::internal
