#include <cstdio>
#include <optional>

#include "running_mean.hpp"

using namespace troupe::actors;
using namespace std::chrono_literals;

namespace {

/// Asks and waits: for programs' main threads. Actors ask with `.then(…)` instead and never wait.
std::optional<double> ask(caf::scoped_actor& self, const hello::running_mean& mean, std::uint32_t count) {
  std::optional<double> answer;
  mail(self, hello::query_mean{count})
      .request(mean, 10s)
      .receive([&](const wire_real& x) { answer = x; },
               [&](const caf::error& e) { std::printf("  refused: %s\n", error_text(e).c_str()); });
  return answer;
}

} // namespace

int main() {
  // Step 6: a system that knows our messages. `config` also sets what CAF leaves dangerous.
  config<caf::id_block::hello> cfg;
  caf::actor_system system{cfg};
  caf::scoped_actor self{system}; // speaks for this thread

  // Step 7: start the actor, tell it things, ask it things.
  auto mean = hello::spawn_running_mean(system);
  for (double x : {1.0, 2.0, 6.0})
    mail(self, hello::observe{x}).send(mean);

  std::puts("the mean of the newest two:");
  const auto two = ask(self, mean, 2);
  if (two)
    std::printf("  %g\n", *two);
  std::puts("the mean of the newest five:");
  const auto five = ask(self, mean, 5);

  // Nobody needs to stop it: an actor that nothing refers to any more is gone.
  return two == 4.0 && !five ? 0 : 1;
}
