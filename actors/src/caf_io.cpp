#include "troupe/actors/caf_io.hpp"

namespace troupe::actors {

void enable_network(system_config& cfg, const network_options& options) {
#if TROUPE_CAF_MODERN
  [[maybe_unused]] static const bool known = (caf::io::middleman::init_global_meta_objects(), true);
#endif
  cfg.load<caf::io::middleman>(); // 1.x knows the module's options only from here on
  cfg.set(caf_key("middleman.heartbeat-interval"), caf::timespan{options.heartbeat_interval});
  cfg.set(caf_key("middleman.connection-timeout"), caf::timespan{options.connection_timeout});
  cfg.set(caf_key("middleman.enable-automatic-connections"), false);
}

} // namespace troupe::actors
