#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "troupe/core/checkpoint_set.hpp"
#include "troupe/core/metadata.hpp"
#include "troupe/core/result.hpp"

namespace troupe::core {

/// What a run's record says of one trainer.
struct trainer_record {
  enum class status : std::uint8_t { not_started, running, finished, failed };

  trainer_id trainer = 0;
  std::string name;
  status state = status::not_started;
  std::uint32_t incarnation = 0;  ///< the newest
  std::uint64_t step = 0;         ///< the newest on record
  bool stopped = false;           ///< finished before its stop step
  std::string reason;             ///< why it failed or stopped
  std::optional<metadata> last;   ///< its newest report
  std::string added;              ///< the text it was added with while the run was going (see `parse_trainer`); else empty
};

std::string_view to_string(trainer_record::status x) noexcept;

/// A checkpoint set that was completed.
struct recorded_set {
  checkpoint_set set;
  std::uint64_t position = 0; ///< bytes of the record up to and including the set: `read_run` with it gives the state then
  std::string missing;        ///< a file of it that is not there (an old set's are removed in time); empty: all are there
};

/// A run as its directory tells it.
struct run_record {
  std::string experiment_text;
  std::vector<trainer_record> trainers;   ///< by number, without gaps
  std::optional<sync_index> last_sync;    ///< the newest sync point that was decided
  bool experiment_changed = false;        ///< the text is not the one that the run began with
  bool flushed_subnormals = true;         ///< in all sessions that its states come from; versions before 0.2 did not
  std::vector<recorded_set> sets;         ///< in the order in which they were completed
  std::uint32_t next_set = 0;             ///< above the numbers of all sets on record
  std::string outcome;                    ///< of the newest "run_ended": "done", "failed", "interrupted"; empty: it did not end
  std::string outcome_reason;
  bool begun = false;                     ///< the record has its first line, which is on disk before any state is written
  bool torn = false;                      ///< a last line without its end was left out
};

/// Reads a run directory; does not disturb a run that is going on. `up_to`: only so many bytes of the record.
/// Errors: `not_found` (no run there), `io` (a line is damaged; with its number), `refused` (another version's format).
result<run_record> read_run(const std::string& path, std::uint64_t up_to = UINT64_MAX);

/// Calls `visit(kind, line)` for every whole line of the record, in order, one at a time. `line` may be moved from. Returns
/// whether a torn last line was left out.
result<bool> visit_run(const std::string& path, const std::function<void(std::string_view kind, nlohmann::json& line)>& visit);

/// What was told last of a run's slots: an object with `time` (UTC), `at_end` (true: when the run ended) and `slots`.
/// Errors: `not_found` (nothing was told), `io`.
result<nlohmann::json> read_slots(const std::string& path);

/// True if some program has this run directory open for writing.
bool is_run_in_use(const std::string& path);

/// Where a run can be gone on from.
struct resume_point {
  std::optional<std::size_t> set; ///< index into `run_record::sets`; none: there is no set that can be used
  std::vector<error> damage;      ///< why the newer sets cannot be: each with its number and its file
  bool other_format = false;      ///< one of these was written in a format that this version does not read: it must be kept
};

/// True if there are states in the run's folders of checkpoints and last states.
bool holds_states(const std::string& path);

/// Finds the newest set whose files are all intact (each is read whole and its hash verified). Older sets that were removed in time
/// are no damage.
resume_point find_resume_point(const std::string& path, const run_record& run);

} // namespace troupe::core
