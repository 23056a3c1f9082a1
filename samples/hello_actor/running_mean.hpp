#pragma once

// The messages of a small actor, and its handle. Whoever talks to the actor includes this and nothing else of it.

#include <cstdint>

#include "troupe/actors/caf.hpp"
#include "troupe/actors/messages.hpp" // has wire_real's number, which CAF 1.x asks for where it is an answer by itself

namespace hello {

/// Step 1: messages are plain structs. Real numbers travel as wire_real, which CAF cannot garble; a raw float or double here does
/// not compile.
struct observe {
  troupe::actors::wire_real x;
};
TROUPE_INSPECT(observe, x)

/// Asks for the mean of the newest `count` numbers.
struct query_mean {
  std::uint32_t count = 0;
};
TROUPE_INSPECT(query_mean, count)

/// Step 2: the handle says what the actor answers to what. A message that it does not know does not compile.
using running_mean =
    troupe::actors::typed_actor<troupe::actors::result<void>(observe),
                                troupe::actors::result<troupe::actors::wire_real>(query_mean)>;

/// Starts one.
running_mean spawn_running_mean(caf::actor_system& system);

} // namespace hello

// Step 3: every message type gets a number. Yours begin where Troupe's end.
CAF_BEGIN_TYPE_ID_BLOCK(hello, troupe::actors::first_user_type_id)
  CAF_ADD_TYPE_ID(hello, (hello::observe))
  CAF_ADD_TYPE_ID(hello, (hello::query_mean))
CAF_END_TYPE_ID_BLOCK(hello)
