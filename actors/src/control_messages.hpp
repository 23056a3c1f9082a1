#pragma once

#include <functional>

#include "troupe/actors/caf.hpp"

/// Messages between the actors of the head's process.
namespace troupe::actors::internal {

class coordinator;
class supervisor;

/// Something to do in the coordinator's turn: how the store, the supervisor and the session's control speak
/// to it.
struct coordinator_call {
  std::function<void(coordinator&)> what;
};
TROUPE_LOCAL_MESSAGE(coordinator_call)

struct supervisor_call {
  std::function<void(supervisor&)> what;
};
TROUPE_LOCAL_MESSAGE(supervisor_call)

/// A delayed message to oneself; one of an older generation is void.
enum class alarm_kind : std::uint8_t { deadline, clock, progress, time, slots, save, node_wait };
inline std::string to_string(alarm_kind x) {
  switch (x) {
  case alarm_kind::deadline:
    return "deadline";
  case alarm_kind::clock:
    return "clock";
  case alarm_kind::time:
    return "time";
  case alarm_kind::slots:
    return "slots";
  case alarm_kind::save:
    return "save";
  case alarm_kind::progress:
    return "progress";
  case alarm_kind::node_wait:
    return "node_wait";
  }
  return "invalid";
}
TROUPE_ENUM(alarm_kind, alarm_kind::node_wait)

struct alarm {
  alarm_kind kind = alarm_kind::deadline;
  std::uint64_t generation = 0;
};
TROUPE_INSPECT(alarm, kind, generation)

} // namespace troupe::actors::internal

CAF_BEGIN_TYPE_ID_BLOCK(troupe_control, caf::first_custom_type_id + 100)
CAF_ADD_TYPE_ID(troupe_control, (troupe::actors::internal::coordinator_call))
CAF_ADD_TYPE_ID(troupe_control, (troupe::actors::internal::supervisor_call))
CAF_ADD_TYPE_ID(troupe_control, (troupe::actors::internal::alarm))
CAF_END_TYPE_ID_BLOCK(troupe_control)
