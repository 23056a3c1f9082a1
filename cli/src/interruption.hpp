#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>

#include "troupe/actors/run.hpp"
#include "troupe/net/cluster.hpp"

namespace troupe::cli {

/// What signals that ask a run to end mean: the first has it save and end; Ctrl-C after it leaves at once. But what comes within
/// half a second is the same wish once more, since many send one to the process and one to its group (`timeout`, shells,
/// wrappers), and who sends SIGTERM or SIGHUP again wants no work lost: they have SIGKILL for more.
class leave_rule {
public:
  using time_point = std::chrono::steady_clock::time_point;
  enum class answer { nothing, save, leave };
  answer on_signal(int number, time_point now);

private:
  std::optional<time_point> first_;
};

/// What signals do to a run: it saves and ends, the process leaves at once, or (SIGTSTP) it stops for a while with its workers.
class interruption {
public:
  /// `say`: for the user; may block, so it is called on a thread of its own.
  explicit interruption(std::function<void(std::string_view)> say) : say_(std::move(say)) {}
  /// Waits until what there was to say is said.
  ~interruption();
  interruption(const interruption&) = delete;
  interruption& operator=(const interruption&) = delete;

  void on_signal(int number);
  void begin(actors::run_control run);
  /// Whose workers stop with this process; null: nobody's, from now on.
  void lead(net::cluster_head* cluster);

private:
  void suspend();

  std::mutex mutex_;
  std::function<void(std::string_view)> say_;
  leave_rule rule_;
  bool asked_ = false;
  std::optional<actors::run_control> run_;
  net::cluster_head* cluster_ = nullptr;
  std::thread saying_;
};

} // namespace troupe::cli
