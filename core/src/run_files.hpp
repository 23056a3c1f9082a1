#pragma once

#include <cstdint>

/// Names within a run directory.
namespace troupe::core::internal {

inline constexpr const char* experiment_file = "experiment.json";
inline constexpr const char* log_file = "run.jsonl";
inline constexpr const char* table_file = "metadata.csv";
inline constexpr const char* slots_file = "slots.json";
inline constexpr const char* lock_file = "lock";
inline constexpr const char* checkpoints_folder = "checkpoints";
inline constexpr std::uint64_t max_experiment_bytes = 256u << 20;

} // namespace troupe::core::internal
