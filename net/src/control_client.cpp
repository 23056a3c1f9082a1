#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <string_view>
#include <system_error>

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "control_files.hpp"
#include "troupe/core/run_reader.hpp"
#include "troupe/net/control.hpp"

namespace troupe::net {

namespace {

using clock = std::chrono::steady_clock;

constexpr std::size_t max_answer_bytes = std::size_t{64} << 20; // a status of many thousand trainers

/// Waits until the socket is ready for `events`; false at the deadline.
bool wait_for(int fd, short events, clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - clock::now()).count();
    pollfd p{fd, events, 0};
    const int n = left > 0 ? ::poll(&p, 1, static_cast<int>(std::min<long long>(left, 1 << 30))) : 0;
    if (n > 0)
      return true;
    if (n == 0)
      return false;
    if (errno != EINTR)
      return true; // let the next call say what is wrong
  }
}

bool exists(const std::string& path) {
  struct stat s {};
  return ::stat(path.c_str(), &s) == 0;
}

core::error refused(std::string text) { return {core::errc::refused, std::move(text)}; }

core::result<control_record> find_live(const std::string& run_dir) {
  if (!exists(run_dir))
    return core::error{core::errc::not_found, "there is no run directory " + run_dir};
  const auto run = run_folder::open(run_dir);
  if (!run)
    return run.error();
  auto record = run->read();
  if (record || record.error().code != core::errc::not_found)
    return record;
  if (!exists(run_dir + "/experiment.json"))
    return core::error{core::errc::not_found,
                       run_dir + " is no run directory: it has neither control.json nor experiment.json"};
  if (core::is_run_in_use(run_dir))
    return refused("the run in " + run_dir + " is going on, but has no control socket at the moment. `troupe run` opens one as it "
                   "begins, and anew within seconds if it is removed: try again. A program that leads a run without one can be "
                   "steered by itself alone (run_control)");
  return refused("the run in " + run_dir + " is not live: it has ended, or was not started yet");
}

/// What it means that nobody listens where control.json says: the lock tells whether the run goes on.
core::error nobody_listens(const std::string& run_dir, const control_record& record) {
  const auto process = "process " + std::to_string(record.pid);
  if (core::is_run_in_use(run_dir))
    return {core::errc::io, "the run in " + run_dir + " is going on, but " + process + " cannot be reached: its control socket "
                              + record.socket + " is gone. It makes a new one within seconds: try again"};
  return refused("the run in " + run_dir + " is not live: " + process
                 + " left its control socket behind (killed?); `troupe resume` goes on with it");
}

} // namespace

core::result<nlohmann::json> control_call(const std::string& run_dir, const nlohmann::json& request,
                                          std::chrono::milliseconds timeout) {
  const auto deadline = clock::now() + timeout;
  const auto record = find_live(run_dir);
  if (!record)
    return record.error();
  const auto fd = connect_unix(record->socket);
  if (!fd)
    return fd.error().code == core::errc::refused ? nobody_listens(run_dir, *record) : fd.error();
  const auto who = "process " + std::to_string(record->pid) + ", which runs " + run_dir + ",";
  const auto late = core::error{core::errc::timeout, who + " did not answer within " + std::to_string(timeout.count()) + " ms"};
  const auto gone = [&](std::string_view why) { return core::error{core::errc::io, who + " went away: " + std::string{why}}; };

  const auto line = request.dump() + "\n";
  for (std::string_view left = line; !left.empty();) {
    if (!wait_for(fd->get(), POLLOUT, deadline))
      return late;
    const auto n = ::send(fd->get(), left.data(), left.size(), MSG_NOSIGNAL);
    if (n > 0)
      left.remove_prefix(static_cast<std::size_t>(n));
    else if (errno == EPIPE || errno == ECONNRESET)
      break; // it may have said why before it closed
    else if (errno != EAGAIN && errno != EINTR)
      return gone(std::generic_category().message(errno));
  }
  std::string answer;
  for (std::array<char, 16384> part; answer.empty() || answer.back() != '\n';) {
    if (!wait_for(fd->get(), POLLIN, deadline))
      return late;
    const auto n = ::recv(fd->get(), part.data(), part.size(), 0);
    if (n == 0)
      return gone("it closed the connection");
    if (n < 0) {
      if (errno == EAGAIN || errno == EINTR)
        continue;
      return gone(std::generic_category().message(errno));
    }
    answer.append(part.data(), static_cast<std::size_t>(n));
    if (answer.size() > max_answer_bytes)
      return core::error{core::errc::io, who + " sent an answer that does not end"};
  }
  auto j = nlohmann::json::parse(answer, nullptr, false);
  if (!j.is_object())
    return core::error{core::errc::io, who + " sent something that is no JSON object"};
  return j;
}

} // namespace troupe::net
