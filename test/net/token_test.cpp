#include <doctest/doctest.h>

#include "troupe/net/token.hpp"

using troupe::net::token;

TEST_CASE("a random token is not empty and differs from the next") {
  const auto a = token::random(), b = token::random();
  CHECK_FALSE(a.empty());
  CHECK(token{}.empty());
  CHECK(a.matches(a));
  CHECK_FALSE(a.matches(b));
}

TEST_CASE("a token survives its hexadecimal form") {
  const auto a = token::random();
  const auto text = a.to_hex();
  CHECK(text.size() == 64);
  const auto back = token::from_hex(text);
  REQUIRE(back);
  CHECK(a.matches(*back));
}

TEST_CASE("tokens differ if any one byte differs") {
  auto bytes = token::random().bytes();
  const token a{bytes};
  for (auto& b : bytes) {
    b ^= 0x80;
    CHECK_FALSE(a.matches(token{bytes}));
    b ^= 0x80;
  }
}

TEST_CASE("a text that is no token is refused without repeating it") {
  const std::string secret = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdeg";
  for (const auto& text : {secret, secret.substr(0, 63), std::string{}}) {
    const auto x = token::from_hex(text);
    REQUIRE_FALSE(x);
    if (!text.empty())
      CHECK(x.error().text.find(text) == std::string::npos);
  }
}
