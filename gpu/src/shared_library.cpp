#include "shared_library.hpp"

#include <dlfcn.h>
#include <link.h>

#include <string_view>

namespace troupe::gpu::internal {

namespace {

/// The file that `handle` came from; as it was asked for where the loader cannot say.
std::string file_of(void* handle, const std::string& asked) {
  const link_map* map = nullptr;
  if (::dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr || map->l_name == nullptr || map->l_name[0] == '\0')
    return asked;
  return map->l_name;
}

} // namespace

std::optional<shared_library> shared_library::open(const std::vector<std::string>& paths, std::string& why) {
  std::string tried;
  for (const auto& path : paths) {
    if (void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE))
      return shared_library(handle, file_of(handle, path));
    tried += (tried.empty() ? "" : "; ") + std::string(::dlerror());
  }
  why = tried;
  return std::nullopt;
}

void* shared_library::find(const char* name, std::string& why) const {
  void* f = ::dlsym(handle_, name);
  if (f == nullptr)
    why = path_ + " has no " + name;
  return f;
}

std::vector<std::string> split_folders(const char* list) {
  std::vector<std::string> out;
  std::string_view rest = list == nullptr ? "" : list;
  while (!rest.empty()) {
    const auto end = rest.find(':');
    if (end != 0)
      out.emplace_back(rest.substr(0, end));
    rest = end == std::string_view::npos ? "" : rest.substr(end + 1);
  }
  return out;
}

} // namespace troupe::gpu::internal
