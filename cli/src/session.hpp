#pragma once

#include <string>

#include "commands.hpp"

namespace troupe::cli {

/// Runs an experiment in `directory` to its end (or goes on with the run that is there), with signals, control from other
/// commands and output as `a` says. Returns the exit status.
int run_session(core::experiment exp, const std::string& directory, bool resume, const session_arguments& a,
                const registries& with, output to);

/// Prints what kept a run from starting, as text or as JSON's last line; returns `status`.
int cannot_start(const session_arguments& a, output to, const std::string& text, int status,
                 const std::vector<core::error>& faults = {});

} // namespace troupe::cli
