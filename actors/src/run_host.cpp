#include "run_host.hpp"

#include <utility>

namespace troupe::actors::internal {

namespace {
/// Of the listener: progress is left out while it has so much to do.
constexpr std::size_t busy_listener = 16;
} // namespace

void run_host::tell(std::function<void(run_listener&)> what) {
  if (const auto l = options.listener)
    listening->post([l, what = std::move(what)] { what(*l); });
}

void run_host::tell_progress(run_status x) {
  if (options.listener && listening->waiting() < busy_listener)
    tell([x = std::move(x)](run_listener& l) { l.on_progress(x); });
}

state_ref run_host::put(core::checkpoint_ptr x) const { return blobs->put(std::move(x)); }

void run_host::fetch(const state_ref& x, std::function<void(core::result<core::checkpoint_ptr>)> then) const {
  if (x.node == 0) {
    if (auto state = blobs->get(x.blob))
      then(std::move(state));
    else
      then(core::error{core::errc::not_found, "state " + std::to_string(x.blob) + " was dropped"});
    return;
  }
  if (!options.fetch || x.host.empty()) {
    then(core::error{core::errc::refused, "the state lies on node " + std::to_string(x.node) +
                                              ", to which there is no tensor transport"});
    return;
  }
  options.fetch({x.host, x.port, x.blob, x.bytes, x.hash}, std::move(then));
}

} // namespace troupe::actors::internal
