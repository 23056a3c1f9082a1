#include "life_signs.hpp"

#include <algorithm>

namespace troupe::net {

std::vector<std::size_t> life_signs::look(time_point now) {
  const auto missed = looked_ == time_point::min() ? duration{0} : now - looked_ - interval_;
  looked_ = now;
  std::vector<std::size_t> silent;
  for (auto i = heard_.begin(); i != heard_.end();) {
    if (missed > duration{0})
      i->second = std::min(i->second + missed, now);
    if (now - i->second > limit_) {
      silent.push_back(i->first);
      i = heard_.erase(i);
    } else {
      ++i;
    }
  }
  return silent;
}

} // namespace troupe::net
