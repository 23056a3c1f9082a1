#pragma once

#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "troupe/core/random.hpp"
#include "troupe/core/value.hpp"

namespace troupe::core {

/// Real numbers in [low, high]; with `quantum` > 0 only low, low + quantum, …
struct uniform_domain { double low = 0, high = 1, quantum = 0; };
/// Positive reals in [low, high], uniform in the logarithm.
struct log_uniform_domain { double low = 1e-4, high = 1; };
/// Whole numbers low … high, ends included; `log`: uniform in the logarithm.
struct integer_domain { std::int64_t low = 0, high = 1; bool log = false; };
/// One of the values; `ordered`: neighbours in the list are near each other.
struct choice_domain { std::vector<value> values; bool ordered = false; };

using domain = std::variant<uniform_domain, log_uniform_domain, integer_domain, choice_domain>;

/// How a value moves when a population based training perturbs it.
struct perturbation {
  double factor = 1.2;             ///< numbers are multiplied or divided by it
  double resample_probability = 0.25; ///< else a fresh draw
};

/// Which hyperparameters may vary, and how. Checked when made, so that sampling cannot fail.
class search_space {
public:
  /// {"lr": {"type": "log_uniform", "low": 1e-4, "high": 1e-1}, "batch": {"type": "choice", "values": [32, 64], "ordered": true}, …}
  /// All faults together, each with its JSON pointer below `where`: reversed, empty or non-finite bounds, log of values
  /// <= 0, empty choices, unknown types and keys.
  static std::variant<search_space, std::vector<error>> from_json(const nlohmann::json& j, std::string_view where);

  bool empty() const noexcept { return domains_.empty(); }
  const std::map<std::string, domain, std::less<>>& domains() const noexcept { return domains_; }

  hyperparameters sample(random_stream& rng) const;
  /// Every value of the space in `hp` moves; other keys stay. The result is always inside the bounds and on the grid; an
  /// integer moves by at least one wherever its bounds allow, up or down with equal probability; a value that is not in
  /// its domain (or missing) is drawn afresh.
  hyperparameters perturb(const hyperparameters& hp, const perturbation& how, random_stream& rng) const;
  /// One text per value that is outside its domain.
  std::vector<error> check(const hyperparameters& hp, std::string_view where) const;

private:
  std::map<std::string, domain, std::less<>> domains_;
};

} // namespace troupe::core
