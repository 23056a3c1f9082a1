#include "troupe/core/refill.hpp"

#include <cmath>
#include <vector>

namespace troupe::core {

std::optional<refill_plan> plan_refill(const refill_input& in, const search_space& space,
                                       const perturbation& how, random_stream& rng) {
  if (in.fruitless >= max_fruitless_refills)
    return std::nullopt;
  const auto signature_of = [&in](trainer_id t) {
    return in.signature_of ? in.signature_of(t) : std::string_view{};
  };
  std::vector<const metadata*> donors;
  for (const auto& m : in.reports)
    if (m.trainer != in.failed && std::isfinite(m.loss) &&
        (in.signature.empty() || signature_of(m.trainer) == in.signature))
      donors.push_back(&m);
  if (!donors.empty()) {
    const auto& donor = *donors[rng.below(donors.size())];
    return refill_plan{donor.trainer, space.perturb(donor.hp, how, rng), "filled by a copy of " + donor.name};
  }
  if (space.empty())
    return std::nullopt;
  auto hp = in.hp;
  hp.update(space.sample(rng));
  return refill_plan{std::nullopt, std::move(hp), "filled by a fresh draw, as nobody healthy can be copied"};
}

} // namespace troupe::core
