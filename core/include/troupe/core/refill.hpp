#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "troupe/core/metadata.hpp"
#include "troupe/core/random.hpp"
#include "troupe/core/search_space.hpp"

namespace troupe::core {

/// What is known when a trainer has failed for good.
struct refill_input {
  trainer_id failed = 0;
  hyperparameters hp;         ///< the failed trainer's
  std::string_view signature; ///< its workload's; empty if it failed before it was built
  std::span<const metadata>
      reports; ///< the newest of each living trainer; the failed one's own is passed over
  /// By trainer number, as in `policy_input`.
  std::function<std::string_view(trainer_id)> signature_of;
  /// How often in a row this place was filled by one that came no further than those before it.
  std::uint32_t fruitless = 0;
};

/// So often: then the place stays empty, or a run in which everything fails would never end.
constexpr std::uint32_t max_fruitless_refills = 10;

/// Who takes the place of a trainer that failed for good.
struct refill_plan {
  /// Start from this trainer's workload and weights; nullopt: the failed one's workload, with weights of its
  /// own.
  std::optional<trainer_id> copy_from;
  hyperparameters hp;
  std::string reason; ///< for people
};

/// Keeps the population at its size: a copy of a healthy trainer (finite loss, equal signature; any signature
/// if the failed one never had any), drawn uniformly, with its hyperparameters perturbed; without one a fresh
/// draw from the search space over the failed trainer's hyperparameters. nullopt if there is neither a donor
/// nor a search space, as the same trainer would fail again, and after `max_fruitless_refills`. A pure function of its
/// arguments.
std::optional<refill_plan> plan_refill(const refill_input& in, const search_space& space,
                                       const perturbation& how, random_stream& rng);

} // namespace troupe::core
