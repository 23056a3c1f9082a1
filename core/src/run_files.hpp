#pragma once

#include <array>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include "fnv1a.hpp"

/// Names within a run directory.
namespace troupe::core::internal {

inline constexpr const char* experiment_file = "experiment.json";
inline constexpr const char* log_file = "run.jsonl";
inline constexpr const char* table_file = "metadata.csv";
inline constexpr const char* slots_file = "slots.json";
inline constexpr const char* lock_file = "lock";
inline constexpr const char* checkpoints_folder = "checkpoints";
inline constexpr const char* final_folder = "final";
inline constexpr const char* products_file = "products.json"; // of the command
inline constexpr const char* control_file = "control.json";   // of net
inline constexpr std::string_view state_ending = ".safetensors";

/// Of run.jsonl. A record of another format is refused: what it says cannot be known.
inline constexpr std::uint64_t record_format = 1;
inline constexpr std::uint64_t max_experiment_bytes = 256u << 20;

/// 16 hexadecimal digits that tell an edited text from the one that a run began with.
inline std::string text_hash(std::string_view text) {
  std::array<char, 16> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), fnv1a(text), 16).ptr;
  const auto n = static_cast<std::size_t>(end - digits.data());
  return std::string(digits.size() - n, '0').append(digits.data(), n);
}

} // namespace troupe::core::internal
