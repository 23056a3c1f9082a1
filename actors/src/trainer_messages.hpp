#pragma once

#include <functional>

#include "troupe/actors/slot.hpp"

namespace troupe::actors::internal {

/// The answer to a trainer's request number `request`, with what to do about it in the trainer's turn.
struct resumption {
  std::uint64_t request = 0;
  std::function<void()> then;
};
TROUPE_LOCAL_MESSAGE(resumption)

/// From an actor of a node to its agent: something to do in its turn.
struct agent_call {
  std::function<void()> what;
};
TROUPE_LOCAL_MESSAGE(agent_call)

} // namespace troupe::actors::internal

CAF_BEGIN_TYPE_ID_BLOCK(troupe_node, caf::id_block::troupe_slot::end)
  CAF_ADD_TYPE_ID(troupe_node, (troupe::actors::internal::resumption))
  CAF_ADD_TYPE_ID(troupe_node, (troupe::actors::internal::agent_call))
CAF_END_TYPE_ID_BLOCK(troupe_node)
