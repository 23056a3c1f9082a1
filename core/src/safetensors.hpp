#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/checkpoint.hpp"

namespace troupe::core::internal {

inline constexpr std::string_view metadata_key = "__metadata__";
/// Texts that the file has and the checkpoint has not: they guard the rest.
inline constexpr std::string_view hash_key = "troupe.hash";
inline constexpr std::string_view format_key = "troupe.format";
inline constexpr std::uint64_t max_header_bytes = 100'000'000; ///< as in the reference implementation
inline constexpr std::size_t max_dimensions = 64;

/// Bytes of a tensor of this type and shape; nullopt for a negative extent, too many of them, or a product beyond 63 bits.
std::optional<std::uint64_t> tensor_bytes(dtype type, std::span<const std::int64_t> shape) noexcept;

/// A file's header, checked: tensors in the order of their data, which they cover without gap or overlap.
struct safetensors_header {
  struct entry {
    std::string name;
    dtype type = dtype::f32;
    std::vector<std::int64_t> shape;
    std::uint64_t begin = 0, end = 0; ///< within the data
  };
  std::vector<entry> entries;
  std::map<std::string, std::string, std::less<>> texts;
};

/// `json`: the header's text; `data_bytes`: how many bytes follow it.
result<safetensors_header> parse_safetensors_header(std::string_view json, std::uint64_t data_bytes);

/// Length, header and padding: everything before the data.
std::string safetensors_prefix(const checkpoint& x);

} // namespace troupe::core::internal
