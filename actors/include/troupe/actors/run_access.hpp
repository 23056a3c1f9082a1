#pragma once

#include <functional>

#include "troupe/actors/messages.hpp"

namespace troupe::actors {

class run_session;

/// What net and tests need of a run beside its public interface.
struct run_access {
  /// To whom node agents of other processes present themselves, from `run_session::start` on. A node that comes after the run
  /// began is used for trainers that are placed from then on. Null once the run is over.
  static node_observer nodes(const run_session& run);
  /// Does `job` on the thread that writes the record: what is written after it waits for it, as for a slow disk.
  static void on_store(const run_session& run, std::function<void()> job);
};

} // namespace troupe::actors
