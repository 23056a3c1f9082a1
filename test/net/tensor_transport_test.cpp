#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <map>
#include <memory>

#include "raw_peer.hpp"
#include "troupe/net/tensor_transport.hpp"
#include "wire.hpp"

using namespace troupe;
using namespace troupe::net;
using namespace std::chrono_literals;

namespace {

using fetched = core::result<core::checkpoint_ptr>;

core::checkpoint_ptr make_blob(std::size_t floats, std::uint32_t seed = 1) {
  auto x = std::make_shared<core::checkpoint>();
  std::vector<std::uint32_t> values(floats);
  for (auto& v : values)
    v = seed = seed * 1664525u + 1013904223u;
  const auto bytes = std::as_bytes(std::span{values});
  x->set_text("troupe.step", "12");
  x->set_text("note", "two lines\nof text");
  x->add("weights.empty", core::dtype::f32, {0, 7}, std::span<const std::byte>{});
  x->add("weights.scalar", core::dtype::f64, {}, std::as_bytes(std::span{"1234567", 8}));
  x->add("weights.0", core::dtype::f32, {static_cast<std::int64_t>(floats)}, bytes);
  x->add("odd", core::dtype::u8, {3}, bytes.first(3));
  return x;
}

std::future<fetched> fetch_from(tensor_client& client, std::uint16_t port, std::uint64_t id, const char* host = "127.0.0.1") {
  auto p = std::make_shared<std::promise<fetched>>(); // the answer may come after the test lost interest
  client.fetch(host, port, id, [p](fetched x) { p->set_value(std::move(x)); });
  return p->get_future();
}

/// A server with blobs, and a client that may be another's friend.
struct pair {
  token secret = token::random();
  std::map<std::uint64_t, core::checkpoint_ptr> blobs;
  std::atomic<unsigned> found{0}; ///< blobs that the server was given to send
  std::unique_ptr<tensor_server> server;
  std::unique_ptr<tensor_client> client;

  explicit pair(tensor_server_settings s = {}, tensor_client_settings c = {}) {
    blobs[1] = make_blob(100'000, 1);
    blobs[2] = make_blob(10, 2);
    s.secret = secret;
    s.chunk_bytes = 64u << 10;
    auto x = tensor_server::start(s, [this](std::uint64_t id) {
      const auto i = blobs.find(id);
      auto blob = i == blobs.end() ? nullptr : i->second;
      ++found;
      return blob;
    });
    REQUIRE(x);
    server = std::move(*x);
    if (c.secret.empty())
      c.secret = secret;
    client = std::make_unique<tensor_client>(c);
  }

  fetched fetch(std::uint64_t id, std::uint16_t port = 0) { return ask(id, port).get(); }
  std::future<fetched> ask(std::uint64_t id, std::uint16_t port = 0) {
    return fetch_from(*client, port ? port : server->port(), id);
  }
};

tensor_client_settings impatient() {
  tensor_client_settings c;
  c.connect_timeout = 60ms;
  c.stall_timeout = 60ms;
  return c;
}

raw::bytes hello_of(const token& t, std::uint8_t version = 1) {
  raw::bytes b(8 + token::size);
  std::copy_n("TRPT", 4, b.begin());
  b[4] = static_cast<std::uint8_t>(version);
  std::copy(t.bytes().begin(), t.bytes().end(), b.begin() + 8);
  return b;
}

constexpr std::size_t welcome_bytes = 16, answer_bytes = 32;
/// Bytes from the server before the first tensor data of blob 1: welcome, answer, header.
constexpr std::uint64_t before_header = welcome_bytes + answer_bytes;

} // namespace

TEST_CASE("a fetched checkpoint equals the one that was served") {
  pair p;
  for (const std::uint64_t id : {1, 2}) {
    const auto x = p.fetch(id);
    REQUIRE_MESSAGE(x, x.error().text);
    CHECK(**x == *p.blobs[id]);
  }
  p.server->stop(); // it counts a blob after the client has it
  CHECK(p.server->snapshot().blobs_sent == 2);
  CHECK(p.client->snapshot().bytes_received == p.blobs[1]->bytes() + p.blobs[2]->bytes());
}

TEST_CASE("sixteen mebibytes travel whole") {
  pair p;
  p.blobs[3] = make_blob(4u << 20, 3);
  const auto x = p.fetch(3);
  REQUIRE_MESSAGE(x, x.error().text);
  CHECK(core::content_hash(**x) == core::content_hash(*p.blobs[3]));
}

TEST_CASE("fetches from one server share a connection and come back in order") {
  pair p;
  std::vector<std::future<fetched>> all;
  for (int i = 0; i < 20; ++i)
    all.push_back(p.ask(1 + i % 2));
  for (auto& f : all)
    CHECK(f.get());
  CHECK(p.client->snapshot().connections == 1);
  CHECK(p.server->snapshot().accepted == 1);
}

TEST_CASE("a blob that is not there is an error and keeps the connection") {
  pair p;
  const auto x = p.fetch(77);
  REQUIRE_FALSE(x);
  CHECK(x.error().code == core::errc::not_found);
  CHECK(x.error().text.find("77") != std::string::npos);
  CHECK(p.fetch(2));
  CHECK(p.client->snapshot().connections == 1);
}

TEST_CASE("a wrong token is refused with the reason") {
  tensor_client_settings c;
  c.secret = token::random();
  pair p{{}, c};
  const auto x = p.fetch(1);
  REQUIRE_FALSE(x);
  CHECK(x.error().code == core::errc::refused);
  CHECK(x.error().text.find("wrong token") != std::string::npos);
  CHECK(p.server->snapshot().blobs_sent == 0);
}

TEST_CASE("a wrong version is refused with both versions") {
  pair p;
  auto s = raw::dial(p.server->port());
  s.send(hello_of(p.secret, 99));
  const auto answer = s.receive_all();
  REQUIRE(answer.size() > welcome_bytes);
  CHECK(answer[6] != 0);
  const std::string text{answer.begin() + welcome_bytes, answer.end()};
  CHECK(text.find("99") != std::string::npos);
}

TEST_CASE("garbage ends its connection without an answer and nothing else") {
  pair p;
  raw::bytes garbage(4000);
  std::uint32_t x = 9;
  for (auto& b : garbage)
    b = static_cast<std::uint8_t>((x = x * 1664525u + 1013904223u) >> 24);
  auto s = raw::dial(p.server->port());
  s.send(garbage);
  CHECK(s.receive_all().empty());
  auto after_hello = raw::dial(p.server->port());
  after_hello.send(hello_of(p.secret));
  after_hello.send(garbage);
  CHECK(after_hello.receive_all().size() == welcome_bytes);
  CHECK(p.fetch(1));
}

TEST_CASE("a client that says nothing is shown the door") {
  tensor_server_settings s;
  SUBCASE("at all") {
    s.hello_timeout = 30ms;
    pair p{s};
    auto silent = raw::dial(p.server->port());
    CHECK(silent.receive_all().empty());
  }
  SUBCASE("after its hello") { // which may take as long as it takes on a busy machine
    s.idle_timeout = 30ms;
    pair p{s};
    auto idle = raw::dial(p.server->port());
    idle.send(hello_of(p.secret));
    CHECK(idle.receive_all().size() == welcome_bytes);
  }
}

TEST_CASE("a client that does not read is given up") {
  tensor_server_settings s;
  s.stall_timeout = 60ms;
  pair p{s};
  p.blobs[3] = make_blob(8u << 20);
  auto slow = raw::dial(p.server->port());
  slow.send(hello_of(p.secret));
  raw::bytes request(24);
  request[0] = 1;
  request[8] = 3;
  std::fill(request.begin() + 16, request.begin() + 22, 0xff);
  slow.send(request);
  CHECK(slow.receive(welcome_bytes).size() == welcome_bytes);
  while (p.found == 0)
    std::this_thread::yield();
  while (p.blobs[3].use_count() > 1) // the server holds it until it gives up
    std::this_thread::yield();
  CHECK(p.server->snapshot().blobs_sent == 0);
  while (!p.fetch(2)) // a pause of the machine is long enough to be given up for
    continue;
}

TEST_CASE("a kept connection that the server closed is opened anew") {
  pair p;
  raw::proxy proxy{p.server->port()};
  const auto& blob = *p.blobs[2];
  const auto sum_bytes = sizeof(std::uint64_t);
  proxy.set({.cut_after = before_header + wire::encode_header(blob).size() + blob.bytes() + sum_bytes}); // right behind the blob
  REQUIRE(p.fetch(2, proxy.port()));
  proxy.set({});
  CHECK(p.fetch(2, proxy.port()));
  CHECK(p.client->snapshot().connections == 2);
}

TEST_CASE("more clients than allowed are refused with the reason") {
  tensor_server_settings s;
  s.max_connections = 1;
  pair p{s};
  REQUIRE(p.fetch(2));
  tensor_client_settings c;
  c.secret = p.secret;
  p.client = std::make_unique<tensor_client>(c); // closes the first one's connection
  raw::socket other;
  for (bool in = false; !in;) { // the server may not have heard yet that the first one is gone
    other = raw::dial(p.server->port());
    other.send(hello_of(p.secret));
    const auto welcome = other.receive(welcome_bytes);
    REQUIRE(welcome.size() == welcome_bytes);
    in = welcome[6] == 0;
  }
  const auto x = p.fetch(2);
  REQUIRE_FALSE(x);
  CHECK(x.error().code == core::errc::refused);
  CHECK(x.error().text.find("in use") != std::string::npos);
}

TEST_CASE("a blob larger than the client takes is refused before it is sent") {
  tensor_client_settings c;
  c.max_blob_bytes = 1000;
  pair p{{}, c};
  const auto x = p.fetch(1);
  REQUIRE_FALSE(x);
  CHECK(x.error().code == core::errc::refused);
  CHECK(p.server->snapshot().bytes_sent == 0);
  CHECK(p.fetch(2));
}

TEST_CASE("a transfer cut at any point is an error that says so") {
  pair p;
  raw::proxy proxy{p.server->port()};
  std::uint64_t total = 401'000;
  for (std::uint64_t cut = 0; cut < total; cut = cut < 200 ? cut + 9 : cut + 40'000) {
    proxy.set({.cut_after = cut});
    const auto x = p.fetch(1, proxy.port());
    REQUIRE_FALSE(x);
    CHECK(x.error().code == core::errc::io);
  }
  proxy.set({});
  CHECK(p.fetch(1, proxy.port()));
}

TEST_CASE("a damaged byte is never taken for data") {
  pair p;
  raw::proxy proxy{p.server->port()};
  const auto& good = *p.blobs[1];
  for (std::uint64_t at = 0; at < 401'000; at = at < 240 ? at + 1 : at + 29'989) {
    for (const std::uint8_t value : {0xff, 0x00}) {
      proxy.set({.change_at = at, .with = {value}});
      tensor_client_settings c;
      if (at < 400) // a changed length can make it wait for what never comes
        c.stall_timeout = c.connect_timeout = 20ms;
      c.secret = p.secret;
      c.max_blob_bytes = 1u << 20;
      p.client = std::make_unique<tensor_client>(c);
      const auto x = p.fetch(1, proxy.port());
      if (x)
        CHECK(**x == good); // the byte had that value already, or is reserved
      else if (at >= 400)
        CHECK(x.error().text.find("checksum") != std::string::npos);
    }
  }
}

TEST_CASE("lengths beyond the limits are refused before anything is allocated") {
  pair p;
  raw::proxy proxy{p.server->port()};
  const auto expect_refusal = [&](std::uint64_t at, std::size_t n) {
    proxy.set({.change_at = at, .with = raw::bytes(n, 0x7f)});
    const auto x = p.fetch(1, proxy.port());
    REQUIRE_FALSE(x);
    CHECK(x.error().code == core::errc::io);
  };
  expect_refusal(8, 4);                  // the welcome's text
  expect_refusal(welcome_bytes + 4, 4);  // the header
  expect_refusal(welcome_bytes + 8, 4);  // a chunk
  expect_refusal(welcome_bytes + 16, 8); // the data
  expect_refusal(before_header, 4);      // number of texts
}

TEST_CASE("a server that stops talking is a timeout") {
  pair p{{}, impatient()};
  const auto secret = p.secret;
  tensor_client_settings c = impatient();
  c.secret = secret;
  p.client = std::make_unique<tensor_client>(c);
  raw::proxy proxy{p.server->port()};
  for (const std::uint64_t hold : {std::uint64_t{0}, std::uint64_t{20}, std::uint64_t{200'000}}) {
    proxy.set({.hold_after = hold});
    const auto x = p.fetch(1, proxy.port());
    REQUIRE_FALSE(x);
    CHECK(x.error().code == core::errc::timeout);
  }
}

TEST_CASE("a server that nobody runs is an error with its address") {
  raw::silent_port silent;
  pair p;
  const auto x = p.fetch(1, silent.port());
  REQUIRE_FALSE(x);
  CHECK(x.error().code == core::errc::io);
  CHECK(x.error().text.find("127.0.0.1:" + std::to_string(silent.port())) != std::string::npos);
}

TEST_CASE("a host that is no numeric address is refused") {
  pair p;
  const auto x = fetch_from(*p.client, 1, 1, "not-an-address").get();
  REQUIRE_FALSE(x);
  CHECK(x.error().code == core::errc::invalid_argument);
}

TEST_CASE("a server that goes away in the middle ends the fetch") {
  pair p;
  raw::proxy proxy{p.server->port()};
  proxy.set({.hold_after = 100'000});
  auto f = p.ask(1, proxy.port());
  while (p.server->snapshot().bytes_sent == 0)
    std::this_thread::yield();
  auto direct = p.ask(2);
  direct.wait();
  p.server->stop();
  CHECK_FALSE(p.fetch(2));
  p.client->stop();
  const auto x = f.get();
  REQUIRE_FALSE(x);
  CHECK(x.error().code == core::errc::cancelled);
}

TEST_CASE("stopping the client cancels what runs and what waits") {
  pair p;
  raw::listener never_answers;
  std::vector<std::future<fetched>> all;
  for (int i = 0; i < 5; ++i)
    all.push_back(p.ask(1, never_answers.port()));
  p.client->stop();
  p.client->stop();
  all.push_back(p.ask(1));
  for (auto& f : all) {
    const auto x = f.get();
    REQUIRE_FALSE(x);
    CHECK(x.error().code == core::errc::cancelled);
  }
}

TEST_CASE("a lookup that throws fails that fetch with its text") {
  tensor_server_settings s;
  s.secret = token::random();
  auto server = tensor_server::start(s, [](std::uint64_t) -> core::checkpoint_ptr { throw std::runtime_error("the disk is gone"); });
  REQUIRE(server);
  tensor_client_settings c;
  c.secret = s.secret;
  tensor_client client{c};
  const auto x = fetch_from(client, (*server)->port(), 1).get();
  REQUIRE_FALSE(x);
  CHECK(x.error().code == core::errc::failed);
  CHECK(x.error().text.find("the disk is gone") != std::string::npos);
}

TEST_CASE("a server refuses settings that cannot work") {
  const auto nothing = [](std::uint64_t) { return core::checkpoint_ptr{}; };
  tensor_server_settings s;
  CHECK_FALSE(tensor_server::start(s, nothing)); // no token
  s.secret = token::random();
  s.address = "localhost";
  CHECK_FALSE(tensor_server::start(s, nothing));
  s.address = "127.0.0.1";
  s.chunk_bytes = 1;
  CHECK_FALSE(tensor_server::start(s, nothing));
  s.chunk_bytes = 1u << 20;
  raw::listener taken;
  s.port = taken.port();
  const auto x = tensor_server::start(s, nothing);
  REQUIRE_FALSE(x);
  CHECK(x.error().text.find(std::to_string(s.port)) != std::string::npos);
}

TEST_CASE("server and client start and stop a hundred times") {
  const auto blob = make_blob(1000);
  for (int i = 0; i < 100; ++i) {
    tensor_server_settings s;
    s.secret = token::random();
    auto server = tensor_server::start(s, [&](std::uint64_t) { return blob; });
    REQUIRE(server);
    tensor_client_settings c;
    c.secret = s.secret;
    tensor_client client{c};
    auto x = fetch_from(client, (*server)->port(), 1);
    if (i % 2)
      CHECK(x.get());
  }
}
