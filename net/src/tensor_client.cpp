#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

#include "asio.hpp"
#include "troupe/net/tensor_transport.hpp"
#include "wire.hpp"

namespace troupe::net {

namespace {

using fetched = core::result<core::checkpoint_ptr>;

core::errc code_of(wire::status s) {
  switch (s) {
  case wire::status::ok: break;
  case wire::status::not_found: return core::errc::not_found;
  case wire::status::failed: return core::errc::failed;
  case wire::status::wrong_version:
  case wire::status::wrong_token:
  case wire::status::busy:
  case wire::status::too_large: return core::errc::refused;
  }
  return core::errc::io;
}

struct request {
  std::uint64_t id = 0;
  tensor_client::callback done;
};

/// The connection to one server and who waits for it.
struct peer {
  peer(asio::io_context& io, tcp::endpoint e) : endpoint(std::move(e)), socket(io), idle(io) {}

  tcp::endpoint endpoint;
  tcp::socket socket;
  asio::steady_timer idle;
  std::deque<request> waiting;
  bool at_work = false;    ///< a coroutine empties `waiting`
  bool connected = false;  ///< the server accepted the token
  bool answered = false;   ///< the request at hand has got its first byte

  std::string name() const { return endpoint.address().to_string() + ":" + std::to_string(endpoint.port()); }
  void close() {
    error_code ignored;
    socket.close(ignored);
    connected = false;
  }
};

} // namespace

struct tensor_client::impl {
  explicit impl(tensor_client_settings s) : settings(std::move(s)) {}

  tensor_client_settings settings;
  asio::io_context io{1};
  std::map<tcp::endpoint, std::shared_ptr<peer>> peers; // of the io thread
  bool stopping = false;                                // of the io thread
  std::thread thread;
  std::mutex mutex;
  bool stopped = false; // guarded by mutex: nothing is posted once this is set
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work;
  std::atomic<std::uint64_t> connections{0}, blobs{0}, bytes{0}, failed{0};

  void enqueue(tcp::endpoint where, request r);
  void finish(const callback& done, fetched x);
  void wait_idle(std::shared_ptr<peer> p);
  asio::awaitable<void> drain(std::shared_ptr<peer> p);
  asio::awaitable<core::result<void>> connect(peer& p);
  asio::awaitable<fetched> fetch_one(peer& p, std::uint64_t id);
  asio::awaitable<core::result<void>> receive(peer& p, watchdog<tcp::socket>& guard, std::uint32_t chunk,
                                              wire::blob_header& header, std::uint64_t size);

  core::error broken(const peer& p, const watchdog<tcp::socket>& guard, std::string_view doing, const error_code& ec) {
    if (stopping)
      return {core::errc::cancelled, "the tensor client was stopped"};
    const std::string text = std::string{doing} + " tensor server " + p.name();
    if (guard.expired())
      return {core::errc::timeout, text + " took too long"};
    if (ec == asio::error::eof)
      return {core::errc::io, text + ": it closed the connection"};
    return {core::errc::io, text + ": " + ec.message()};
  }
};

void tensor_client::impl::finish(const callback& done, fetched x) {
  if (!x)
    ++failed;
  done(std::move(x));
}

void tensor_client::impl::enqueue(tcp::endpoint where, request r) {
  if (stopping)
    return finish(r.done, core::error{core::errc::cancelled, "the tensor client was stopped"});
  auto& p = peers[where];
  if (!p)
    p = std::make_shared<peer>(io, where);
  if (p->waiting.size() >= settings.max_pending)
    return finish(r.done, core::error{core::errc::refused, std::to_string(settings.max_pending)
                                                             + " fetches already wait for tensor server " + p->name()});
  p->waiting.push_back(std::move(r));
  if (p->at_work)
    return;
  p->at_work = true;
  p->idle.cancel();
  asio::co_spawn(io, drain(p), asio::detached);
}

void tensor_client::impl::wait_idle(std::shared_ptr<peer> p) {
  p->idle.expires_after(settings.idle_timeout);
  p->idle.async_wait([this, p](const error_code& ec) {
    if (ec || p->at_work)
      return;
    p->close();
    peers.erase(p->endpoint);
  });
}

asio::awaitable<void> tensor_client::impl::drain(std::shared_ptr<peer> p) {
  while (!p->waiting.empty()) {
    request r = std::move(p->waiting.front());
    p->waiting.pop_front();
    if (stopping) {
      finish(r.done, core::error{core::errc::cancelled, "the tensor client was stopped"});
      continue;
    }
    std::optional<fetched> x;
    try {
      const bool reused = p->connected;
      x.emplace(co_await fetch_one(*p, r.id));
      // The server may have closed a kept connection just now: that says nothing about the blob.
      if (!*x && x->error().code == core::errc::io && reused && !p->answered && !stopping)
        x.emplace(co_await fetch_one(*p, r.id));
    } catch (const std::exception& e) {
      p->close();
      const bool memory = dynamic_cast<const std::bad_alloc*>(&e) || dynamic_cast<const std::length_error*>(&e);
      x.emplace(core::error{memory ? core::errc::out_of_memory : core::errc::io,
                            "fetching blob " + std::to_string(r.id) + " from " + p->name() + ": " + e.what()});
    }
    finish(r.done, std::move(*x));
  }
  p->at_work = false;
  if (!stopping)
    wait_idle(p);
}

asio::awaitable<core::result<void>> tensor_client::impl::connect(peer& p) {
  error_code ec;
  p.close();
  p.socket.open(p.endpoint.protocol(), ec);
  if (ec)
    co_return core::error{core::errc::io, "no socket for tensor server " + p.name() + ": " + ec.message()};
  close_on_exec(p.socket);
  watchdog<tcp::socket> guard{p.socket};
  guard.expect(settings.connect_timeout);
  co_await p.socket.async_connect(p.endpoint, into(ec));
  if (ec)
    co_return broken(p, guard, "connecting to", ec);
  ++connections;
  p.socket.set_option(tcp::no_delay(true), ec);
  std::vector<std::byte> hello;
  wire::writer w{hello};
  w.number(wire::magic);
  w.number(wire::version);
  w.number(std::uint16_t{0});
  for (const auto b : settings.secret.bytes())
    w.number(b);
  co_await asio::async_write(p.socket, asio::buffer(hello), into(ec));
  if (ec)
    co_return broken(p, guard, "greeting", ec);
  std::array<std::byte, wire::welcome_bytes> welcome;
  co_await asio::async_read(p.socket, asio::buffer(welcome), into(ec));
  if (ec)
    co_return broken(p, guard, "greeting", ec);
  wire::reader r{welcome};
  const auto magic = r.number<std::uint32_t>();
  r.number<std::uint16_t>();
  const auto code = static_cast<wire::status>(r.number<std::uint16_t>());
  const auto length = r.number<std::uint32_t>();
  if (magic != wire::magic || length > wire::max_text_bytes)
    co_return core::error{core::errc::io, p.name() + " is no tensor server: its greeting is something else"};
  std::string text(length, '\0');
  co_await asio::async_read(p.socket, asio::buffer(text), into(ec));
  if (ec)
    co_return broken(p, guard, "greeting", ec);
  if (code != wire::status::ok)
    co_return core::error{code_of(code), "tensor server " + p.name() + " refuses: " + text};
  p.connected = true;
  co_return core::result<void>{};
}

asio::awaitable<fetched> tensor_client::impl::fetch_one(peer& p, std::uint64_t id) {
  struct close_unless_whole { // after an error nobody knows where the next answer would begin
    peer& p;
    bool whole = false;
    ~close_unless_whole() {
      if (!whole)
        p.close();
    }
  } end{p};
  p.answered = false;
  if (!p.connected) {
    const auto up = co_await connect(p);
    if (!up)
      co_return up.error();
  }
  const auto doing = "fetching blob " + std::to_string(id) + " from";
  error_code ec;
  watchdog<tcp::socket> guard{p.socket};
  guard.expect(settings.stall_timeout);
  std::vector<std::byte> bytes;
  wire::writer w{bytes};
  w.number(wire::fetch_request);
  w.number(std::uint32_t{0});
  w.number(id);
  w.number(settings.max_blob_bytes);
  co_await asio::async_write(p.socket, asio::buffer(bytes), into(ec));
  if (ec)
    co_return broken(p, guard, doing, ec);
  bytes.resize(wire::answer_bytes);
  co_await asio::async_read(p.socket, asio::buffer(bytes), into(ec));
  if (ec)
    co_return broken(p, guard, doing, ec);
  p.answered = true;
  wire::reader r{bytes};
  const auto code = static_cast<wire::status>(r.number<std::uint16_t>());
  r.number<std::uint16_t>();
  const auto header_bytes = r.number<std::uint32_t>();
  const auto chunk = r.number<std::uint32_t>();
  r.number<std::uint32_t>();
  const auto size = r.number<std::uint64_t>();
  const auto expected = r.number<std::uint64_t>();
  if (header_bytes > wire::max_header_bytes || size > settings.max_blob_bytes || chunk < wire::min_chunk_bytes
      || chunk > wire::max_chunk_bytes)
    co_return core::error{core::errc::io, doing + " tensor server " + p.name() + ": its answer is damaged or too large ("
                                            + std::to_string(size) + " bytes announced)"};
  wire::checksum sum;
  sum.add(std::span{bytes}.first(wire::answer_bytes - 8));
  bytes.resize(header_bytes);
  co_await asio::async_read(p.socket, asio::buffer(bytes), into(ec));
  if (ec)
    co_return broken(p, guard, doing, ec);
  sum.add(bytes);
  if (sum.value() != expected)
    co_return core::error{core::errc::io, doing + " tensor server " + p.name() + ": the checksum of its answer is wrong"};
  if (code != wire::status::ok) {
    end.whole = true;
    co_return core::error{code_of(code), "tensor server " + p.name() + ": "
                                           + std::string{reinterpret_cast<const char*>(bytes.data()), bytes.size()}};
  }
  auto header = wire::decode_header(bytes, size);
  if (!header)
    co_return core::error{core::errc::io, doing + " tensor server " + p.name() + ": " + header.error().text};
  const auto got = co_await receive(p, guard, chunk, *header, size);
  if (!got)
    co_return core::error{got.error().code, "blob " + std::to_string(id) + ": " + got.error().text};
  end.whole = true;
  auto blob = std::make_shared<core::checkpoint>();
  for (const auto& [key, text] : header->texts)
    blob->set_text(key, text);
  for (auto& t : header->tensors)
    blob->add(std::move(t));
  ++blobs;
  co_return core::checkpoint_ptr{std::move(blob)};
}

asio::awaitable<core::result<void>> tensor_client::impl::receive(peer& p, watchdog<tcp::socket>& guard,
                                                                 std::uint32_t chunk, wire::blob_header& header,
                                                                 std::uint64_t size) {
  error_code ec;
  std::size_t tensor = 0;
  std::vector<asio::mutable_buffer> pieces;
  for (std::uint64_t at = 0, n = 0; at < size; at += n) {
    n = std::min<std::uint64_t>(chunk, size - at);
    pieces.clear();
    for (auto left = static_cast<std::size_t>(n); left > 0;) {
      auto& bytes = header.tensors[tensor].bytes;
      const auto whole = static_cast<std::size_t>(header.sizes[tensor]);
      const auto have = bytes.size(), m = std::min(left, whole - have);
      // Reserved at once, but touched only as bytes arrive: zeroing a chunk that the socket then fills stays in
      // the cache, and a peer that announces much and sends little costs addresses, not memory.
      bytes.reserve(whole);
      bytes.resize(have + m);
      if (m > 0)
        pieces.emplace_back(bytes.data() + have, m);
      left -= m;
      if (bytes.size() == whole && left > 0)
        ++tensor;
    }
    std::array<std::byte, 8> trailer;
    pieces.push_back(asio::buffer(trailer));
    guard.expect(settings.stall_timeout);
    co_await asio::async_read(p.socket, pieces, large_transfers{}, into(ec));
    if (ec)
      co_return broken(p, guard, std::to_string(at) + " of " + std::to_string(size) + " bytes had arrived; receiving from", ec);
    pieces.pop_back();
    wire::checksum sum{at};
    for (const auto& piece : pieces)
      sum.add({static_cast<const std::byte*>(piece.data()), piece.size()});
    if (sum.value() != wire::reader{trailer}.number<std::uint64_t>())
      co_return core::error{core::errc::io, "tensor server " + p.name() + ": wrong checksum in the chunk at byte "
                                              + std::to_string(at) + " of " + std::to_string(size)};
    bytes += n;
  }
  co_return core::result<void>{};
}

tensor_client::tensor_client(tensor_client_settings settings) : impl_(std::make_unique<impl>(std::move(settings))) {
  impl_->work.emplace(impl_->io.get_executor());
  impl_->thread = std::thread{[x = impl_.get()] { x->io.run(); }};
}

tensor_client::~tensor_client() {
  stop();
}

void tensor_client::fetch(const std::string& host, std::uint16_t port, std::uint64_t id, callback done) {
  error_code ec;
  const auto address = asio::ip::make_address(host, ec);
  std::unique_lock lock{impl_->mutex};
  if (!impl_->stopped) {
    asio::post(impl_->io, [x = impl_.get(), host, address, ec, port, r = request{id, std::move(done)}]() mutable {
      if (ec)
        return x->finish(r.done, core::error{core::errc::invalid_argument,
                                             "tensor client: '" + host + "' is no numeric address, such as 127.0.0.1"});
      x->enqueue({address, port}, std::move(r));
    });
    return;
  }
  lock.unlock();
  impl_->finish(done, core::error{core::errc::cancelled, "the tensor client was stopped"});
}

tensor_client::counters tensor_client::snapshot() const noexcept {
  return {impl_->connections, impl_->blobs, impl_->bytes, impl_->failed};
}

void tensor_client::stop() {
  {
    std::lock_guard lock{impl_->mutex};
    if (!impl_->stopped) {
      impl_->stopped = true;
      asio::post(impl_->io, [x = impl_.get()] {
        x->stopping = true;
        for (auto& [where, p] : x->peers) {
          p->close();
          p->idle.cancel();
        }
        x->work.reset();
      });
    }
  }
  if (impl_->thread.joinable())
    impl_->thread.join();
}

} // namespace troupe::net
