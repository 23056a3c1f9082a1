#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

/// Plain sockets for tests that play a faulty peer.
namespace raw {

using bytes = std::vector<std::uint8_t>;

class socket {
public:
  explicit socket(int fd = -1) : fd_(fd) {}
  socket(socket&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  socket& operator=(socket&& o) noexcept {
    std::swap(fd_, o.fd_);
    return *this;
  }
  ~socket() {
    if (fd_ >= 0)
      ::close(fd_);
  }
  int fd() const { return fd_; }

  void send(std::span<const std::uint8_t> b) {
    while (!b.empty()) {
      const auto n = ::send(fd_, b.data(), b.size(), MSG_NOSIGNAL);
      if (n <= 0)
        return; // the peer is gone; what it did is seen by reading
      b = b.subspan(static_cast<std::size_t>(n));
    }
  }
  /// Up to n bytes; fewer only if the peer closed. Blocks.
  bytes receive(std::size_t n) {
    bytes b(n);
    std::size_t have = 0;
    while (have < n) {
      const auto m = ::recv(fd_, b.data() + have, n - have, 0);
      if (m <= 0)
        break;
      have += static_cast<std::size_t>(m);
    }
    b.resize(have);
    return b;
  }
  /// Until the peer closes.
  bytes receive_all() {
    bytes all;
    for (;;) {
      auto b = receive(65536);
      all.insert(all.end(), b.begin(), b.end());
      if (b.size() < 65536)
        return all;
    }
  }

private:
  int fd_;
};

inline socket dial(std::uint16_t port) {
  socket s{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(port);
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(s.fd(), reinterpret_cast<sockaddr*>(&a), sizeof a) != 0)
    throw std::runtime_error("connect");
  return s;
}

/// A port of this machine that nobody else gets while this lives, and on which nobody listens.
class silent_port {
public:
  silent_port() : s_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t n = sizeof a;
    if (::bind(s_.fd(), reinterpret_cast<sockaddr*>(&a), n) != 0
        || ::getsockname(s_.fd(), reinterpret_cast<sockaddr*>(&a), &n) != 0)
      throw std::runtime_error("bind");
    port_ = ntohs(a.sin_port);
  }
  std::uint16_t port() const { return port_; }
  int fd() const { return s_.fd(); }

private:
  socket s_;
  std::uint16_t port_ = 0;
};

class listener : public silent_port {
public:
  listener() {
    if (::listen(fd(), 16) != 0)
      throw std::runtime_error("listen");
  }
  socket accept() { return socket{::accept4(fd(), nullptr, nullptr, SOCK_CLOEXEC)}; }
};

/// What a proxy does to the bytes from server to client, counted over each connection.
struct fault {
  std::uint64_t cut_after = UINT64_MAX;  ///< then the connection is closed both ways
  std::uint64_t hold_after = UINT64_MAX; ///< then nothing is passed on any more, but the connection stays
  std::uint64_t change_at = UINT64_MAX;  ///< from this byte on, `with` replaces what the server sent
  bytes with{};
};

/// Stands between one client at a time and a server on this machine.
class proxy {
public:
  explicit proxy(std::uint16_t server_port) : server_port_(server_port), wake_(::eventfd(0, EFD_CLOEXEC)) {
    thread_ = std::thread{[this] { run(); }};
  }
  ~proxy() {
    const std::uint64_t one = 1;
    if (::write(wake_.fd(), &one, sizeof one) == sizeof one)
      thread_.join();
  }
  std::uint16_t port() const { return in_.port(); }
  /// For connections made from now on.
  void set(fault f) {
    std::lock_guard lock{mutex_};
    next_ = std::move(f);
  }

private:
  fault next() {
    std::lock_guard lock{mutex_};
    return next_;
  }
  bool ready(int fd) const { return (fd == fds_[0].fd ? fds_[0] : fd == fds_[1].fd ? fds_[1] : fds_[2]).revents != 0; }
  bool wait(int a, int b) {
    fds_[0] = {wake_.fd(), POLLIN, 0};
    fds_[1] = {a, POLLIN, 0};
    fds_[2] = {b, POLLIN, 0};
    ::poll(fds_, 3, -1);
    return fds_[0].revents == 0;
  }
  void run() {
    while (wait(in_.fd(), -1)) {
      auto client = in_.accept();
      auto server = dial(server_port_);
      if (!pass(client, server))
        return;
    }
  }
  bool pass(socket& client, socket& server) {
    const auto f = next();
    std::uint64_t at = 0;
    bytes b(65536);
    bool held = false;
    for (;;) {
      if (!wait(client.fd(), held ? -1 : server.fd()))
        return false;
      if (ready(client.fd())) {
        const auto n = ::recv(client.fd(), b.data(), b.size(), 0);
        if (n <= 0)
          return true;
        server.send({b.data(), static_cast<std::size_t>(n)});
      }
      if (!held && ready(server.fd())) {
        const auto got = ::recv(server.fd(), b.data(), b.size(), 0);
        if (got <= 0)
          return true;
        auto n = static_cast<std::uint64_t>(got);
        for (std::uint64_t i = 0; i < n; ++i)
          if (at + i >= f.change_at && at + i - f.change_at < f.with.size())
            b[i] = f.with[at + i - f.change_at];
        const auto limit = std::min(f.cut_after, f.hold_after);
        const bool last = at + n >= limit;
        n = last ? limit - std::min(limit, at) : n;
        client.send({b.data(), n});
        at += n;
        if (last && f.cut_after <= f.hold_after)
          return true;
        held = last;
      }
    }
  }

  std::mutex mutex_;
  fault next_;
  std::uint16_t server_port_;
  listener in_;
  socket wake_;
  pollfd fds_[3];
  std::thread thread_;
};

} // namespace raw
