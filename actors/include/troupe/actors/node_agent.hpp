#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "troupe/actors/blob_store.hpp"
#include "troupe/actors/messages.hpp"
#include "troupe/core/checkpoint.hpp"
#include "troupe/core/rebalance.hpp"
#include "troupe/gpu/slot_worker.hpp"
#include "troupe/gpu/workload.hpp"

namespace troupe::actors {

/// Brings a state of another process into this one; calls back once, on any thread (net's tensor transport does it).
using fetch_state =
    std::function<void(const state_ref&, std::function<void(core::result<core::checkpoint_ptr>)> done)>;

/// What a process with slots brings.
struct node_setup {
  std::uint32_t node = 0; ///< its number; 0: the head's own process
  /// Also held by whoever made them: they must outlive the actor system.
  std::vector<std::shared_ptr<gpu::slot_worker>> slots;
  std::shared_ptr<const gpu::workload_registry> workloads;
  std::shared_ptr<blob_store> blobs;
  fetch_state fetch;      ///< null: states of other processes are refused
  std::string host;       ///< of its tensor transport; empty: none
  std::uint16_t port = 0;
  node_observer observer; ///< told node_up at once and slot_lost later; may be null
  core::rebalance_options rebalance;
};

/// Starts the agent of this process: it owns the slots' actors, builds trainers on them when told to, and reports those that end
/// without a word (an exception in a trainer's own handlers) as failed, with the exception's text.
///
/// A trainer that is hosted again with a higher incarnation replaces the old one; the same or a lower incarnation is ignored. On
/// exit the agent ends its trainers and slots.
///
/// A CPU slot that has become idle takes over a trainer of another CPU slot where two or more share the time, if core::choose_move
/// finds it worth the cost: of those hosted as `movable`, one at a time.
node_agent_actor spawn_node_agent(caf::actor_system& sys, node_setup setup);

} // namespace troupe::actors
