#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace troupe::actors::internal {

/// A thread that does one job after the other, so that who asks never waits. Jobs may not throw.
class job_thread {
public:
  explicit job_thread(const std::string& name);
  /// Does what is queued, then joins. Never called on the thread itself.
  ~job_thread();
  job_thread(const job_thread&) = delete;
  job_thread& operator=(const job_thread&) = delete;

  /// Thread-safe.
  void post(std::function<void()> job);
  /// Jobs that wait. Thread-safe.
  std::size_t waiting() const;
  /// Forgets what waits; the job at hand is finished. Thread-safe.
  void clear();

private:
  void work();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool ending_ = false;
  std::thread thread_;
};

} // namespace troupe::actors::internal
