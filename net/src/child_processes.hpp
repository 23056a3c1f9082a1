#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <sys/types.h>

#include "troupe/core/result.hpp"
#include "unique_fd.hpp"

namespace troupe::net {

/// Processes that end with this one.
///
/// Each child's standard input is a pipe whose other end only this object holds: what the child must know (secrets too) is
/// written into it, and its end tells the child that the parent is gone, however that came. Standard output becomes
/// standard error. Children are in a process group of their own, so that Ctrl-C in a terminal reaches the parent alone.
///
/// One thread starts the children and waits for their ends. It lives as long as they do, because the kernel's parent-death
/// signal, which a child may ask for, is sent when the thread that started it ends.
class child_processes {
public:
  struct spec {
    std::vector<std::string> command; ///< program (a path) and arguments
    std::string input;                ///< first bytes on standard input, at most 4096
  };
  /// `how`: "exited with status 3", "was killed by signal 9". `told`: it ended because `kill` or `stop` was called; one that a signal
  /// of somebody else ends was not told. Called on the object's thread.
  using ended = std::function<void(std::size_t index, const std::string& how, bool told)>;

  /// Starts all or none.
  static core::result<std::unique_ptr<child_processes>> start(std::vector<spec> what, ended then);
  /// As `stop(0)`.
  ~child_processes();

  std::size_t size() const noexcept { return children_.size(); }
  pid_t pid(std::size_t index) const noexcept { return children_[index].pid; } ///< also after its end
  /// Sends SIGKILL; no effect on a child that has ended.
  void kill(std::size_t index);
  /// Closes all lifelines, waits `grace` for the children to end, kills the rest, reaps all. Idempotent.
  void stop(std::chrono::milliseconds grace);

private:
  struct child {
    pid_t pid = 0;
    unique_fd process;  ///< readable once it has ended
    unique_fd lifeline; ///< our end of its standard input
    bool alive = false, killed = false; ///< `killed`: by `kill`
  };
  child_processes() = default;
  core::result<void> spawn(const spec& what, child& into);
  void wait_for_ends();
  void reap(std::size_t index);

  std::mutex mutex_; // guards `alive` and `killed`
  std::vector<child> children_;
  ended then_;
  unique_fd wake_;
  std::thread thread_;
  std::atomic<std::chrono::milliseconds> grace_{}; // written before wake_ is signalled, which only the kernel sees
};

} // namespace troupe::net
