#pragma once

#include <string>
#include <vector>

#include "run_host.hpp"

namespace troupe::actors::internal {

/// Reads what a run left in `directory` and finds the newest checkpoint set all of whose files are whole;
/// `damage` gets what was found broken on the way. Trainers that were added to the run while it went on are
/// appended to `exp`.
core::result<resumed_run> read_resumed(const std::string& directory, core::experiment& exp,
                                       const core::experiment_checkers& checkers,
                                       std::vector<core::error>& damage);

} // namespace troupe::actors::internal
