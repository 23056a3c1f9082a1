#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "troupe/core/metadata.hpp"
#include "troupe/core/result.hpp"

namespace troupe::core {

class checkpoint;

/// One trainer's part of a checkpoint set.
struct saved_trainer {
  trainer_id trainer = 0;
  std::string name;
  std::uint32_t incarnation = 0;
  std::uint64_t step = 0;
  std::string file;  ///< relative to the run directory

  bool operator==(const saved_trainer&) const = default;
};

/// A point to resume from: the states of all trainers that were live, each in a file of its own. Trainers that had finished
/// or failed by then are not in it; the record up to the set says so.
struct checkpoint_set {
  std::uint32_t number = 0;       ///< 0, 1, 2 … within the run; never used twice, not even for a set that was not completed
  std::optional<sync_index> sync; ///< the sync point after whose decisions it was taken; none: taken in between (Ctrl-C)
  std::vector<saved_trainer> trainers;

  bool operator==(const checkpoint_set&) const = default;
};

nlohmann::json to_json(const checkpoint_set& x);
result<checkpoint_set> checkpoint_set_from_json(const nlohmann::json& j, std::string_view where);

/// Where a set keeps a trainer's state: "checkpoints/12/slow.safetensors". Trainers' names are file names (experiment files
/// allow no others).
std::string checkpoint_file(std::uint32_t set, std::string_view trainer_name);

/// At most so many bytes of disk a checkpoint's file takes.
std::uint64_t checkpoint_room(const checkpoint& x);

/// An error with the numbers if the file system of `folder` has not so many bytes free for us; none if it does not say. `what`: for
/// whom, in the text.
result<void> check_room(const std::string& folder, std::uint64_t bytes, std::string_view what);

/// Makes the folder of the next set of the run directory `run` and returns the set's number: one more than the largest
/// there was, and at least `at_least`.
result<std::uint32_t> begin_checkpoint_set(const std::string& run, std::uint32_t at_least = 0);
/// Removes what there is of a set that could not be completed: the files in its own folder, then that.
void discard_checkpoint_set(const std::string& run, const checkpoint_set& set);

/// Removes states of trainers called `names` that the sets in `used` do not name, but nothing of sets with a number above all of
/// theirs: those are being written. Other files in the sets' folders are not Troupe's and stay. Without any set in `used` nothing is
/// removed.
result<void> prune_checkpoints(const std::string& run, std::span<const checkpoint_set> used,
                               const std::set<std::string, std::less<>>& names);

} // namespace troupe::core
