#pragma once

#include <functional>
#include <memory>

#include "troupe/actors/slot.hpp"
#include "troupe/core/result.hpp"

namespace troupe::actors::internal {

/// The answer to a trainer's request number `request`, with what to do about it in the trainer's turn.
struct resumption {
  std::uint64_t request = 0;
  std::function<void()> then;
};
TROUPE_LOCAL_MESSAGE(resumption)

/// From its agent to a trainer: go on on this slot of the same node, at the next step boundary. `done` is called once, unless the
/// trainer ends before: in the trainer's turn, so it may only post. `cancelled`: it had no run to go on with; another error: the
/// slot cannot take it.
struct move_trainer {
  std::shared_ptr<gpu::slot_worker> worker;
  slot_actor slot;
  std::uint32_t index = 0;
  std::function<void(core::error)> done;
};
TROUPE_LOCAL_MESSAGE(move_trainer)

/// From an actor of a node to its agent: something to do in its turn.
struct agent_call {
  std::function<void()> what;
};
TROUPE_LOCAL_MESSAGE(agent_call)

} // namespace troupe::actors::internal

CAF_BEGIN_TYPE_ID_BLOCK(troupe_node, caf::id_block::troupe_slot::end)
  CAF_ADD_TYPE_ID(troupe_node, (troupe::actors::internal::resumption))
  CAF_ADD_TYPE_ID(troupe_node, (troupe::actors::internal::agent_call))
  CAF_ADD_TYPE_ID(troupe_node, (troupe::actors::internal::move_trainer))
CAF_END_TYPE_ID_BLOCK(troupe_node)
