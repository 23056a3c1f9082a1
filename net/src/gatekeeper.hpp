#pragma once

#include <functional>
#include <string>

#include "gate.hpp"
#include "troupe/net/cluster.hpp"

namespace troupe::net {

/// What the gatekeeper tells its head; called in its turns, so it must not block.
struct gatekeeper_events {
  std::function<void(std::uint32_t worker, worker_state now, const std::string& note)> changed;
  std::function<void(const std::string& line)> log;
  std::function<bool()> stopping; ///< true: an exit message is the head's own
};

/// The one actor that a head publishes. Asks the gate, keeps who came until there is a run, and watches the agents of the
/// workers: one that is lost is reported so that its process is killed.
///
/// Whatever arrives over the network and is not one of the joining messages is dropped (a request: answered with an error).
caf::actor spawn_gatekeeper(caf::actor_system& sys, gate rules, gatekeeper_events events);

} // namespace troupe::net
