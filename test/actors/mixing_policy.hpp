#pragma once

#include <map>

#include "troupe/core/policy.hpp"
#include "troupe/core/random.hpp"

namespace troupe::test {

/// Everything that moves: new values, copies, averages.
inline std::map<core::trainer_id, core::decision> mix(const core::policy_input& in, core::random_stream& rng) {
  std::map<core::trainer_id, core::decision> out;
  for (const auto& m : in.reports)
    out[m.trainer].changes.set("lr", rng.uniform(0.01, 1) + m.loss / 100);
  if (in.reports.size() > 2) {
    out[in.reports[0].trainer].copy_from = in.reports[1].trainer;
    out[in.reports[2].trainer].average_of = {in.reports[0].trainer, in.reports[2].trainer};
  }
  return out;
}

} // namespace troupe::test
