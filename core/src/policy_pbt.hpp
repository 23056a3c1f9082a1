#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "policies.hpp"

namespace troupe::core {

struct pbt_options {
  objective by;
  double quantile = 0.25;
  perturbation how;
  std::uint64_t every = 1;
  std::uint64_t burn_in_steps = 0;
  std::optional<std::set<trainer_id>> recipients; ///< nullopt: everybody
};

/// How many of `n`, at least 2, are in each end's quantile: at least one, at most half.
std::size_t quantile_size(std::size_t n, double quantile);

/// Reads everything but what "explore" needs; faults as for `policy_registry::factory`.
void read_pbt(internal::object_reader& in, pbt_options& into, std::span<const std::string> trainer_names,
              std::vector<error>& faults);

/// Population based training (Jaderberg et al. 2017, "Population Based Training of Neural Networks") with
/// truncation selection: who ranks in the bottom quantile exploits somebody drawn from the top quantile and
/// explores from there. Each signature is a population of its own, as weights go only between equals.
class pbt_policy : public policy {
public:
  pbt_policy(pbt_options options, search_space space)
      : options_(std::move(options)), space_(std::move(space)) {}

  bool moves_weights() const override { return true; }
  std::map<trainer_id, decision> decide(const policy_input& in, random_stream& rng) const override;

protected:
  /// Finds new hyperparameters for those that exploit, one after the other in one sync point.
  class explorer {
  public:
    virtual ~explorer() = default;
    virtual hyperparameters explore(const metadata& me, const metadata& donor, random_stream& rng) = 0;
  };
  /// The donor's hyperparameters, moved.
  virtual std::unique_ptr<explorer> explore_at(const policy_input& in) const;
  const pbt_options& options() const { return options_; }
  const search_space& space() const { return space_; }

private:
  using population = std::vector<const metadata*>;
  void decide_one(const metadata& me, const population& ranked, std::size_t reports, decision& d,
                  explorer& how, random_stream& rng) const;
  hyperparameters changes(const hyperparameters& mine, const hyperparameters& wanted) const;

  pbt_options options_;
  search_space space_;
};

} // namespace troupe::core
