#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "run_host.hpp"

namespace troupe::actors::internal {

/// Reads what a run left in `directory` and finds the newest checkpoint set all of whose files are whole;
/// `damage` gets what was found broken on the way. Trainers that were added to the run while it went on are
/// appended to `exp`. Refused if the experiment's text was changed, if a set has another version's format, and if sets were written but
/// none can be used, unless the run may begin anew (`from_start`, which is refused where there is no need for it).
core::result<resumed_run> read_resumed(const std::string& directory, core::experiment& exp,
                                       const core::experiment_checkers& checkers,
                                       bool from_start, std::vector<core::error>& damage);

/// Every report at sync points up to that set, oldest first.
core::result<std::vector<core::metadata>> read_history(const std::string& directory, std::optional<std::uint32_t> set);

} // namespace troupe::actors::internal
