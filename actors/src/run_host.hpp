#pragma once

#include <atomic>
#include <functional>
#include <memory>
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
  void tell(std::function<void(run_listener&)> what);
  /// Left out while the listener is behind.
  void tell_progress(run_status x);

  // -- states
  // -------------------------------------------------------------------------------------------------------
  /// Holds `x` in this process's store of states until it is dropped there.
  state_ref put(core::checkpoint_ptr x) const;
  /// The state behind `x`, from this process or another; calls back once, on any thread.
  void fetch(const state_ref& x, std::function<void(core::result<core::checkpoint_ptr>)> then) const;

  std::unique_ptr<job_thread> listening; // last: its jobs use the others
};

} // namespace troupe::actors::internal
