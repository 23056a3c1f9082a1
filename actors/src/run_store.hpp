#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "job_thread.hpp"
#include "troupe/actors/run.hpp"
#include "troupe/core/checkpoint.hpp"
#include "troupe/core/checkpoint_set.hpp"
#include "troupe/core/experiment.hpp"
#include "troupe/core/run_writer.hpp"

namespace troupe::actors::internal {

/// A run's record and checkpoint files, behind one thread of its own: no actor ever waits for a disk. Calls
/// are thread-safe and return at once; answers come on the store's thread, in the order of the calls, and
/// must only post.
class run_store {
public:
  using done = std::function<void(core::result<void>)>;

  /// `directory` empty: nothing is kept and every call succeeds.
  static core::result<std::unique_ptr<run_store>> open(const std::string& directory,
                                                       const core::experiment& exp, bool append);
  /// Finishes what was asked for.
  ~run_store();

  bool keeps_files() const noexcept { return writer_ != nullptr; }

  /// `tell` is called once, on the store's thread, with the first error that no call's `done` hears of. Call before anything else.
  void on_failure(std::function<void(core::error)> tell);

  /// Written when `then` is called with success: it outlives this process. On disk (fsync) with the next set, or `flush`.
  void sync_point(std::shared_ptr<const sync_point_event> x, done then);
  /// An error is told to `on_failure`, and given to the next call that has a `done`.
  void event(std::string kind, nlohmann::json details);
  void flush(done then);
  /// What slots do now, for those who look at the run when it is over. That it cannot be written is an event; that the run's directory
  /// is gone is an error.
  void slots(nlohmann::json list, bool at_end);

  /// One trainer's part of a set. Without a state it is in a file of an earlier set already (`who.file` names
  /// it).
  struct part {
    core::saved_trainer who;
    core::checkpoint_ptr state;
  };
  /// Asks for the room, writes the files, then the record of the set, then removes the files that neither the newest `keep` sets
  /// nor `pinned` use. Of a set that fails nothing stays.
  void save_set(std::optional<core::sync_index> k, std::vector<part> parts, std::uint32_t keep,
                std::vector<core::checkpoint_set> pinned,
                std::function<void(core::result<core::checkpoint_set>)> then);
  /// Writes `state` to a file of its own, relative to the run directory. Files that are asked for while the disk is busy wait for
  /// it together.
  void save_file(std::string file, core::checkpoint_ptr state, done then);
  void read_state(std::string file, std::function<void(core::result<core::checkpoint_ptr>)> then);
  /// The sets that were there when the run was opened again: they count for `keep`. New ones have numbers from `next_set` on. Call
  /// before the first save_set.
  void known_sets(std::vector<core::checkpoint_set> sets, std::uint32_t next_set);

  /// Anything that takes long and belongs to no actor.
  void post(std::function<void()> job) { thread_.post(std::move(job)); }
  /// Forgets what waits, as a crash would.
  void abandon() { thread_.clear(); }

private:
  run_store(std::string directory, std::unique_ptr<core::run_writer> writer);
  core::result<core::checkpoint_set> write_set(std::optional<core::sync_index> k,
                                               const std::vector<part>& parts, std::uint32_t keep,
                                               const std::vector<core::checkpoint_set>& pinned);
  const core::saved_trainer* newest_of(core::trainer_id t) const; ///< in the complete sets
  void failed(const core::error& why);
  core::error cause_of(const core::error& why) const; ///< that the directory is gone, if it is
  core::result<void> healthy(core::result<void> ok) const; ///< `ok`, or the first error that was nobody's

  std::string directory_;
  std::unique_ptr<core::run_writer> writer_; // used on the thread only, as is what follows
  std::vector<core::checkpoint_set> sets_;   // complete, oldest first
  std::set<std::string, std::less<>> names_; // of trainers whose states may be in the folders of sets
  std::uint32_t next_set_ = 0;
  std::function<void(core::error)> on_failure_;
  core::error event_failure_;
  bool slots_failed_ = false;

  struct waiting_file {
    std::string path;
    core::checkpoint_ptr state;
    done then;
  };
  void write_files();
  std::mutex files_mutex_;
  std::vector<waiting_file> files_; // of save_file, not written yet
  job_thread thread_; // last: its jobs use the others
};

} // namespace troupe::actors::internal
