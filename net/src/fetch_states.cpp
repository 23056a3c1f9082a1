#include "fetch_states.hpp"

#include <utility>

namespace troupe::net {

actors::fetch_state fetch_states(std::shared_ptr<tensor_client> client) {
  return [client](const actors::state_ref& x, std::function<void(core::result<core::checkpoint_ptr>)> done) {
    if (x.host.empty() || x.port == 0)
      return done(core::error{core::errc::refused, "the state " + std::to_string(x.blob) + " of node "
                                                     + std::to_string(x.node) + " cannot be had from another process"});
    client->fetch(x.host, x.port, x.blob, [x, done = std::move(done)](core::result<core::checkpoint_ptr> got) {
      const auto name = "the state " + std::to_string(x.blob) + " of node " + std::to_string(x.node);
      if (!got)
        return done(core::error{got.error().code, name + ": " + got.error().text});
      // The chunks' checksums guard the way; this guards against another state under the same number.
      if ((*got)->bytes() != x.bytes || core::content_hash(**got) != x.hash)
        return done(core::error{core::errc::io, name + " is not the one that was announced: its size or hash differs"});
      done(std::move(got));
    });
  };
}

} // namespace troupe::net
