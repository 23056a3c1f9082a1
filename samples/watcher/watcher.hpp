#pragma once

// An actor that watches a run and turns the learning rate down where the loss stalls: its messages and its handle.

#include <cstdint>
#include <memory>
#include <string>

#include "troupe/actors/caf.hpp"
#include "troupe/actors/run.hpp"

namespace watching {

/// What a trainer reported.
struct report {
  std::string trainer;
  troupe::actors::wire_real loss, lr;
};
TROUPE_INSPECT(report, trainer, loss, lr)

/// The way to the run. It holds a pointer, so it stays in this process: sent to another one it would be refused.
struct attach {
  troupe::actors::run_control run;
};
TROUPE_LOCAL_MESSAGE(attach)

/// What came of a push.
struct pushed {
  std::string trainer;
  std::uint64_t step = 0; ///< at which it took effect
  std::string failure;    ///< empty: none
};
TROUPE_INSPECT(pushed, trainer, step, failure)

/// How many pushes have been acknowledged?
struct query_pushes {
  bool finished = false; ///< the run is over: let go of it
};
TROUPE_INSPECT(query_pushes, finished)

using troupe::actors::result;
using watcher = troupe::actors::typed_actor<result<void>(attach), result<void>(report), result<void>(pushed),
                                            result<std::uint32_t>(query_pushes)>;

/// Starts one.
watcher spawn_watcher(caf::actor_system& system);

/// Turns what a run tells into messages to the watcher.
std::shared_ptr<troupe::actors::run_listener> make_listener(const watcher& to);

} // namespace watching

CAF_BEGIN_TYPE_ID_BLOCK(watching, troupe::actors::first_user_type_id)
  CAF_ADD_TYPE_ID(watching, (watching::report))
  CAF_ADD_TYPE_ID(watching, (watching::attach))
  CAF_ADD_TYPE_ID(watching, (watching::pushed))
  CAF_ADD_TYPE_ID(watching, (watching::query_pushes))
CAF_END_TYPE_ID_BLOCK(watching)
