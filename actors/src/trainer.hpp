#pragma once

#include <functional>
#include <memory>

#include "troupe/actors/node_agent.hpp"
#include "trainer_messages.hpp"
#include "troupe/actors/slot.hpp"

namespace troupe::actors::internal {

/// What a trainer's actor is built from.
struct trainer_setup {
  host_trainer order;
  std::shared_ptr<gpu::slot_worker> worker; ///< of its slot: only for make_hosted
  slot_actor slot;
  std::shared_ptr<const gpu::workload_registry> workloads;
  std::shared_ptr<blob_store> blobs;
  fetch_state fetch; ///< may be null
  std::uint64_t number = 0; ///< of this life, in what the slot tells of its load
};

/// A trainer, as its agent sees it.
using hosted_trainer = extend<trainer_actor, result<void>(resumption), result<void>(move_trainer)>;

/// Starts a trainer: it builds its workload on the slot and tells the observer.
hosted_trainer spawn_trainer(caf::actor_system& sys, trainer_setup setup);

} // namespace troupe::actors::internal
