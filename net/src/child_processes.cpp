#include "child_processes.hpp"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <future>
#include <system_error>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/wait.h>

extern "C" {
#include <sys/pidfd.h> // glibc 2.36 forgets to say that it is C
}

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
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return core::error{core::errc::io, "no pipe: " + message(errno)};
  unique_fd input{ends[0]};
  into.lifeline = unique_fd{ends[1]};
  // Fits the pipe's buffer, so this never waits for the child.
  if (what.input.size() > 4096
      || ::write(ends[1], what.input.data(), what.input.size()) != static_cast<ssize_t>(what.input.size()))
    return core::error{core::errc::io, "cannot hand over what the process must know"};

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  sigset_t none, all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawn_file_actions_adddup2(&actions, input.get(), 0);
  ::posix_spawn_file_actions_adddup2(&actions, 2, 1);
  ::posix_spawn_file_actions_addclosefrom_np(&actions, 3); // sockets of libraries are not all close-on-exec
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setsigmask(&attributes, &none);
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

core::result<std::unique_ptr<child_processes>> child_processes::start(std::vector<spec> what, ended then) {
  std::unique_ptr<child_processes> x{new child_processes};
  x->then_ = std::move(then);
  x->wake_ = unique_fd{::eventfd(0, EFD_CLOEXEC)};
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
    p->wait_for_ends();
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
    told = c.killed || (!c.lifeline && !WIFSIGNALED(status));
  }
  c.lifeline.reset();
  c.process.reset();
  then_(index, describe(status), told);
}

void child_processes::wait_for_ends() {
  using clock = std::chrono::steady_clock;
  bool stopping = false, killed = false;
  clock::time_point deadline;
  for (;;) {
    std::vector<pollfd> fds{{wake_.get(), static_cast<short>(stopping ? 0 : POLLIN), 0}};
    std::vector<std::size_t> who;
    for (std::size_t i = 0; i < children_.size(); ++i)
      if (children_[i].alive && children_[i].process) {
        fds.push_back({children_[i].process.get(), POLLIN, 0});
        who.push_back(i);
      }
    if (stopping && who.empty())
      break;
    int timeout = -1;
    if (stopping && !killed)
      timeout = static_cast<int>(
        std::max<long long>(0, std::chrono::ceil<std::chrono::milliseconds>(deadline - clock::now()).count()));
    const int n = ::poll(fds.data(), fds.size(), timeout);
    if (n < 0)
      continue; // interrupted
    for (std::size_t i = 0; i < who.size(); ++i)
      if (fds[i + 1].revents != 0)
        reap(who[i]);
    if (!stopping && fds[0].revents != 0) {
      stopping = true;
      deadline = clock::now() + grace_.load();
      for (auto& c : children_)
        c.lifeline.reset();
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

void child_processes::kill(std::size_t index) {
  std::lock_guard lock{mutex_};
  auto& c = children_[index];
  if (c.alive) {
    c.killed = true;
    ::kill(c.pid, SIGKILL);
  }
}

void child_processes::stop(std::chrono::milliseconds grace) {
  if (!thread_.joinable())
    return;
  grace_ = grace;
  const std::uint64_t one = 1;
  while (::write(wake_.get(), &one, sizeof one) != sizeof one)
    ;
  thread_.join();
}

} // namespace troupe::net
