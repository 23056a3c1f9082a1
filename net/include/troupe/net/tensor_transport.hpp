#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "troupe/core/checkpoint.hpp"
#include "troupe/core/result.hpp"
#include "troupe/net/token.hpp"

/// Weights between processes. They travel on TCP connections of their own, so that no control message waits behind
/// them, in chunks that each carry a checksum, straight from and into the tensors' memory.
namespace troupe::net {

struct tensor_server_settings {
  std::string address = "127.0.0.1"; ///< numeric; anything but loopback must be named on purpose
  std::uint16_t port = 0;            ///< 0: the system picks
  token secret;                      ///< a client must show it; must not be empty
  std::uint32_t chunk_bytes = 1u << 20; ///< 64 KiB to 16 MiB; 1 MiB stays in the cache between socket and checksum
  std::size_t max_connections = 64;  ///< more are refused with a reason
  std::chrono::milliseconds hello_timeout{5'000};  ///< from connecting to a valid hello
  std::chrono::milliseconds stall_timeout{20'000}; ///< for each chunk
  std::chrono::milliseconds idle_timeout{60'000};  ///< between two requests
};

/// Serves checkpoints by number to those who know the token. One thread of its own.
///
/// The bytes are sent from the checkpoint's own memory, which is held until the last byte is out. Whatever a client does
/// (wrong token, garbage, silence, a connection cut in the middle) ends that client's connection and nothing else.
class tensor_server {
public:
  /// Called on the server's thread, so it must be thread-safe and quick; null: no such blob.
  using lookup = std::function<core::checkpoint_ptr(std::uint64_t id)>;

  struct counters {
    std::uint64_t accepted = 0;       ///< connections
    std::uint64_t refused = 0;        ///< wrong token or version, no hello, or too many connections
    std::uint64_t blobs_sent = 0;     ///< whole
    std::uint64_t bytes_sent = 0;     ///< of tensors
  };

  /// Listens when it returns. Errors name address and port.
  static core::result<std::unique_ptr<tensor_server>> start(tensor_server_settings settings, lookup find);
  /// As `stop()`.
  ~tensor_server();

  std::uint16_t port() const noexcept;
  const std::string& address() const noexcept;
  counters snapshot() const noexcept; ///< any thread

  /// Closes everything and joins the thread. Idempotent; not to be called from the lookup function.
  void stop();

private:
  struct impl;
  explicit tensor_server(std::unique_ptr<impl> x);
  std::unique_ptr<impl> impl_;
};

struct tensor_client_settings {
  token secret;
  std::uint64_t max_blob_bytes = std::uint64_t{4} << 30; ///< a blob announced larger is refused before anything is allocated
  std::size_t max_pending = 4096;                        ///< fetches waiting, per peer
  std::chrono::milliseconds connect_timeout{5'000};      ///< until the server has accepted the token
  std::chrono::milliseconds stall_timeout{20'000};       ///< for each answer and each chunk
  std::chrono::milliseconds idle_timeout{30'000};        ///< an unused connection is closed
};

/// Fetches checkpoints from tensor servers. One thread of its own; one connection per server, kept for the next fetch.
/// Fetches from one server run one after the other, in the order they were asked for.
class tensor_client {
public:
  /// Called exactly once per fetch, on the client's thread (on the caller's if the client was already stopped). Must only
  /// pass the result on: it may not block or throw.
  using callback = std::function<void(core::result<core::checkpoint_ptr>)>;

  struct counters {
    std::uint64_t connections = 0;    ///< opened so far
    std::uint64_t blobs_received = 0;
    std::uint64_t bytes_received = 0; ///< of tensors
    std::uint64_t failed = 0;
  };

  explicit tensor_client(tensor_client_settings settings);
  /// As `stop()`.
  ~tensor_client();

  /// `host`: a numeric address. Errors: io (unreachable, cut off, damaged), refused (token, version, too many
  /// connections, too large), not_found (no blob of this number), timeout, cancelled. Thread-safe.
  void fetch(const std::string& host, std::uint16_t port, std::uint64_t id, callback done);
  counters snapshot() const noexcept; ///< any thread

  /// Ends what is under way and waiting with `cancelled` and joins the thread. Idempotent; not to be called from a
  /// callback.
  void stop();

private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

} // namespace troupe::net
