#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "job_thread.hpp"
#include "run_store.hpp"
#include "troupe/actors/blob_store.hpp"
#include "troupe/actors/messages.hpp"
#include "troupe/actors/run.hpp"
#include "troupe/core/run_reader.hpp"
#include "troupe/core/sync_engine.hpp"

namespace troupe::actors::internal {

/// What is known of a run that is gone on with, as of the set that it goes on from.
struct resumed_run {
  struct past : core::trainer_record {
    std::uint32_t newest_incarnation = 0; ///< of the whole record, not only up to the set
  };
  std::vector<past> trainers;
  std::map<core::trainer_id, core::saved_trainer> saved;
  std::optional<core::sync_index> last_sync;
  /// For those whose state is older than the newest sync point: what was decided for them since.
  std::map<core::trainer_id, std::map<core::sync_index, core::decision>> replay;
  std::map<core::trainer_id, core::sync_engine::past> standing; ///< as far as anything was decided
  std::vector<core::metadata> history;                          ///< every report that was decided about
  std::vector<core::checkpoint_set> sets; ///< up to the one that it goes on from
  std::optional<std::uint32_t> set;       ///< its number; none: from the beginning
  std::uint32_t next_set = 0;             ///< the number of the next one, above all on record
  bool kept_subnormals = false;           ///< what was computed up to there did not flush them
};

/// What lives beside a run's actors and outlives them: its options, record, states and listener.
struct run_host {
  run_options options;
  std::uint64_t experiment_id = 0; ///< in every message, so that a message of another run is told apart
  std::unique_ptr<core::policy> policy;
  std::unique_ptr<run_store> store;
  std::shared_ptr<blob_store> blobs;
  std::optional<resumed_run> resumed;

  // -- the listener, on its thread
  // ----------------------------------------------------------------------------------
  // tell… may be called from any thread.
  /// Never left out.
  void tell(std::function<void(run_listener&)> what);
  /// Left out and counted while too much waits; the count is told before the next.
  void tell_sync_point(std::shared_ptr<const sync_point_event> x);
  void tell_event(const std::string& kind, const nlohmann::json& details);
  void tell_finished(const run_summary& x);
  /// Left out while the listener is behind.
  void tell_progress(run_status x);

  // -- states
  // -------------------------------------------------------------------------------------------------------
  /// Holds `x` in this process's store of states until it is dropped there.
  state_ref put(core::checkpoint_ptr x) const;
  /// The state behind `x`, from this process or another; calls back once, on any thread.
  void fetch(const state_ref& x, std::function<void(core::result<core::checkpoint_ptr>)> then) const;

private:
  void tell_unless_behind(std::uint64_t weight, std::uint64_t& missed, std::function<void(run_listener&)> what);
  void tell_missed(); ///< if anything was; with the lock
  std::mutex listener_mutex_;
  std::uint64_t listener_waits_ = 0; ///< reports and events in its queue
  std::uint64_t missed_sync_points_ = 0, missed_events_ = 0; ///< not told yet

public:
  std::unique_ptr<job_thread> listening; // last: its jobs use the others
};

/// "cuda:1" as a trainer's slot means this machine's: it becomes the device's id.
core::result<void> resolve_pins(std::span<core::trainer_spec> trainers);

} // namespace troupe::actors::internal
