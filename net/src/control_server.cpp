#include "troupe/net/control.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <thread>

#include <sys/socket.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "asio.hpp"
#include "control_address.hpp"
#include "control_files.hpp"

namespace troupe::net {

namespace {

using local = asio::local::stream_protocol;

constexpr int max_depth = 32;
constexpr std::chrono::milliseconds answer_grace{500};

nlohmann::json failure(const std::string& text) {
  return {{"ok", false}, {"error", text}};
}

/// Nesting of brackets outside of strings; a parser's and a printer's recursion must not be the client's choice.
bool too_deep(std::string_view line) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (in_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > max_depth)
        return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

struct client {
  explicit client(local::socket s) : socket(std::move(s)), answered(socket.get_executor()) {}
  local::socket socket;
  asio::steady_timer answered; ///< cancelled when `answer` is there
  std::optional<std::string> answer;
};

} // namespace

struct control_server::impl : std::enable_shared_from_this<control_server::impl> {
  impl(control_server_settings s, handler h, control_address a)
    : settings(std::move(s)), handle(std::move(h)), address(std::move(a)), acceptor(io), pause(io), check(io), linger(io) {}

  control_server_settings settings;
  handler handle;
  control_address address; // of the io thread, once it runs
  asio::io_context io{1};
  local::acceptor acceptor;
  asio::steady_timer pause;
  asio::steady_timer check;
  asio::steady_timer linger; // after stop(): until when answers may still be written
  std::set<std::shared_ptr<client>> clients; // of the io thread
  bool stopping = false;                     // of the io thread
  std::thread thread;
  std::mutex mutex;
  bool running = true; // guarded by mutex: nothing is posted once it is false
  std::string path;    // guarded by mutex

  core::result<void> open();
  void stay_reachable();
  asio::awaitable<void> look_after_address();
  asio::awaitable<void> accept();
  void refuse(local::socket s, const std::string& why);
  asio::awaitable<void> session(std::shared_ptr<client> c);
  asio::awaitable<bool> answer(client& c, std::string line);
  void ask(const std::shared_ptr<client>& c, std::string_view line);

  void post_answer(const std::shared_ptr<client>& c, std::string text) {
    std::lock_guard lock{mutex};
    if (running)
      asio::post(io, [c, text = std::move(text)]() mutable {
        c->answer = std::move(text);
        c->answered.cancel();
      });
  }
};

namespace {

/// One request's way back; shared by all copies of a `reply`.
template <class Server>
struct way_back {
  std::shared_ptr<Server> server;
  std::shared_ptr<client> to;
  std::atomic<bool> used{false};

  void send(const nlohmann::json& j) {
    if (!used.exchange(true))
      server->post_answer(to, j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  ~way_back() { send(failure("the request was given up without an answer")); }
};

} // namespace

/// A new socket instead of the one before.
core::result<void> control_server::impl::open() {
  auto fd = address.listen();
  if (!fd)
    return fd.error();
  error_code ec;
  acceptor.close(ec);
  acceptor.assign(local{}, fd->get(), ec);
  if (ec) {
    address.remove();
    return core::error{core::errc::io, "cannot listen on the control socket " + address.path() + ": " + ec.message()};
  }
  fd->release();
  std::lock_guard lock{mutex};
  path = address.path();
  return {};
}

/// What cannot be made now may be possible at the next look.
void control_server::impl::stay_reachable() {
  if (!address.socket_is_there())
    (void)open();
  if (!address.is_announced())
    (void)address.announce();
}

asio::awaitable<void> control_server::impl::look_after_address() {
  while (!stopping) {
    error_code ec;
    check.expires_after(settings.check_interval);
    co_await check.async_wait(into(ec));
    if (!stopping)
      stay_reachable();
  }
}

asio::awaitable<void> control_server::impl::accept() {
  while (!stopping) {
    error_code ec;
    local::socket s = co_await acceptor.async_accept(into(ec));
    if (stopping)
      co_return;
    if (ec == asio::error::operation_aborted)
      continue; // there is another socket now
    if (ec) {
      pause.expires_after(std::chrono::milliseconds{50});
      co_await pause.async_wait(into(ec));
      continue;
    }
    close_on_exec(s);
    ucred who{};
    socklen_t size = sizeof who;
    const bool ours = ::getsockopt(s.native_handle(), SOL_SOCKET, SO_PEERCRED, &who, &size) == 0
                      && (who.uid == ::geteuid() || who.uid == 0);
    if (!ours)
      continue;
    if (clients.size() >= settings.max_clients) {
      refuse(std::move(s),
             "busy: " + std::to_string(clients.size()) + " other commands are with this run at the moment; try again");
      continue;
    }
    auto c = std::make_shared<client>(std::move(s));
    clients.insert(c);
    asio::co_spawn(io, session(std::move(c)), asio::detached);
  }
}

/// A line fits into the buffer of a new connection, so nobody waits.
void control_server::impl::refuse(local::socket s, const std::string& why) {
  const auto line = failure(why).dump() + "\n";
  [[maybe_unused]] const auto n = ::send(s.native_handle(), line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void control_server::impl::ask(const std::shared_ptr<client>& c, std::string_view line) {
  auto back = std::make_shared<way_back<impl>>();
  back->server = shared_from_this();
  back->to = c;
  if (too_deep(line))
    return back->send(failure("the request is nested deeper than " + std::to_string(max_depth)));
  auto request = nlohmann::json::parse(line, nullptr, false);
  if (request.is_discarded())
    return back->send(failure("the request is not valid JSON"));
  if (!request.is_object())
    return back->send(failure(std::string{"the request is no JSON object but "} + request.type_name()));
  try {
    handle(std::move(request), [back](nlohmann::json j) { back->send(j); });
  } catch (const std::exception& e) {
    back->send(failure(std::string{"the request failed: "} + e.what()));
  }
}

asio::awaitable<bool> control_server::impl::answer(client& c, std::string line) {
  line += '\n';
  error_code ec;
  co_await asio::async_write(c.socket, asio::buffer(line), into(ec));
  co_return !ec;
}

asio::awaitable<void> control_server::impl::session(std::shared_ptr<client> c) {
  struct leave {
    impl& server;
    const std::shared_ptr<client>& c;
    ~leave() {
      server.clients.erase(c);
      error_code ignored;
      c->socket.close(ignored);
      if (server.stopping && server.clients.empty())
        server.linger.cancel();
    }
  } at_end{*this, c};
  watchdog<local::socket> idle{c->socket};
  idle.expect(settings.idle_timeout);
  std::string in;
  std::size_t searched = 0;
  std::array<char, 16384> part;
  for (;;) {
    const auto end = in.find('\n', searched);
    if (end == std::string::npos) {
      searched = in.size();
      if (in.size() > settings.max_line_bytes) {
        co_await answer(*c, failure("the request is longer than " + std::to_string(settings.max_line_bytes) + " bytes").dump());
        co_return;
      }
      error_code ec;
      const auto n = co_await c->socket.async_read_some(asio::buffer(part), into(ec));
      if (ec)
        co_return;
      in.append(part.data(), n);
      continue;
    }
    idle.cancel(); // whoever waits for its answer is not idle
    c->answer.reset();
    c->answered.expires_at(asio::steady_timer::time_point::max());
    ask(c, std::string_view{in}.substr(0, end));
    in.erase(0, end + 1);
    searched = 0;
    error_code ec;
    while (!c->answer && !stopping)
      co_await c->answered.async_wait(into(ec));
    if (!c->answer)
      co_return;
    idle.expect(settings.idle_timeout);
    const bool sent = co_await answer(*c, std::move(*c->answer));
    c->answer.reset();
    if (!sent || stopping)
      co_return;
  }
}

control_server::control_server(std::shared_ptr<impl> x) : impl_(std::move(x)) {}

core::result<std::unique_ptr<control_server>> control_server::start(control_server_settings settings, handler handle) {
  const auto dir = private_socket_dir(settings.socket_dir);
  if (!dir)
    return dir.error();
  const auto run = run_folder::open(settings.run_dir);
  if (!run)
    return run.error();
  if (const auto old = run->read()) {
    if (is_control_socket(old->socket) && connect_unix(old->socket))
      return core::error{core::errc::refused, "the run in " + settings.run_dir + " is live already, in process "
                                                + std::to_string(old->pid)};
    remove_control_socket(*dir, old->socket); // left by a process that was killed
  }
  auto address = control_address::of(settings.run_dir, settings.socket_dir);
  if (!address)
    return address.error();
  auto x = std::make_shared<impl>(std::move(settings), std::move(handle), std::move(*address));
  if (const auto ok = x->open(); !ok)
    return ok.error();
  if (const auto written = x->address.announce(); !written) {
    x->address.remove();
    return written.error();
  }
  asio::co_spawn(x->io, x->look_after_address(), asio::detached);
  asio::co_spawn(x->io, x->accept(), asio::detached);
  x->thread = std::thread{[p = x.get()] { p->io.run(); }};
  return std::unique_ptr<control_server>{new control_server{std::move(x)}};
}

control_server::~control_server() {
  stop();
}

std::string control_server::socket_path() const {
  std::lock_guard lock{impl_->mutex};
  return impl_->path;
}

void control_server::stop() {
  if (!impl_->thread.joinable())
    return;
  {
    std::lock_guard lock{impl_->mutex};
    impl_->running = false;
  }
  asio::post(impl_->io, [x = impl_.get()] {
    x->stopping = true;
    error_code ignored;
    x->address.remove();
    x->acceptor.close(ignored);
    x->pause.cancel();
    x->check.cancel();
    // Who was answered gets the answer, if it reads it soon; the others are closed.
    bool answers = false;
    for (const auto& c : x->clients) {
      c->answered.cancel();
      if (c->answer)
        answers = true;
      else
        c->socket.close(ignored);
    }
    if (!answers)
      return;
    x->linger.expires_after(answer_grace);
    x->linger.async_wait([x](error_code ec) {
      if (ec)
        return;
      error_code also_ignored;
      for (const auto& c : x->clients)
        c->socket.close(also_ignored);
    });
  });
  impl_->thread.join();
}

} // namespace troupe::net
