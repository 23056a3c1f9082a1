#include "troupe/actors/messages.hpp"

#include "control_messages.hpp"
#include "trainer_messages.hpp"
#include "troupe/actors/gpu_actor.hpp"
#include "troupe/core/trainer_machine.hpp"

namespace troupe::actors {

static_assert(caf::id_block::troupe_node::end <= caf::id_block::troupe_gpu::begin, "type ids overlap");
static_assert(caf::id_block::troupe_gpu::end <= caf::id_block::troupe_control::begin, "type ids overlap");
static_assert(caf::id_block::troupe_control::end <= first_user_type_id, "Troupe's type ids run into the users'");

static_assert(static_cast<int>(trainer_phase::failed) == static_cast<int>(core::trainer_phase::failed));

std::string to_string(trainer_phase x) { return std::string{core::to_string(static_cast<core::trainer_phase>(x))}; }

void register_messages([[maybe_unused]] caf::actor_system_config& cfg) {
#if TROUPE_CAF_MODERN
  init_types<caf::id_block::troupe_messages, caf::id_block::troupe_slot, caf::id_block::troupe_node,
             caf::id_block::troupe_gpu, caf::id_block::troupe_control>();
#else
  cfg.add_message_types<caf::id_block::troupe_messages>();
  cfg.add_message_types<caf::id_block::troupe_slot>();
  cfg.add_message_types<caf::id_block::troupe_node>();
  cfg.add_message_types<caf::id_block::troupe_gpu>();
  cfg.add_message_types<caf::id_block::troupe_control>();
#endif
}

} // namespace troupe::actors
