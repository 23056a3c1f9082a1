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
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "asio.hpp"
#include "control_files.hpp"
#include "troupe/net/token.hpp"

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
  impl(control_server_settings s, handler h) : settings(std::move(s)), handle(std::move(h)), acceptor(io), pause(io), linger(io) {}

  control_server_settings settings;
  handler handle;
  std::string path;
  asio::io_context io{1};
  local::acceptor acceptor;
  asio::steady_timer pause;
  asio::steady_timer linger; // after stop(): until when answers may still be written
  std::set<std::shared_ptr<client>> clients; // of the io thread
  bool stopping = false;                     // of the io thread
  std::thread thread;
  std::mutex mutex;
  bool running = true; // guarded by mutex: nothing is posted once it is false

  asio::awaitable<void> accept();
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

asio::awaitable<void> control_server::impl::accept() {
  while (!stopping) {
    error_code ec;
    local::socket s = co_await acceptor.async_accept(into(ec));
    if (stopping)
      co_return;
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
    if (!ours || clients.size() >= settings.max_clients)
      continue;
    auto c = std::make_shared<client>(std::move(s));
    clients.insert(c);
    asio::co_spawn(io, session(std::move(c)), asio::detached);
  }
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
  if (const auto old = read_control_record(settings.run_dir)) {
    if (connect_unix(old->socket))
      return core::error{core::errc::refused, "the run in " + settings.run_dir + " is live already, in process "
                                                + std::to_string(old->pid)};
    ::unlink(old->socket.c_str()); // left by a process that was killed
  }
  auto x = std::make_shared<impl>(std::move(settings), std::move(handle));
  x->path = *dir + "/troupe-" + std::to_string(::getpid()) + "-" + token::random().to_hex().substr(0, 8) + ".sock";
  if (x->path.size() >= sizeof(sockaddr_un::sun_path))
    return core::error{core::errc::invalid_argument, "the control socket's path " + x->path
                                                       + " is too long: name a shorter folder in XDG_RUNTIME_DIR"};
  error_code ec;
  x->acceptor.open(local{}, ec);
  if (!ec) {
    close_on_exec(x->acceptor);
    x->acceptor.bind(local::endpoint{x->path}, ec);
  }
  if (!ec && ::chmod(x->path.c_str(), 0600) != 0) // before anyone can connect: it does not listen yet
    ec.assign(errno, boost::system::system_category());
  if (!ec)
    x->acceptor.listen(asio::socket_base::max_listen_connections, ec);
  if (ec) {
    ::unlink(x->path.c_str());
    return core::error{core::errc::io, "cannot listen on the control socket " + x->path + ": " + ec.message()};
  }
  if (const auto written = write_control_record(x->settings.run_dir, {::getpid(), x->path}); !written) {
    ::unlink(x->path.c_str());
    return written.error();
  }
  asio::co_spawn(x->io, x->accept(), asio::detached);
  x->thread = std::thread{[p = x.get()] { p->io.run(); }};
  return std::unique_ptr<control_server>{new control_server{std::move(x)}};
}

control_server::~control_server() {
  stop();
}

const std::string& control_server::socket_path() const noexcept {
  return impl_->path;
}

void control_server::stop() {
  if (!impl_->thread.joinable())
    return;
  remove_control_record(impl_->settings.run_dir);
  ::unlink(impl_->path.c_str());
  {
    std::lock_guard lock{impl_->mutex};
    impl_->running = false;
  }
  asio::post(impl_->io, [x = impl_.get()] {
    x->stopping = true;
    error_code ignored;
    x->acceptor.close(ignored);
    x->pause.cancel();
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
