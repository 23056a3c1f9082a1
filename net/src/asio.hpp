#pragma once

// The one place that includes Boost.Asio. Boost 1.74's coroutine headers use std::exchange without <utility>.
#include <utility>

#include <chrono>
#include <cstdint>
#include <memory>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include <fcntl.h>

namespace troupe::net {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

/// The completion token of every operation here: errors arrive in `ec`, nothing throws.
inline auto into(error_code& ec) {
  return asio::redirect_error(asio::use_awaitable, ec);
}

/// Asio cuts transfers to 64 KiB a call by default; large ones run 1.3 to 1.4 times faster in pieces of 4 MiB.
struct large_transfers {
  std::size_t operator()(const error_code& ec, std::size_t) const { return ec ? 0 : std::size_t{4} << 20; }
};

/// Child processes must not inherit sockets.
template <class Socket>
void close_on_exec(Socket& s) {
  ::fcntl(s.native_handle(), F_SETFD, FD_CLOEXEC);
}

/// Closes a socket when what it should do takes too long. Both belong to one thread's io_context; the watched
/// operation then ends with `operation_aborted` and `expired()` tells why. A process that stood still (Ctrl-Z) begins to count
/// anew: its peer may have stood still too, and what it sent is still to be read.
template <class Socket>
class watchdog {
public:
  explicit watchdog(Socket& s) : timer_(s.get_executor()), state_(std::make_shared<state>(state{&s})) {}
  watchdog(const watchdog&) = delete;
  watchdog& operator=(const watchdog&) = delete;
  ~watchdog() { state_->socket = nullptr; }

  /// The next operations must end within `limit` from now.
  void expect(std::chrono::milliseconds limit) {
    timer_.expires_after(limit);
    timer_.async_wait([this, limit, due = timer_.expiry(), s = state_, generation = ++state_->generation](const error_code& ec) {
      if (ec || !s->socket || s->generation != generation)
        return; // cancelled, gone, or set anew after this handler was queued
      if (asio::steady_timer::clock_type::now() - due > std::chrono::milliseconds{100})
        return expect(limit);
      s->expired = true;
      error_code ignored;
      s->socket->close(ignored);
    });
  }
  void cancel() {
    ++state_->generation;
    timer_.cancel();
  }
  bool expired() const noexcept { return state_->expired; }

private:
  struct state {
    Socket* socket = nullptr;
    std::uint64_t generation = 0;
    bool expired = false;
  };
  asio::steady_timer timer_;
  std::shared_ptr<state> state_;
};

} // namespace troupe::net
