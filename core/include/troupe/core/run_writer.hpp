#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/checkpoint_set.hpp"
#include "troupe/core/experiment.hpp"
#include "troupe/core/metadata.hpp"
#include "troupe/core/policy.hpp"

namespace troupe::core {

/// Records a run. One interface, so that files today can be a database tomorrow. Used by one thread.
class run_writer {
public:
  virtual ~run_writer() = default;
  /// A sync point: what was reported and decided. Written when it returns, so that it outlives this process whatever follows:
  /// nobody acts on a decision before. A failure of the machine may lose what came after the newest checkpoint set, which is where
  /// a resumption begins in any case; waiting for the disk at each sync point would cost milliseconds for nothing.
  virtual result<void> sync_point(sync_index k, const std::vector<metadata>& reports,
                                  const std::map<trainer_id, decision>& decisions) = 0;
  /// Something that happened: kind ("trainer_started", "trainer_failed", "trainer_finished", "paused", …) and a JSON object.
  /// docs/file-formats.md lists the kinds and their members. Written at once, as above.
  virtual result<void> event(std::string_view kind, const nlohmann::json& details) = 0;
  /// A complete set of checkpoints, all of whose files are durable: a point to resume from. On disk (fsync) when it returns,
  /// with all lines of the record before it (the table waits for `flush`).
  virtual result<void> checkpoint_set(const core::checkpoint_set& set) = 0;
  /// What the run's slots are and do now, a JSON list, in place of what was told before; `at_end`: the run has ended. For those who
  /// look at a run that is over (`read_slots`); nothing depends on it, and it does not wait for the disk.
  virtual result<void> slots(const nlohmann::json& list, bool at_end) = 0;
  /// An error if the directory was removed, moved or replaced: what is written from then on is lost. The calls above but `event` and
  /// `slots`, and `flush`, look for themselves.
  virtual result<void> check_place() = 0;
  virtual result<void> flush() = 0; ///< brings everything so far to disk (fsync)
};

/// A run directory: experiment.json, run.jsonl (everything, one object a line), metadata.csv (one row a report),
/// slots.json, checkpoints/. Refuses a directory that holds another run, or that another process (or writer) has open; `append` goes on
/// with an existing one, whose experiment must be the same text (a torn last line, left by a crash, is cut off). A directory that has
/// other files under names that a run writes is refused, and so are symbolic links under the names of the record's files. A run that
/// cannot be begun leaves nothing behind.
result<std::unique_ptr<run_writer>> open_run_directory(const std::string& path, const experiment& exp, bool append);

} // namespace troupe::core
