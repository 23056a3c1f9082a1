#pragma once

#include <memory>

#include "troupe/actors/node_agent.hpp"
#include "troupe/net/tensor_transport.hpp"

namespace troupe::net {

/// Fetches states over the tensor transport and checks each against what its ref says: size and content hash.
actors::fetch_state fetch_states(std::shared_ptr<tensor_client> client);

} // namespace troupe::net
