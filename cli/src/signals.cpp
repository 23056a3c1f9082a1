#include "signals.hpp"

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <system_error>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace troupe::cli {

namespace {

/// Blocking it would bring it back: a blocked signal is kept, though its action be to ignore it.
bool is_ignored(int number) {
  struct sigaction now {};
  return ::sigaction(number, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_IGN;
}

} // namespace

signal_watch::signal_watch(handler on_signal, bool also_sigtstp) : on_signal_(std::move(on_signal)) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  if (!is_ignored(SIGHUP))
    sigaddset(&set, SIGHUP);
  if (also_sigtstp && !is_ignored(SIGTSTP))
    sigaddset(&set, SIGTSTP);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signals_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  stop_ = ::eventfd(0, EFD_CLOEXEC);
  if (signals_ < 0 || stop_ < 0) {
    std::error_code why{errno, std::generic_category()};
    ::close(signals_);
    ::close(stop_);
    throw std::system_error(why, "cannot watch for signals");
  }
  thread_ = std::thread([this] { loop(); });
}

signal_watch::~signal_watch() {
  std::uint64_t one = 1;
  while (::write(stop_, &one, sizeof one) < 0 && errno == EINTR)
    continue;
  thread_.join();
  ::close(signals_);
  ::close(stop_);
}

void signal_watch::loop() {
  for (;;) {
    pollfd fds[2] = {{signals_, POLLIN, 0}, {stop_, POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0)
      continue;
    if (fds[1].revents)
      return;
    signalfd_siginfo info;
    while (::read(signals_, &info, sizeof info) == sizeof info)
      on_signal_(static_cast<int>(info.ssi_signo));
  }
}

void stop_here() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTSTP);
  ::raise(SIGTSTP); // to this thread, which has it blocked
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr); // all threads stop here
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void ignore_broken_pipes() { ::signal(SIGPIPE, SIG_IGN); }

} // namespace troupe::cli
