#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "child_processes.hpp"

/// Waits until one is silent.
struct silent_one {
  std::mutex mutex;
  std::condition_variable more;
  std::optional<std::size_t> who;

  troupe::net::child_processes::silence rule(std::chrono::milliseconds limit) {
    return {std::chrono::milliseconds{10}, limit, [this](std::size_t i) {
              std::lock_guard lock{mutex};
              who = i;
              more.notify_all();
            }};
  }
  std::size_t wait() {
    std::unique_lock lock{mutex};
    more.wait(lock, [&] { return who.has_value(); });
    return *who;
  }
};

/// Returns when another who has the same limit has given up on a silent child: whoever was silent all the time was so for longer.
inline void outlast(std::chrono::milliseconds limit) {
  using troupe::net::child_processes;
  silent_one quiet;
  auto x = child_processes::start({{{"/bin/sh", "-c", "exec sleep 1000"}, {}}}, [](auto, auto&, auto) {}, quiet.rule(limit));
  if (!x)
    throw std::runtime_error(x.error().text);
  (*x)->watch(0);
  quiet.wait();
}
