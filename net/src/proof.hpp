#pragma once

#include <string>
#include <string_view>

#include "troupe/net/token.hpp"

namespace troupe::net {

/// HMAC-SHA256 (RFC 2104) of `text` under `key`: shows that its maker knows the key without sending it, and makes keys for
/// different uses out of one.
token hmac(const token& key, std::string_view text);

/// What the two ends of a connection show each other. Both sides' nonces are in it, so that an old proof is worth nothing, and
/// the role, so that one's proof is not the other's.
inline token proof_of(const token& key, std::string_view role, std::uint32_t worker, std::string_view head_nonce,
                      std::string_view worker_nonce) {
  return hmac(key, std::string{role} + "\n" + std::to_string(worker) + "\n" + std::string{head_nonce} + "\n"
                     + std::string{worker_nonce});
}

/// The tensor transport's own token, made of the run's.
inline token tensor_token(const token& run) {
  return hmac(run, "tensor transport");
}

} // namespace troupe::net
