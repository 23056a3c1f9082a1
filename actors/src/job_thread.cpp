#include "job_thread.hpp"

#include <utility>

#include <pthread.h>

namespace troupe::actors::internal {

job_thread::job_thread(const std::string& name) : thread_([this] { work(); }) {
  pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
}

job_thread::~job_thread() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void job_thread::post(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
}

std::size_t job_thread::waiting() const {
  const std::lock_guard lock(mutex_);
  return jobs_.size();
}

void job_thread::clear() {
  std::deque<std::function<void()>> dropped; // destroyed after the lock is released: it may do anything
  const std::lock_guard lock(mutex_);
  dropped.swap(jobs_);
}

void job_thread::work() {
  for (;;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
    if (jobs_.empty())
      return;
    auto job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
  }
}

} // namespace troupe::actors::internal
