#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <vector>

namespace troupe::net {

/// Who has given no sign of life for too long, in the eyes of one watcher that may be held up itself (stopped with Ctrl-Z, in a
/// debugger, on a busy machine): time in which it did not look counts against nobody. Plain rules; the times are given.
class life_signs {
public:
  using time_point = std::chrono::steady_clock::time_point;
  using duration = std::chrono::steady_clock::duration;

  /// `interval`: the watcher looks at least so often. `limit`: a longer silence is too long.
  life_signs(duration interval, duration limit) : interval_(interval), limit_(limit) {}

  /// From now on `who` is judged.
  void watch(std::size_t who, time_point now) { heard_[who] = now; }
  void heard(std::size_t who, time_point now) {
    if (const auto i = heard_.find(who); i != heard_.end())
      i->second = now;
  }
  void forget(std::size_t who) { heard_.erase(who); }
  /// As if everybody had just been heard.
  void pardon(time_point now) {
    for (auto& [who, when] : heard_)
      when = now;
  }

  /// Those whose silence has become too long; each is told once and forgotten. To be called after all that came was heard.
  std::vector<std::size_t> look(time_point now);

private:
  duration interval_, limit_;
  time_point looked_ = time_point::min(); ///< min: never
  std::map<std::size_t, time_point> heard_;
};

} // namespace troupe::net
