#include "running_mean.hpp"

#include <numeric>

using namespace troupe::actors;

namespace hello {
namespace {

// Step 4: what the actor remembers. Only the actor touches it, one message at a time, so it needs no lock.
struct running_mean_state {
  std::vector<double> seen;
  static constexpr const char* name = "running_mean";
};

// Step 5: what it does with each message. This is the whole actor.
running_mean::behavior_type run_mean(running_mean::stateful_pointer<running_mean_state> self) {
  on_exception(self); // an exception in a handler ends this actor; who asked or watches gets its text
  return {
      [=](const observe& m) { state(self).seen.push_back(m.x); },
      [=](const query_mean& m) -> result<wire_real> {
        const auto& seen = state(self).seen;
        if (m.count == 0 || m.count > seen.size())
          return troupe::actors::make_error("a mean of " + std::to_string(m.count) + " numbers was asked for, and "
                                            + std::to_string(seen.size()) + " have been observed");
        return wire_real{std::accumulate(seen.end() - m.count, seen.end(), 0.0) / m.count};
      },
  };
}

} // namespace

running_mean spawn_running_mean(caf::actor_system& system) {
  return system.spawn(run_mean);
}

} // namespace hello
