#pragma once

/// Forward declarations of net's public types.
namespace troupe::net {

class token;
class tensor_server;
class tensor_client;
class control_server;

} // namespace troupe::net
