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

namespace internal {
class object_reader;
}

/// What a policy ranks trainers by.
struct objective {
  std::string metric = "accuracy"; ///< as for `metadata::number`
  bool maximise = true;

  /// Others must neither win nor count.
  bool healthy(const metadata& m) const;
  bool better(double a, double b) const { return maximise ? a > b : a < b; }
  bool better(const metadata& a, const metadata& b) const;
  /// A strict weak order, as NaN never gets as far as a comparison: healthy ones first, ties by number.
  bool ranks_before(const metadata& a, const metadata& b) const;
  std::string text(const metadata& m) const; ///< "accuracy 0.91"
  /// Why it is not healthy: "its loss is not finite", or, where there is no such number, which numbers it reports.
  std::string fault(const metadata& m) const;
};

/// Keys "metric" and "mode" of a policy's options.
void read_objective(internal::object_reader& in, objective& into);

/// Four digits, for people.
std::string shown_number(double x);

/// The factories of Troupe's own policies; parameters as for `policy_registry::factory`.
using policy_maker = std::unique_ptr<policy>(const nlohmann::json& options, const search_space& space,
                                             std::span<const std::string> trainer_names, std::string_view where,
                                             std::vector<error>& faults);
policy_maker make_schedule, make_average, make_pbt, make_halving, make_asha, make_median, make_pb2;

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
