#pragma once

#include <functional>
#include <thread>

namespace troupe::cli {

/// Turns signals into calls on a thread of its own, so that they may do what a signal handler may not: SIGINT, SIGTERM, SIGHUP
/// and, where asked for, SIGTSTP. The last two are left alone where they are ignored already (`nohup`).
///
/// Make it before any other thread: it blocks these signals for this thread and those made from here on, and they stay blocked
/// when it ends.
class signal_watch {
public:
  using handler = std::function<void(int number)>;
  explicit signal_watch(handler on_signal, bool also_sigtstp = false);
  /// Joins.
  ~signal_watch();

private:
  void loop();

  handler on_signal_;
  int signals_ = -1;
  int stop_ = -1;
  std::thread thread_;
};

/// For the handler: stops this process as SIGTSTP would if nobody watched for it, and returns when it goes on.
void stop_here();

/// A reader of our output that has left must not end us: writing fails instead.
void ignore_broken_pipes();

} // namespace troupe::cli
