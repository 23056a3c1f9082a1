#pragma once

#include <map>
#include <span>

#include "troupe/core/metadata.hpp"

namespace troupe::core {

/// How long trainers wait at barriers, and how much of that no schedule can save: a barrier cannot close
/// before its slowest trainer has computed what it has to, so every other one waits at least for the
/// difference to its own computing, even if each had a slot to itself.
class barrier_ledger {
public:
  struct waits {
    double seconds = 0; ///< parked at barriers
    double bound = 0;   ///< of these, as the slowest trainers of the barriers set it; never more
  };

  /// The reports of one barrier. Times of another incarnation than the last count from 0.
  void add(std::span<const metadata> reports);
  /// What it says at its end.
  void finish(const metadata& m) { (void)advance(m); }
  /// What it is parked for until its next report is no wait at a barrier.
  void skip(trainer_id t) { last_[t].skip = true; }
  /// All zero for one that was never heard of.
  waits of(trainer_id t) const;
  waits total() const { return total_; }

private:
  struct last {
    std::uint32_t incarnation = 0;
    double compute = 0, parked = 0;
    double owed = 0; ///< what its slowest trainer sets of the wait at the barrier where it stands
    bool skip = false;
    waits sum;
  };
  double advance(const metadata& m);

  std::map<trainer_id, last> last_;
  waits total_;
};

} // namespace troupe::core
