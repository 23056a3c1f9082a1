#pragma once

#include <string>

#include "troupe/core/result.hpp"

namespace troupe::cli {

/// A text file, or standard input for "-"; at most 256 MiB.
core::result<std::string> read_text(const std::string& path);

/// runs/NAME-1, or with the first number that is free.
std::string free_run_directory(const std::string& name);

} // namespace troupe::cli
