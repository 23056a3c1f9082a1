#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "troupe/core/policy.hpp"

namespace troupe::core {

/// The factories of Troupe's own policies; parameters as for `policy_registry::factory`.
std::unique_ptr<policy> make_schedule(const nlohmann::json& options, const search_space& space,
                                      std::span<const std::string> trainer_names, std::string_view where,
                                      std::vector<error>& faults);
std::unique_ptr<policy> make_average(const nlohmann::json& options, const search_space& space,
                                     std::span<const std::string> trainer_names, std::string_view where,
                                     std::vector<error>& faults);
std::unique_ptr<policy> make_pbt(const nlohmann::json& options, const search_space& space,
                                 std::span<const std::string> trainer_names, std::string_view where,
                                 std::vector<error>& faults);

/// A trainer's number by its name; a fault at `where` if there is none.
std::optional<trainer_id> trainer_named(const nlohmann::json& name,
                                        std::span<const std::string> trainer_names, std::string_view where,
                                        std::vector<error>& faults);

/// Empty if the input has no signatures: then all are equal.
inline std::string_view signature_in(const policy_input& in, trainer_id t) {
  return in.signature ? in.signature(t) : std::string_view{};
}

/// True at every n-th sync point: with n = 2 at numbers 1, 3, 5 …
inline bool is_due(sync_index k, std::uint64_t every) noexcept { return (std::uint64_t{k} + 1) % every == 0; }

} // namespace troupe::core
