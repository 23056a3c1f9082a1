#include "troupe/core/barrier_ledger.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace troupe::core {

/// Takes over its times; what it computed since its last report.
double barrier_ledger::advance(const metadata& m) {
  auto& x = last_[m.trainer];
  if (x.incarnation != m.incarnation) {
    x.incarnation = m.incarnation;
    x.compute = x.parked = x.owed = 0;
  }
  const auto computed = std::max(m.compute_seconds - x.compute, 0.0);
  const auto parked = std::max(m.sync_seconds - x.parked, 0.0);
  x.compute = m.compute_seconds;
  x.parked = m.sync_seconds;
  const auto bound = std::min(std::exchange(x.owed, 0.0), parked); // the rest it spent waiting for its slot
  if (!std::exchange(x.skip, false)) {
    x.sum.seconds += parked;
    total_.seconds += parked;
    x.sum.bound += bound;
    total_.bound += bound;
  }
  return computed;
}

void barrier_ledger::add(std::span<const metadata> reports) {
  std::vector<double> computed;
  double slowest = 0;
  for (const auto& m : reports) {
    computed.push_back(advance(m));
    slowest = std::max(slowest, computed.back());
  }
  for (std::size_t i = 0; i < reports.size(); ++i)
    last_[reports[i].trainer].owed = slowest - computed[i];
}

barrier_ledger::waits barrier_ledger::of(trainer_id t) const {
  const auto i = last_.find(t);
  return i == last_.end() ? waits{} : i->second.sum;
}

} // namespace troupe::core
