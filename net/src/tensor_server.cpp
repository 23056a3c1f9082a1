#include "troupe/net/tensor_transport.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "asio.hpp"
#include "wire.hpp"

namespace troupe::net {

namespace {

/// The pieces of tensor memory that make up bytes [from, from + n) of a blob's data, in order; called with ascending `from`.
class gather {
public:
  explicit gather(const core::checkpoint& x) : tensors_(x.tensors()) {}

  std::vector<asio::const_buffer> next(std::size_t n) {
    std::vector<asio::const_buffer> pieces;
    while (n > 0) {
      const auto& bytes = tensors_[tensor_].bytes;
      const auto m = std::min(n, bytes.size() - offset_);
      if (m > 0)
        pieces.emplace_back(bytes.data() + offset_, m);
      offset_ += m;
      n -= m;
      if (offset_ == bytes.size()) {
        ++tensor_;
        offset_ = 0;
      }
    }
    return pieces;
  }

private:
  const std::vector<core::checkpoint::tensor>& tensors_;
  std::size_t tensor_ = 0, offset_ = 0;
};

struct connection {
  explicit connection(tcp::socket s) : socket(std::move(s)), guard(socket) {}
  tcp::socket socket;
  watchdog<tcp::socket> guard;
};

} // namespace

struct tensor_server::impl {
  impl(tensor_server_settings s, lookup f)
    : settings(std::move(s)), find(std::move(f)), acceptor(io), pause(io) {}

  tensor_server_settings settings;
  lookup find;
  asio::io_context io{1};
  tcp::acceptor acceptor;
  asio::steady_timer pause;
  std::set<std::shared_ptr<connection>> connections;
  std::thread thread;
  bool stopping = false; // of the io thread
  std::atomic<std::uint64_t> accepted{0}, refused{0}, blobs{0}, bytes{0};

  asio::awaitable<void> accept();
  asio::awaitable<void> session(std::shared_ptr<connection> c, bool full);
  asio::awaitable<bool> greet(connection& c, bool full);
  asio::awaitable<bool> serve(connection& c);
  asio::awaitable<bool> send(connection& c, wire::status code, std::vector<std::byte> header, std::uint64_t data);
};

asio::awaitable<void> tensor_server::impl::accept() {
  while (!stopping) {
    error_code ec;
    tcp::socket s = co_await acceptor.async_accept(into(ec));
    if (stopping)
      co_return;
    if (ec) { // out of file descriptors: wait for some to come back
      pause.expires_after(std::chrono::milliseconds{50});
      co_await pause.async_wait(into(ec));
      continue;
    }
    ++accepted;
    close_on_exec(s);
    s.set_option(tcp::no_delay(true), ec);
    const bool full = connections.size() >= settings.max_connections;
    if (connections.size() >= 2 * settings.max_connections) {
      ++refused;
      continue; // those to be told so are too many as well
    }
    auto c = std::make_shared<connection>(std::move(s));
    connections.insert(c);
    asio::co_spawn(io, session(std::move(c), full), asio::detached);
  }
}

asio::awaitable<void> tensor_server::impl::session(std::shared_ptr<connection> c, bool full) {
  struct leave { // however the session ends
    impl& server;
    const std::shared_ptr<connection>& c;
    ~leave() {
      server.connections.erase(c);
      error_code ignored;
      c->guard.cancel();
      c->socket.shutdown(tcp::socket::shutdown_both, ignored);
      c->socket.close(ignored);
    }
  } at_end{*this, c};
  if (!co_await greet(*c, full)) {
    ++refused;
    co_return;
  }
  while (co_await serve(*c))
    ;
}

asio::awaitable<bool> tensor_server::impl::greet(connection& c, bool full) {
  error_code ec;
  std::vector<std::byte> bytes(wire::hello_bytes);
  c.guard.expect(settings.hello_timeout);
  co_await asio::async_read(c.socket, asio::buffer(bytes), into(ec));
  wire::reader r{bytes};
  if (ec || r.number<std::uint32_t>() != wire::magic)
    co_return false; // not one of ours: no answer
  auto code = wire::status::ok;
  std::string text;
  const auto version = r.number<std::uint16_t>();
  r.number<std::uint16_t>();
  token::bytes_type shown;
  for (auto& b : shown)
    b = r.number<std::uint8_t>();
  if (version != wire::version) {
    code = wire::status::wrong_version;
    text = "the server speaks version " + std::to_string(wire::version) + " of the tensor transport, the client "
           + std::to_string(version) + ": run the same Troupe on both sides";
  } else if (!settings.secret.matches(token{shown})) {
    code = wire::status::wrong_token;
    text = "wrong token: the client does not belong to this run";
  } else if (full) {
    code = wire::status::busy;
    text = "all " + std::to_string(settings.max_connections) + " connections are in use: try again later";
  }
  bytes.clear();
  wire::writer w{bytes};
  w.number(wire::magic);
  w.number(wire::version);
  w.number(static_cast<std::uint16_t>(code));
  w.number(static_cast<std::uint32_t>(text.size()));
  w.number(std::uint32_t{0});
  const auto b = std::as_bytes(std::span{text});
  bytes.insert(bytes.end(), b.begin(), b.end());
  co_await asio::async_write(c.socket, asio::buffer(bytes), into(ec));
  co_return !ec && code == wire::status::ok;
}

asio::awaitable<bool> tensor_server::impl::send(connection& c, wire::status code, std::vector<std::byte> header,
                                                std::uint64_t data) {
  std::vector<std::byte> answer;
  wire::writer w{answer};
  w.number(static_cast<std::uint16_t>(code));
  w.number(std::uint16_t{0});
  w.number(static_cast<std::uint32_t>(header.size()));
  w.number(settings.chunk_bytes);
  w.number(std::uint32_t{0});
  w.number(data);
  wire::checksum sum;
  sum.add(answer);
  sum.add(header);
  w.number(sum.value());
  const std::array<asio::const_buffer, 2> both{asio::buffer(answer), asio::buffer(header)};
  error_code ec;
  co_await asio::async_write(c.socket, both, into(ec));
  co_return !ec;
}

asio::awaitable<bool> tensor_server::impl::serve(connection& c) {
  error_code ec;
  std::array<std::byte, wire::request_bytes> request;
  c.guard.expect(settings.idle_timeout);
  co_await asio::async_read(c.socket, asio::buffer(request), into(ec));
  wire::reader r{request};
  if (ec || r.number<std::uint32_t>() != wire::fetch_request)
    co_return false;
  r.number<std::uint32_t>();
  const auto id = r.number<std::uint64_t>();
  const auto accepts = r.number<std::uint64_t>();
  c.guard.expect(settings.stall_timeout);

  auto code = wire::status::ok;
  std::string text;
  core::checkpoint_ptr blob;
  try {
    blob = find(id);
  } catch (const std::exception& e) {
    code = wire::status::failed;
    text = std::string{"looking the blob up failed: "}.append(e.what()).substr(0, wire::max_text_bytes);
  }
  std::uint64_t size = blob ? blob->bytes() : 0;
  std::vector<std::byte> header;
  if (blob)
    header = wire::encode_header(*blob);
  if (code == wire::status::ok && !blob) {
    code = wire::status::not_found;
    text = "there is no blob " + std::to_string(id) + " here (any more)";
  } else if (size > accepts || header.size() > wire::max_header_bytes) {
    code = wire::status::too_large;
    text = "blob " + std::to_string(id) + " has " + std::to_string(size) + " bytes, the client takes at most "
           + std::to_string(accepts);
  }
  if (code != wire::status::ok) {
    const auto b = std::as_bytes(std::span{text});
    header.assign(b.begin(), b.end());
    size = 0;
  }
  const bool sent = co_await send(c, code, std::move(header), size);
  if (!sent || code != wire::status::ok)
    co_return sent;

  gather data{*blob};
  for (std::uint64_t at = 0, n = 0; at < size; at += n) {
    n = std::min<std::uint64_t>(settings.chunk_bytes, size - at);
    auto pieces = data.next(static_cast<std::size_t>(n));
    wire::checksum sum{at};
    for (const auto& p : pieces)
      sum.add({static_cast<const std::byte*>(p.data()), p.size()});
    std::vector<std::byte> trailer;
    wire::writer{trailer}.number(sum.value());
    pieces.push_back(asio::buffer(trailer));
    c.guard.expect(settings.stall_timeout);
    co_await asio::async_write(c.socket, pieces, large_transfers{}, into(ec));
    if (ec)
      co_return false;
    bytes += n;
  }
  ++blobs;
  co_return true;
}

tensor_server::tensor_server(std::unique_ptr<impl> x) : impl_(std::move(x)) {}

core::result<std::unique_ptr<tensor_server>> tensor_server::start(tensor_server_settings settings, lookup find) {
  const auto where = settings.address + ":" + std::to_string(settings.port);
  if (settings.secret.empty())
    return core::error{core::errc::invalid_argument, "a tensor server needs a token (" + where + ")"};
  if (settings.chunk_bytes < wire::min_chunk_bytes || settings.chunk_bytes > wire::max_chunk_bytes)
    return core::error{core::errc::invalid_argument,
                       "chunk_bytes is " + std::to_string(settings.chunk_bytes) + ", but must be 65536 to 16777216"};
  error_code ec;
  const auto address = asio::ip::make_address(settings.address, ec);
  if (ec)
    return core::error{core::errc::invalid_argument,
                       "tensor server: '" + settings.address + "' is no numeric address, such as 127.0.0.1"};
  auto x = std::make_unique<impl>(std::move(settings), std::move(find));
  const tcp::endpoint endpoint{address, x->settings.port};
  x->acceptor.open(endpoint.protocol(), ec);
  if (!ec) {
    close_on_exec(x->acceptor);
    x->acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  }
  if (!ec)
    x->acceptor.bind(endpoint, ec);
  if (!ec)
    x->acceptor.listen(asio::socket_base::max_listen_connections, ec);
  if (ec)
    return core::error{core::errc::io, "tensor server cannot listen on " + where + ": " + ec.message()};
  x->settings.port = x->acceptor.local_endpoint(ec).port();
  asio::co_spawn(x->io, x->accept(), asio::detached);
  x->thread = std::thread{[p = x.get()] { p->io.run(); }};
  return std::unique_ptr<tensor_server>{new tensor_server{std::move(x)}};
}

tensor_server::~tensor_server() {
  stop();
}

std::uint16_t tensor_server::port() const noexcept {
  return impl_->settings.port;
}

const std::string& tensor_server::address() const noexcept {
  return impl_->settings.address;
}

tensor_server::counters tensor_server::snapshot() const noexcept {
  return {impl_->accepted, impl_->refused, impl_->blobs, impl_->bytes};
}

void tensor_server::stop() {
  if (!impl_->thread.joinable())
    return;
  asio::post(impl_->io, [x = impl_.get()] {
    x->stopping = true;
    error_code ignored;
    x->acceptor.close(ignored);
    x->pause.cancel();
    for (const auto& c : x->connections) {
      c->guard.cancel();
      c->socket.close(ignored);
    }
  });
  impl_->thread.join();
}

} // namespace troupe::net
