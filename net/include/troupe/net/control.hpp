#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "troupe/core/result.hpp"

/// How other commands on this machine talk to a running experiment: a Unix domain socket that only the same user can
/// reach, one JSON object per line in each direction.
namespace troupe::net {

struct control_server_settings {
  std::string run_dir;                    ///< where control.json is left: {"pid": …, "socket": "…"}
  std::string socket_dir;                 ///< empty: $XDG_RUNTIME_DIR, or /tmp/troupe-<uid>
  std::size_t max_line_bytes = 1u << 20;  ///< a longer request is answered with an error and ends the connection
  std::size_t max_clients = 32;           ///< one more is told {"ok": false, "error": "busy: …"} and closed
  std::chrono::milliseconds idle_timeout{30'000};   ///< for a whole request to come, and for its answer to be read
  std::chrono::milliseconds check_interval{1'000};  ///< for looking whether socket and control.json are still there
};

/// The running experiment's end. One thread of its own.
///
/// A client's requests are answered one after the other. What is not a JSON object, or is nested deeper than 32, gets
/// {"ok": false, "error": "…"}. The socket has mode 0600 in a folder that belongs to the user and nobody else may
/// enter; the peer's user is checked as well. Should the socket or control.json be removed while the run goes on (a log-out
/// clears the user's folder), they are made anew.
class control_server {
public:
  using reply = std::function<void(nlohmann::json)>;
  /// Called on the server's thread; must not block. `reply` may be called from any thread, also later, also after the
  /// server stopped (then without effect); only the first call counts. If every copy of it is gone without a call,
  /// the client gets an error.
  using handler = std::function<void(nlohmann::json request, reply answer)>;

  /// Errors: `refused` if a live process already serves this run; io.
  static core::result<std::unique_ptr<control_server>> start(control_server_settings settings, handler handle);
  /// As `stop()`.
  ~control_server();

  std::string socket_path() const; ///< at this moment; any thread

  /// Removes socket and control.json, lets answers that were given be read (half a second at most), closes all clients and
  /// joins. Idempotent; not to be called from the handler.
  void stop();

private:
  struct impl;
  explicit control_server(std::shared_ptr<impl> x);
  std::shared_ptr<impl> impl_;
};

/// Sends one request to the experiment that runs in `run_dir` and waits for the answer. Blocks; any thread.
/// Errors: not_found (no run directory), refused (the run is not live), timeout, io; the text says what to do.
core::result<nlohmann::json> control_call(const std::string& run_dir, const nlohmann::json& request,
                                          std::chrono::milliseconds timeout);

} // namespace troupe::net
