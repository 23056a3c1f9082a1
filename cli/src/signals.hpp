#pragma once

#include <functional>
#include <thread>

namespace troupe::cli {

/// Turns SIGINT and SIGTERM into calls on a thread of its own, so that they may do what a signal handler may not.
///
/// Make it before any other thread: it blocks both signals for this thread and those made from here on, and they stay
/// blocked when it ends.
class signal_watch {
public:
  /// `n`: 1 for the first signal, 2 for the second, …
  using handler = std::function<void(int n)>;
  explicit signal_watch(handler on_signal);
  /// Joins.
  ~signal_watch();

private:
  void loop();

  handler on_signal_;
  int signals_ = -1;
  int stop_ = -1;
  std::thread thread_;
};

} // namespace troupe::cli
