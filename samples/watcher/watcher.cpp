#include "watcher.hpp"

#include <map>

using namespace troupe::actors;

namespace watching {
namespace {

/// Of one trainer.
struct progress {
  double best = 1e300;
  int stalled = 0; ///< reports in a row without a better loss
};

struct watcher_state {
  run_control run;
  std::map<std::string, progress> trainers;
  std::uint32_t pushes = 0;
  static constexpr const char* name = "watcher";
};

watcher::behavior_type watch(watcher::stateful_pointer<watcher_state> self) {
  return {
      [=](const attach& m) { state(self).run = m.run; },

      [=](const report& m) {
        auto& seen = state(self).trainers[m.trainer];
        const double lr = m.lr / 4;
        if (m.loss < 0.99 * seen.best) {
          seen = {m.loss, 0};
        } else if (++seen.stalled >= 3 && lr > 1e-4) {
          seen.stalled = 0;
          // An actor never waits. The answer comes on another thread, which only posts it back as a message.
          state(self).run.push(m.trainer, {{"lr", lr}}, [me = watcher{self}, who = m.trainer](auto answer) {
            anon_mail(answer ? pushed{who, answer->front().step, {}} : pushed{who, 0, answer.error().text}).send(me);
          });
          print(self, m.trainer + ": the loss stays at " + std::to_string(m.loss) + ", asking for lr " + std::to_string(lr));
        }
      },

      [=](const pushed& m) {
        state(self).pushes += m.failure.empty() ? 1 : 0;
        print(self, m.trainer + ": " + (m.failure.empty() ? "trains so from step " + std::to_string(m.step) : m.failure));
      },

      [=](const query_pushes& m) {
        if (m.finished)
          state(self).run = {};
        return state(self).pushes;
      },
  };
}

class listener final : public run_listener {
public:
  explicit listener(watcher to) : to_(std::move(to)) {}
  void on_sync_point(const sync_point_event& e) override {
    for (const auto& m : e.reports)
      anon_mail(report{m.name, m.loss, m.hp.number("lr", 0).value()}).send(to_);
  }

private:
  watcher to_;
};

} // namespace

watcher spawn_watcher(caf::actor_system& system) {
  return system.spawn(watch);
}

std::shared_ptr<run_listener> make_listener(const watcher& to) {
  return std::make_shared<listener>(to);
}

} // namespace watching
