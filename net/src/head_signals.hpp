#pragma once

#include <csignal>

namespace troupe::net {

/// The signals that are the head's to act on, whoever sends them and to how many of its processes (a service manager, a batch
/// system, a container, a terminal): it saves and ends, or stops for a while, and tells its workers what to do.
inline sigset_t head_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int s : {SIGTERM, SIGINT, SIGHUP, SIGTSTP, SIGTTIN, SIGTTOU})
    ::sigaddset(&set, s);
  return set;
}

} // namespace troupe::net
