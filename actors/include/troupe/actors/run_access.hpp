#pragma once

#include "troupe/actors/messages.hpp"

namespace troupe::actors {

class run_session;

/// What net needs of a run beside its public interface.
struct run_access {
  /// To whom node agents of other processes present themselves, from `run_session::start` on. A node that comes after the run
  /// began is used for trainers that are placed from then on. Null once the run is over.
  static node_observer nodes(const run_session& run);
};

} // namespace troupe::actors
