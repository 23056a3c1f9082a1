#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "troupe/core/random.hpp"
#include "troupe/core/value.hpp"

namespace troupe::core {

/// Real numbers in [low, high]; with `quantum` > 0 only low, low + quantum, …
struct uniform_domain {
  double low = 0, high = 1, quantum = 0;
};
/// Positive reals in [low, high], uniform in the logarithm.
struct log_uniform_domain {
  double low = 1e-4, high = 1;
};
/// Whole numbers low … high, ends included; `log`: uniform in the logarithm.
struct integer_domain {
  std::int64_t low = 0, high = 1;
  bool log = false;
};
/// One of the values; `ordered`: neighbours in the list are near each other.
struct choice_domain {
  std::vector<value> values;
  bool ordered = false;
};

using domain = std::variant<uniform_domain, log_uniform_domain, integer_domain, choice_domain>;

/// Where `x` lies between the ends of its domain, 0 to 1 on the domain's own scale (logarithm, place in the list); nullopt: it
/// is not in the domain. A domain of one value gives 0.5.
std::optional<double> unit_of(const domain& d, const value& x);
/// The value there, nearest on the grid; `unit` is cut to 0 … 1.
value value_at(const domain& d, double unit);

/// How a value moves when a population based training perturbs it.
struct perturbation {
  double factor = 1.2;                ///< numbers are multiplied or divided by it; finite, above 1
  double resample_probability = 0.25; ///< of a fresh draw instead; 0 to 1
};

/// Which hyperparameters may vary, and how. Checked when made, so that sampling cannot fail.
class search_space {
public:
  /// {"lr": {"type": "log_uniform", "low": 1e-4, "high": 1e-1}, "batch": {"type": "choice", "values": [32,
  /// 64], "ordered": true}, …} "low" and "high" (both needed) are inside; "quantum", "log" and "ordered" may
  /// be left out. All faults together, each with its JSON pointer below `where`: reversed, empty or
  /// non-finite bounds, log of values <= 0, empty choices, unknown types and keys.
  static std::variant<search_space, std::vector<error>> from_json(const nlohmann::json& j,
                                                                  std::string_view where);

  bool empty() const noexcept { return domains_.empty(); }
  const std::map<std::string, domain, std::less<>>& domains() const noexcept { return domains_; }

  /// A fresh draw of every value.
  hyperparameters sample(random_stream& rng) const;
  /// Every value of the space in `hp` moves; other keys stay. The result is always inside the bounds and on
  /// the grid. Up and down have equal probability; where a bound is in the way the value goes the other way,
  /// so that only a domain of one value stands still. An integer moves by at least one and a number with a
  /// quantum by at least one quantum; an exact 0, which no factor moves, moves by a twentieth of the domain's
  /// width times (factor - 1). Of an ordered choice the neighbour is taken, of another choice any other
  /// value. A value that is not in its domain (or missing) is drawn afresh. A whole number counts as real and
  /// a real without fraction as whole; the result has the domain's own type. Throws `std::invalid_argument`
  /// if `how` is outside its limits.
  hyperparameters perturb(const hyperparameters& hp, const perturbation& how, random_stream& rng) const;
  /// One text per value that is outside its domain.
  std::vector<error> check(const hyperparameters& hp, std::string_view where) const;

private:
  std::map<std::string, domain, std::less<>> domains_;
};

} // namespace troupe::core
