#include "proof.hpp"

#include <stdexcept>

#include <openssl/evp.h>
#include <openssl/hmac.h>

namespace troupe::net {

token hmac(const token& key, std::string_view text) {
  token::bytes_type out{};
  unsigned size = out.size();
  const auto* ok = ::HMAC(::EVP_sha256(), key.bytes().data(), static_cast<int>(token::size),
                          reinterpret_cast<const unsigned char*>(text.data()), text.size(), out.data(), &size);
  if (!ok || size != out.size())
    throw std::runtime_error{"OpenSSL could not compute an HMAC-SHA256"};
  return token{out};
}

} // namespace troupe::net
