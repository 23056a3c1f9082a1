#include "child_processes.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <future>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

extern "C" {
#include <sys/pidfd.h> // glibc 2.36 forgets to say that it is C
}

#include "head_signals.hpp"

extern char** environ;

namespace troupe::net {

namespace {

std::string message(int error) {
  return std::generic_category().message(error);
}

std::string describe(int status) {
  if (WIFEXITED(status))
    return "exited with status " + std::to_string(WEXITSTATUS(status));
  if (WIFSIGNALED(status))
    return "was killed by signal " + std::to_string(WTERMSIG(status));
  return "ended";
}

} // namespace

core::result<void> child_processes::spawn(const spec& what, child& into) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return core::error{core::errc::io, "no socket: " + message(errno)};
  unique_fd input{ends[0]};
  into.lifeline = unique_fd{ends[1]};
  // Fits the socket's buffer, so this never waits for the child.
  if (what.input.size() > 4096
      || ::send(ends[1], what.input.data(), what.input.size(), MSG_DONTWAIT | MSG_NOSIGNAL)
           != static_cast<ssize_t>(what.input.size()))
    return core::error{core::errc::io, "cannot hand over what the process must know"};

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  const auto blocked = head_signals();
  sigset_t all;
  ::sigfillset(&all);
  ::posix_spawn_file_actions_adddup2(&actions, input.get(), 0);
  ::posix_spawn_file_actions_adddup2(&actions, 2, 1);
  ::posix_spawn_file_actions_addclosefrom_np(&actions, 3); // sockets of libraries are not all close-on-exec
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setsigmask(&attributes, &blocked); // until it has said what to do with them
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  std::vector<char*> arguments;
  for (const auto& a : what.command)
    arguments.push_back(const_cast<char*>(a.c_str())); // not written to; the interface is older than const
  arguments.push_back(nullptr);
  const int error = ::posix_spawn(&into.pid, arguments[0], &actions, &attributes, arguments.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0)
    return core::error{core::errc::io, "cannot start " + what.command[0] + ": " + message(error)};
  into.alive = true;
  into.process = unique_fd{::pidfd_open(into.pid, 0)};
  if (!into.process)
    return core::error{core::errc::io, "cannot watch process " + std::to_string(into.pid) + ": " + message(errno)};
  return {};
}

core::result<std::unique_ptr<child_processes>> child_processes::start(std::vector<spec> what, ended then, silence quiet) {
  std::unique_ptr<child_processes> x{new child_processes{std::move(quiet)}};
  x->then_ = std::move(then);
  x->wake_ = unique_fd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!x->wake_)
    return core::error{core::errc::io, "no eventfd: " + message(errno)};
  for (const auto& s : what)
    if (s.command.empty())
      return core::error{core::errc::invalid_argument, "the command of a child process is empty"};
  x->children_.resize(what.size());
  std::promise<core::result<void>> started;
  auto outcome = started.get_future();
  x->thread_ = std::thread{[p = x.get(), what = std::move(what), &started] {
    core::result<void> all{};
    for (std::size_t i = 0; i < what.size() && all; ++i)
      all = p->spawn(what[i], p->children_[i]);
    started.set_value(all);
    p->run();
  }};
  if (const auto all = outcome.get(); !all) {
    x->stop({});
    return all.error();
  }
  return x;
}

child_processes::~child_processes() {
  stop({});
}

void child_processes::reap(std::size_t index) {
  auto& c = children_[index];
  int status = 0;
  bool told = false;
  {
    std::lock_guard lock{mutex_};
    while (::waitpid(c.pid, &status, 0) < 0 && errno == EINTR)
      ;
    c.alive = false;
    signs_.forget(index);
    told = c.killed || (!c.lifeline && !WIFSIGNALED(status));
  }
  c.lifeline.reset();
  c.process.reset();
  then_(index, describe(status), told);
}

bool child_processes::any_alive() const {
  return std::any_of(children_.begin(), children_.end(), [](const child& c) { return c.alive && c.process; });
}

void child_processes::run() {
  using clock = std::chrono::steady_clock;
  bool stopping = false, killed = false;
  clock::time_point deadline;
  while (!stopping || any_alive()) {
    int timeout = !stopping && quiet_.interval.count() > 0 ? static_cast<int>(quiet_.interval.count()) : -1;
    if (stopping && !killed)
      timeout = static_cast<int>(
        std::max<long long>(0, std::chrono::ceil<std::chrono::milliseconds>(deadline - clock::now()).count()));
    wait_for_news(timeout);
    {
      std::lock_guard lock{mutex_};
      for (const auto i : std::exchange(orders_.watch, {}))
        if (children_[i].alive)
          signs_.watch(i, clock::now());
      if (orders_.stop && !std::exchange(stopping, true)) {
        deadline = clock::now() + orders_.grace;
        for (auto& c : children_)
          c.lifeline.reset();
      }
    }
    if (!stopping && quiet_.interval.count() > 0) {
      judge();
    } else if (stopping && !killed && clock::now() >= deadline) {
      killed = true;
      for (std::size_t i = 0; i < children_.size(); ++i)
        kill(i);
    }
  }
  for (std::size_t i = 0; i < children_.size(); ++i)
    if (children_[i].alive) { // started, but could not be watched
      kill(i);
      reap(i);
    }
}

/// Takes what there is: ends of children, what they write, and that there are orders.
void child_processes::wait_for_news(int timeout) {
  std::vector<pollfd> fds{{wake_.get(), POLLIN, 0}};
  for (const auto& c : children_) {
    fds.push_back({c.alive && c.process ? c.process.get() : -1, POLLIN, 0});
    fds.push_back({c.alive && c.lifeline && !c.mute ? c.lifeline.get() : -1, POLLIN, 0});
  }
  if (::poll(fds.data(), fds.size(), timeout) < 0)
    return; // interrupted
  std::uint64_t ignored = 0;
  if (fds[0].revents != 0)
    [[maybe_unused]] const auto n = ::read(wake_.get(), &ignored, sizeof ignored);
  for (std::size_t i = 0; i < children_.size(); ++i) {
    if (fds[2 * i + 2].revents != 0)
      listen_to(i);
    if (fds[2 * i + 1].revents != 0)
      reap(i);
  }
}

void child_processes::listen_to(std::size_t index) {
  auto& c = children_[index];
  char signs[256];
  const auto n = ::recv(c.lifeline.get(), signs, sizeof signs, MSG_DONTWAIT);
  if (n > 0)
    signs_.heard(index, std::chrono::steady_clock::now());
  else if (n == 0 || (errno != EAGAIN && errno != EINTR))
    c.mute = true;
}

void child_processes::judge() {
  const auto now = std::chrono::steady_clock::now();
  {
    std::lock_guard lock{mutex_};
    if (orders_.suspended)
      signs_.pardon(now);
  }
  for (const auto i : signs_.look(now))
    quiet_.then(i);
}

void child_processes::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto n = ::write(wake_.get(), &one, sizeof one); // full: it is awake already
}

void child_processes::watch(std::size_t index) {
  {
    std::lock_guard lock{mutex_};
    orders_.watch.push_back(index);
  }
  wake();
}

void child_processes::kill(std::size_t index) {
  std::lock_guard lock{mutex_};
  auto& c = children_[index];
  if (c.alive) {
    c.killed = true;
    ::kill(c.pid, SIGKILL);
  }
}

void child_processes::signal_all(int number) {
  for (const auto& c : children_)
    if (c.alive)
      ::kill(c.pid, number);
}

void child_processes::suspend() {
  std::lock_guard lock{mutex_};
  orders_.suspended = true;
  signal_all(SIGSTOP);
}

void child_processes::resume() {
  std::lock_guard lock{mutex_};
  signal_all(SIGCONT);
  orders_.suspended = false;
}

void child_processes::stop(std::chrono::milliseconds grace) {
  if (!thread_.joinable())
    return;
  {
    std::lock_guard lock{mutex_};
    orders_.stop = true;
    orders_.grace = grace;
  }
  wake();
  thread_.join();
}

} // namespace troupe::net
