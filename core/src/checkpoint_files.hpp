#pragma once

#include <filesystem>

/// Whose the names in a run's folder of checkpoints are.
namespace troupe::core::internal {

/// The folder of a set: a number, and no symbolic link.
bool is_set_folder(const std::filesystem::directory_entry& x);

} // namespace troupe::core::internal
