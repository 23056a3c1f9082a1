#include "shared_library.hpp"

#include <dlfcn.h>

namespace troupe::gpu::internal {

std::optional<shared_library> shared_library::open(const std::vector<std::string>& names,
                                                   const std::vector<std::string>& folders,
                                                   std::string& why) {
  std::string tried;
  const auto attempt = [&tried](const std::string& path) {
    void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == nullptr)
      tried += (tried.empty() ? "" : "; ") + std::string(::dlerror());
    return handle;
  };
  for (const auto& name : names)
    if (void* handle = attempt(name))
      return shared_library(handle, name);
  for (const auto& folder : folders)
    for (const auto& name : names)
      if (void* handle = attempt(folder + "/" + name))
        return shared_library(handle, folder + "/" + name);
  why = tried;
  return std::nullopt;
}

void* shared_library::find(const char* name, std::string& why) const {
  void* f = ::dlsym(handle_, name);
  if (f == nullptr)
    why = path_ + " has no " + name;
  return f;
}

} // namespace troupe::gpu::internal
