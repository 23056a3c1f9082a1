#include "cuda_libraries.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include <cuda_runtime_api.h>

#include "shared_library.hpp"

namespace troupe::gpu::internal {

namespace {

std::vector<std::string> given_folders() { return split_folders(std::getenv("TROUPE_CUDA_LIBRARIES")); }

} // namespace

std::vector<std::string> cuda_library_folders() {
  auto out = given_folders();
  if (!out.empty())
    return out;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"})
    if (const char* home = std::getenv(name); home != nullptr && home[0] == '/')
      out.push_back(std::string(home) + "/lib64");
  out.emplace_back(TROUPE_CUDA_LIBRARY_DIR);
  out.emplace_back("/usr/local/cuda/lib64");
  return out;
}

std::vector<std::string> cuda_library_paths(const std::string& stem) {
  const std::vector<std::string> names{stem + ".so." + std::to_string(CUDART_VERSION / 1000), stem + ".so"};
  std::vector<std::string> out;
  if (given_folders().empty())
    out = names;
  for (const auto& folder : cuda_library_folders())
    for (const auto& name : names)
      out.push_back(folder + "/" + name);
  return out;
}

std::vector<std::string> cuda_include_folders() {
  std::vector<std::string> out;
  const auto add = [&](const std::string& folder) {
    std::error_code ignored;
    if (std::filesystem::exists(folder + "/cuda_fp16.h", ignored) && std::find(out.begin(), out.end(), folder) == out.end())
      out.push_back(folder);
  };
  for (auto folder : cuda_library_folders()) {
    while (folder.size() > 1 && folder.back() == '/')
      folder.pop_back();
    if (const auto last = folder.rfind('/'); last != std::string::npos)
      add(folder.substr(0, last) + "/include"); // a toolkit's, and those of Python's packages
  }
  add(TROUPE_CUDA_INCLUDE_DIR);
  return out;
}

} // namespace troupe::gpu::internal
