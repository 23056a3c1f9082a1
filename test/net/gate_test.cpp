#include <doctest/doctest.h>

#include "gate.hpp"
#include "proof.hpp"

using namespace troupe;
using namespace troupe::net;

namespace {

struct fixture {
  token secret = token::random();
  gate g = make();
  gate make() const {
    std::vector<gate::worker> w(2);
    for (std::uint32_t i = 0; i < 2; ++i) {
      w[i].terms.node = i + 1;
      w[i].process_id = 100 + i;
    }
    return {secret, w};
  }
  static knock good_knock(std::uint32_t worker = 1) {
    const auto v = build_versions::current();
    return {v.format, v.caf, v.troupe, worker, 99 + worker, "nonce-of-worker"};
  }
  answer right(const challenge& c, const token& key, std::uint32_t worker = 1) const {
    return {c.session, proof_of(key, "worker", worker, c.nonce, "nonce-of-worker").to_hex()};
  }
  core::result<admission> enter(const std::string& who, std::uint32_t worker) {
    const auto c = g.on_knock(who, good_knock(worker));
    if (!c)
      return c.error();
    return g.on_answer(who, right(*c, secret, worker));
  }
  void expect_refusal(const knock& k, std::initializer_list<std::string> words) {
    const auto c = g.on_knock("x", k);
    REQUIRE_FALSE(c);
    CHECK(c.error().code == core::errc::refused);
    for (const auto& w : words)
      CHECK_MESSAGE(c.error().text.find(w) != std::string::npos, c.error().text);
  }
};

} // namespace

TEST_CASE("the proofs are HMAC with SHA-256 as RFC 4231 tests it") {
  token::bytes_type key{}; // the RFC's key of 20 bytes, zero-padded as HMAC pads it
  std::fill_n(key.begin(), 20, std::uint8_t{0x0b});
  CHECK(hmac(token{key}, "Hi There").to_hex() == "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
}

TEST_CASE("a worker that knows the token gets in and gets its own terms") {
  fixture f;
  const auto a = f.enter("p1", 1), b = f.enter("p2", 2);
  REQUIRE(a);
  REQUIRE(b);
  CHECK(a->node == 1);
  CHECK(b->node == 2);
}

TEST_CASE("the head proves that it knows the token too") {
  fixture f;
  const auto c = f.g.on_knock("p", fixture::good_knock());
  REQUIRE(c);
  CHECK(c->proof == proof_of(f.secret, "head", 1, c->nonce, "nonce-of-worker").to_hex());
  CHECK(c->proof != f.right(*c, f.secret).proof);
}

TEST_CASE("other versions are refused with both of them") {
  fixture f;
  auto k = fixture::good_knock();
  k.format = 999;
  f.expect_refusal(k, {"message format", "999", std::to_string(message_format)});
  k.format = message_format - 1; // what it would say of its slots could not be read
  f.expect_refusal(k, {"message format", std::to_string(message_format - 1), std::to_string(message_format)});
  k = fixture::good_knock();
  k.caf_version += 1;
  f.expect_refusal(k, {"CAF", std::to_string(CAF_VERSION + 1), std::to_string(CAF_VERSION)});
  k = fixture::good_knock();
  k.troupe_version = "9.9.9";
  f.expect_refusal(k, {"Troupe", "9.9.9"});
}

TEST_CASE("a worker that was not started or is another process is refused") {
  fixture f;
  for (const std::uint32_t n : {0u, 3u}) {
    auto k = fixture::good_knock();
    k.worker = n;
    f.expect_refusal(k, {"no worker " + std::to_string(n)});
  }
  auto k = fixture::good_knock();
  k.process_id = 7;
  f.expect_refusal(k, {"process 100", "7"});
}

TEST_CASE("a wrong token is refused and the challenge is spent") {
  fixture f;
  const auto c = f.g.on_knock("p", fixture::good_knock());
  REQUIRE(c);
  const auto wrong = f.g.on_answer("p", f.right(*c, token::random()));
  REQUIRE_FALSE(wrong);
  CHECK(wrong.error().text.find("wrong token") != std::string::npos);
  CHECK_FALSE(f.g.on_answer("p", f.right(*c, f.secret)));
  for (const std::string proof : {"", "zz", "00"}) {
    const auto again = f.g.on_knock("p", fixture::good_knock());
    REQUIRE(again);
    CHECK_FALSE(f.g.on_answer("p", {again->session, proof}));
  }
  CHECK(f.enter("p", 1));
}

TEST_CASE("a proof is good for its own challenge and process only") {
  fixture f;
  const auto first = f.g.on_knock("p", fixture::good_knock()), second = f.g.on_knock("p", fixture::good_knock());
  REQUIRE(first);
  REQUIRE(second);
  CHECK_FALSE(f.g.on_answer("q", f.right(*second, f.secret)));
  CHECK_FALSE(f.g.on_answer("p", {second->session, f.right(*first, f.secret).proof}));
  CHECK(f.g.on_answer("p", f.right(*first, f.secret)));
}

TEST_CASE("a worker joins once") {
  fixture f;
  const auto early = f.g.on_knock("q", fixture::good_knock());
  REQUIRE(early);
  REQUIRE(f.enter("p", 1));
  CHECK_FALSE(f.enter("q", 1));
  CHECK_FALSE(f.g.on_answer("q", f.right(*early, f.secret))); // challenged before, answered after
  CHECK_FALSE(f.enter("p", 2));                               // one process, two workers
  CHECK(f.enter("r", 2));
}

TEST_CASE("only who was admitted may go on and only under its own session") {
  fixture f;
  const auto c = f.g.on_knock("p", fixture::good_knock());
  REQUIRE(c);
  CHECK_FALSE(f.g.admitted("p", c->session));
  REQUIRE(f.g.on_answer("p", f.right(*c, f.secret)));
  const auto in = f.g.admitted("p", c->session);
  REQUIRE(in);
  CHECK(*in == 1);
  CHECK_FALSE(f.g.admitted("q", c->session));
  CHECK_FALSE(f.g.admitted("p", c->session + 1));
}

TEST_CASE("a challenge ends with its process") {
  fixture f;
  const auto c = f.g.on_knock("p", fixture::good_knock());
  REQUIRE(c);
  f.g.gone("p");
  CHECK_FALSE(f.g.on_answer("p", f.right(*c, f.secret)));
}

TEST_CASE("those who only knock keep nobody out") {
  fixture f;
  for (int i = 0; i < 2000; ++i)
    CHECK(f.g.on_knock("flood", fixture::good_knock()));
  CHECK(f.enter("p", 1));
  for (int i = 0; i < 2000; ++i)
    CHECK(f.g.on_knock("flood", fixture::good_knock(2)));
  CHECK(f.enter("q", 2));
}

TEST_CASE("an endless nonce is refused") {
  fixture f;
  auto k = fixture::good_knock();
  k.nonce = std::string(1000, 'x');
  f.expect_refusal(k, {"nonce"});
  k.nonce.clear();
  f.expect_refusal(k, {"nonce"});
}
