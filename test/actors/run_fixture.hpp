#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "troupe/actors/run.hpp"
#include "troupe/gpu/device.hpp"

/// What tests of whole runs share: a workload whose every step is known, policies made of functions, a
/// listener to wait on.
namespace troupe::test {

using namespace troupe::actors;

/// What tests do to trainers while they run; by trainer name.
class mischief {
public:
  /// The trainer's step number `at` throws, so many times in all.
  void fail(const std::string& who, std::uint64_t at, int times = 1 << 30) { set(failures_, who, at, times); }
  /// Its loss is not a number there.
  void spoil(const std::string& who, std::uint64_t at) { set(spoils_, who, at, 1 << 30); }
  /// It may not be built so many times.
  void fail_build(const std::string& who, int times) { set(builds_, who, 0, times); }
  /// Its steps from `at` on wait until `release`.
  void hold(const std::string& who, std::uint64_t at);
  /// When it stands there. False: it took longer than a test may.
  bool wait_until_held(const std::string& who);
  void release();
  /// From now on its saves wait until `release_saves`.
  void hold_saves(const std::string& who) { close(saves_, who); }
  void release_saves() { open(saves_); }
  /// When one of them waits there. False: it took longer than a test may.
  bool wait_until_saving(const std::string& who) { return wait_until_at(saves_, who); }
  /// The same of being built.
  void hold_builds(const std::string& who) { close(built_, who); }
  void release_builds() { open(built_); }
  bool wait_until_building(const std::string& who) { return wait_until_at(built_, who); }
  /// The same of being evaluated: at sync points, and at its end.
  void hold_evaluations(const std::string& who) { close(evaluations_, who); }
  void release_evaluations() { open(evaluations_); }
  bool wait_until_evaluating(const std::string& who) { return wait_until_at(evaluations_, who); }
  /// How often its lr was set to `lr`, in all its lives.
  int times_set(const std::string& who, double lr);

  bool fails(const std::string& who, std::uint64_t step) { return hit(failures_, who, step); }
  bool spoils(const std::string& who, std::uint64_t step) { return hit(spoils_, who, step); }
  bool fails_build(const std::string& who) { return hit(builds_, who, 0); }
  void wait_if_held(const std::string& who, std::uint64_t step);
  void before_save(const std::string& who) { pass(saves_, who); }
  void before_build(const std::string& who) { pass(built_, who); }
  void before_evaluation(const std::string& who) { pass(evaluations_, who); }
  void note_set(const std::string& who, double lr);

private:
  /// Where those who come by wait while it is closed for them.
  struct gate {
    std::set<std::string> closed, waiting;
  };
  void close(gate& g, const std::string& who);
  void open(gate& g);
  void pass(gate& g, const std::string& who);
  bool wait_until_at(gate& g, const std::string& who);
  struct entry {
    std::uint64_t at = 0;
    int times = 0;
  };
  using table = std::map<std::string, entry>;
  void set(table& t, const std::string& who, std::uint64_t at, int times);
  bool hit(table& t, const std::string& who, std::uint64_t step);

  std::mutex mutex_;
  std::condition_variable changed_;
  table failures_, spoils_, builds_, held_;
  std::set<std::string> standing_;
  gate saves_, built_, evaluations_;
  std::map<std::pair<std::string, double>, int> sets_;
};

/// "walk": a weight and a momentum per coordinate that walk by counter-based random numbers times "lr". The
/// options may give "size" (coordinates, 4) and "bytes" (of the slot's memory that it holds beside, 0). Its loss at a step is the step's mean |weight|; accuracy 1 / (1
/// + loss).
std::shared_ptr<gpu::workload_registry> walks(std::shared_ptr<mischief> what = nullptr);

/// "ask": decides as the function says.
using deciding = std::function<std::map<core::trainer_id, core::decision>(const core::policy_input&,
                                                                          core::random_stream&)>;
std::shared_ptr<core::policy_registry> asks(deciding f);

/// Trainers t0, t1, … of `steps` steps that meet every `every`.
core::experiment experiment_of(unsigned trainers, std::uint64_t steps, std::uint64_t every);

/// Keeps what it is told; `wait` waits for it.
class recorder : public run_listener {
public:
  void on_started(const run_status&) override;
  void on_sync_point(const sync_point_event& x) override;
  void on_event(std::string_view kind, const nlohmann::json& details) override;
  void on_finished(const run_summary&) override;

  struct told {
    std::string kind;
    nlohmann::json details;
  };
  /// Copies of what there was so far.
  std::vector<sync_point_event> sync_points() const;
  std::vector<told> events(std::string_view kind) const;
  /// False: it took longer than a test may.
  bool wait(const std::function<bool(const recorder&)>& until) const;
  bool wait_for_event(std::string_view kind, std::size_t count = 1) const;
  bool wait_for_sync(std::size_t count) const;
  bool started() const;

private:
  void changed() { changed_.notify_all(); }

  mutable std::recursive_mutex mutex_;
  mutable std::condition_variable_any changed_;
  std::vector<sync_point_event> sync_points_;
  std::vector<told> events_;
  bool started_ = false, finished_ = false;
};

/// A run in this process on `slots` CPU slots.
struct set_up {
  run_options options;
  std::shared_ptr<recorder> seen = std::make_shared<recorder>();

  explicit set_up(core::experiment exp, unsigned slots = 2, std::shared_ptr<mischief> what = nullptr,
                  deciding f = nullptr);
  std::unique_ptr<run_session> start();
  run_summary run() { return start()->wait(); }
};

/// A folder that is removed with everything in it.
class temporary_folder {
public:
  temporary_folder();
  ~temporary_folder();
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

private:
  std::filesystem::path folder_;
};

std::map<std::string, std::uint64_t> hashes(const run_summary& x);
const trainer_summary& find(const run_summary& x, const std::string& name);

/// The answer, which must be good.
template <class T>
T good(std::future<core::result<T>> x) {
  auto answer = x.get();
  if (!answer)
    FAIL(answer.error().text);
  return std::move(*answer);
}

/// One asks again until it is so; each answer is waited for.
inline void wait_for_status(const run_control& c, const std::function<bool(const run_status&)>& until) {
  const auto enough = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!until(good(c.status())))
    if (std::chrono::steady_clock::now() > enough)
      FAIL("a state never came");
}

} // namespace troupe::test
