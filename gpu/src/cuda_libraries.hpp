#pragma once

#include <string>
#include <vector>

namespace troupe::gpu::internal {

/// Where CUDA's libraries may lie, besides where the loader looks: the folders of TROUPE_CUDA_LIBRARIES, or without it those of a
/// toolkit.
std::vector<std::string> cuda_library_folders();

/// What to try for a library such as "libcublas", the toolkit's own major version first: with TROUPE_CUDA_LIBRARIES only its
/// folders, else the loader's way and then `cuda_library_folders`.
std::vector<std::string> cuda_library_paths(const std::string& stem);

/// The folders with CUDA's headers (cuda_fp16.h and others) beside those libraries, or of the toolkit that Troupe was built with.
std::vector<std::string> cuda_include_folders();

/// What to do where a library is not found; for the end of an error.
inline constexpr const char* cuda_library_advice =
  "; install the CUDA toolkit's, or name the folders that have CUDA's libraries in TROUPE_CUDA_LIBRARIES";

} // namespace troupe::gpu::internal
