/// A fixed number of messages, for an instrument to count the instructions they take (script message_floor beside this file):
///
///   ask    asks from one actor to another of the same process, one after the other, through Troupe's mail
///   round  trainer rounds: ten trainers whose steps cost nothing meet after every step
///
/// `count_messages --built-with` prints what decides about the counts besides the code; a baseline of another is none.

#include <cstdint>
#include <cstring>
#include <future>
#include <iostream>
#include <memory>
#include <string>

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#define COUNTS 1
#else
#define COUNTS 0
#define CALLGRIND_START_INSTRUMENTATION
#define CALLGRIND_ZERO_STATS
#define CALLGRIND_DUMP_STATS_AT(name)
#endif

#include "troupe/actors/caf.hpp"
#include "troupe/actors/run.hpp"
#include "troupe/core/experiment.hpp"
#include "troupe/gpu/device.hpp"
#include "troupe/gpu/workload.hpp"

namespace {

using namespace troupe;

constexpr std::size_t asks = 10'000;
constexpr std::uint64_t rounds = 100;
constexpr unsigned trainers = 10;

/// One thread and no polling for work, so that the count is of messages and not of who happened to wait for whom.
struct calm_config : actors::system_config {
  calm_config() {
    scheduler_threads(1);
#if TROUPE_CAF_MODERN
    set(actors::caf_key("scheduler.policy"), "sharing");
#else
    set(actors::caf_key("scheduler.policy"), caf::atom("sharing"));
#endif
  }
};

using echo_actor = actors::typed_actor<actors::result<std::uint64_t>(std::uint64_t)>;
echo_actor::behavior_type echo() {
  return {[](std::uint64_t x) -> actors::result<std::uint64_t> { return x; }};
}

void ask(caf::event_based_actor* self, const echo_actor& whom, std::uint64_t left, std::shared_ptr<std::promise<void>> over) {
  if (left == 0) {
    over->set_value();
    self->quit();
    return;
  }
  actors::mail(self, left)
      .request(whom, std::chrono::seconds(60))
      .then([=](std::uint64_t x) { ask(self, whom, x - 1, over); });
}

void ask_many(caf::actor_system& sys, std::uint64_t n) {
  const auto whom = sys.spawn(echo);
  auto over = std::make_shared<std::promise<void>>();
  const auto asker = sys.spawn([=](caf::event_based_actor* self) -> caf::behavior {
    ask(self, whom, n, over);
    return {[](int) {}};
  });
  over->get_future().get();
}

/// False: the run did not come to its end.
bool meet_often(caf::actor_system& sys, std::uint64_t n) {
  actors::run_options o;
  o.exp.name = "rounds";
  for (unsigned i = 0; i < trainers; ++i) {
    core::trainer_spec t;
    t.name = "t" + std::to_string(i);
    t.workload_type = "idle";
    t.workload_options = "{}";
    t.stop_step = n + 1;
    o.exp.trainers.push_back(std::move(t));
  }
  o.exp.sync.schedule.every_steps = 1;
  o.exp.checkpoints.every_syncs = 0;
  o.workloads = std::make_shared<gpu::workload_registry>(gpu::builtin_workloads());
  o.policies = std::make_shared<core::policy_registry>(core::builtin_policies());
  o.slots.resize(1);
  o.slots.front().device = gpu::find_devices().devices.front();
  o.system = &sys;
  auto run = actors::run_session::start(std::move(o));
  if (!run) {
    std::cerr << run.error().text << '\n';
    return false;
  }
  return (*run)->wait().rounds == n;
}

std::string built_with() {
  std::string out = "CAF " + std::to_string(CAF_MAJOR_VERSION) + "." + std::to_string(CAF_MINOR_VERSION);
#if defined(__clang__)
  out += ", clang " + std::to_string(__clang_major__);
#elif defined(__GNUC__)
  out += ", g++ " + std::to_string(__GNUC__);
#endif
#if defined(__x86_64__)
  out += ", x86-64";
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  out += ", sanitized";
#elif defined(__OPTIMIZE__) && defined(NDEBUG)
  out += ", optimised";
#else
  out += ", not optimised";
#endif
  return out + (COUNTS ? "" : ", without valgrind's headers");
}

} // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--built-with") == 0) {
    std::cout << built_with() << std::endl;
    return 0;
  }
  calm_config config;
  caf::actor_system system{config};
  ask_many(system, 100); // what happens once only
  CALLGRIND_START_INSTRUMENTATION;
  ask_many(system, asks);
  CALLGRIND_DUMP_STATS_AT("ask");
  CALLGRIND_ZERO_STATS;
  const bool met = meet_often(system, rounds);
  CALLGRIND_DUMP_STATS_AT("round");
  std::cout << "messages ask " << asks << " round " << rounds * trainers << std::endl;
  return met ? 0 : 1;
}
