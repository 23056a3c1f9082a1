#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <sys/types.h>

#include "life_signs.hpp"
#include "troupe/core/result.hpp"
#include "unique_fd.hpp"

namespace troupe::net {

/// Processes that end with this one.
///
/// Each child's standard input is a socket whose other end only this object holds: what the child must know (secrets too) is
/// written into it, and its end tells the child that the parent is gone, however that came. What a child writes into it is a sign
/// of life. Standard output becomes standard error. Children are in a process group of their own, so that Ctrl-C in a terminal
/// reaches the parent alone, and begin with the signals blocked that are the parent's to act on (`head_signals`).
///
/// One thread starts the children, listens to them and waits for their ends. It lives as long as they do, because the kernel's
/// parent-death signal, which a child may ask for, is sent when the thread that started it ends.
class child_processes {
public:
  struct spec {
    std::vector<std::string> command; ///< program (a path) and arguments
    std::string input;                ///< first bytes on standard input, at most 4096
  };
  /// `how`: "exited with status 3", "was killed by signal 9". `told`: it ended because `kill` or `stop` was called; one that a signal
  /// of somebody else ends was not told. Called on the object's thread.
  using ended = std::function<void(std::size_t index, const std::string& how, bool told)>;

  /// Who is too long without a sign of life, among those that `watch` named.
  struct silence {
    std::chrono::milliseconds interval{0}; ///< signs come so often; 0: nobody is judged
    std::chrono::milliseconds limit{0};
    std::function<void(std::size_t index)> then; ///< once for each, on the object's thread
  };

  /// Starts all or none.
  static core::result<std::unique_ptr<child_processes>> start(std::vector<spec> what, ended then, silence quiet);
  static core::result<std::unique_ptr<child_processes>> start(std::vector<spec> what, ended then) {
    return start(std::move(what), std::move(then), {});
  }
  /// As `stop(0)`.
  ~child_processes();

  std::size_t size() const noexcept { return children_.size(); }
  pid_t pid(std::size_t index) const noexcept { return children_[index].pid; } ///< also after its end
  /// From now on this child must give signs of life.
  void watch(std::size_t index);
  /// Sends SIGKILL; no effect on a child that has ended.
  void kill(std::size_t index);
  /// Stops all children (SIGSTOP), and lets them go on. Nobody is judged in between.
  void suspend();
  void resume();
  /// Closes all lifelines, waits `grace` for the children to end, kills the rest, reaps all. Idempotent.
  void stop(std::chrono::milliseconds grace);

private:
  struct child {
    pid_t pid = 0;
    unique_fd process;  ///< readable once it has ended
    unique_fd lifeline; ///< our end of its standard input
    bool alive = false, killed = false; ///< `killed`: by `kill`
    bool mute = false;                  ///< it has closed its end
  };
  explicit child_processes(silence quiet) : quiet_(std::move(quiet)), signs_(quiet_.interval, quiet_.limit) {}
  core::result<void> spawn(const spec& what, child& into);
  void run();
  void wait_for_news(int timeout);
  void listen_to(std::size_t index);
  void judge();
  void reap(std::size_t index);
  void wake();
  void signal_all(int number);
  bool any_alive() const;

  std::mutex mutex_; // guards `alive` and `killed` of children, and orders
  std::vector<child> children_;
  ended then_;
  silence quiet_;
  life_signs signs_; // of the thread
  unique_fd wake_;
  struct {
    std::vector<std::size_t> watch; ///< not yet taken
    bool suspended = false, stop = false;
    std::chrono::milliseconds grace{0};
  } orders_;
  std::thread thread_;
};

} // namespace troupe::net
