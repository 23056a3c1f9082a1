#pragma once

/// CAF's network layer, for those few sources that publish actors or dial others.

#include <chrono>

#include "caf/io/middleman.hpp"

#include "troupe/actors/caf.hpp"

namespace troupe::actors {

/// How a silent peer is found out. CAF 0.17.6 checks nothing by default, so a frozen peer is never noticed.
struct network_options {
  std::chrono::milliseconds heartbeat_interval{1000}; ///< 0: peers are not checked; for those who have another way
  /// A peer that sent nothing for so long is gone; at least five times the longest message's time.
  std::chrono::milliseconds connection_timeout{5000};
};

/// Loads the network layer into `cfg` with heartbeats on, automatic connections off. Call before the actor system is made.
void enable_network(system_config& cfg, const network_options& options = {});

} // namespace troupe::actors
