#include "troupe/actors/messages.hpp"

namespace troupe::actors {

static_assert(caf::id_block::troupe_messages::end <= first_user_type_id, "Troupe's type ids run into the users'");

std::string to_string(trainer_phase x) {
  switch (x) {
  case trainer_phase::building: return "building";
  case trainer_phase::ready: return "ready";
  case trainer_phase::running: return "running";
  case trainer_phase::parked: return "parked";
  case trainer_phase::applying: return "applying";
  case trainer_phase::stopping: return "stopping";
  case trainer_phase::finished: return "finished";
  case trainer_phase::failed: return "failed";
  }
  return "invalid";
}

void register_messages([[maybe_unused]] caf::actor_system_config& cfg) {
#if TROUPE_CAF_MODERN
  init_types<caf::id_block::troupe_messages>();
#else
  cfg.add_message_types<caf::id_block::troupe_messages>();
#endif
}

} // namespace troupe::actors
