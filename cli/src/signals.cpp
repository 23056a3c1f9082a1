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

signal_watch::signal_watch(handler on_signal) : on_signal_(std::move(on_signal)) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
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
  for (int n = 0;;) {
    pollfd fds[2] = {{signals_, POLLIN, 0}, {stop_, POLLIN, 0}};
    if (::poll(fds, 2, -1) < 0)
      continue;
    if (fds[1].revents)
      return;
    signalfd_siginfo info;
    while (::read(signals_, &info, sizeof info) == sizeof info)
      on_signal_(++n);
  }
}

} // namespace troupe::cli
