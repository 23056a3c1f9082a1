#pragma once

#include <string>
#include <vector>

namespace troupe::gpu {

/// A library that computing rests on.
struct library_version {
  std::string name;    ///< "oneDNN", "OpenBLAS", "CUDA runtime", "CUDA driver"
  std::string version; ///< empty: it is not there
  std::string note;    ///< why not, or what it is used for
};

/// What is built in or found now. Loads OpenBLAS to ask it; creates no CUDA context.
std::vector<library_version> library_versions();

} // namespace troupe::gpu
