#pragma once

#include <string>

#include "commands.hpp"

namespace troupe::cli {

/// Where a session begins.
enum class session_start {
  fresh,     ///< a new run
  saved,     ///< the run that is there, from its newest set of checkpoints
  step_zero  ///< the run that is there, of whose sets none can be used
};

/// Runs an experiment in `directory` to its end (or goes on with the run that is there), with signals, control from other
/// commands and output as `a` says. Returns the exit status.
int run_session(core::experiment exp, const std::string& directory, session_start from, const session_arguments& a,
                const registries& with, output to);

/// Prints what kept a run from starting, as text or as JSON's last line; returns `status`.
int cannot_start(const session_arguments& a, output to, const std::string& text, int status,
                 const std::vector<core::error>& faults = {});

} // namespace troupe::cli
