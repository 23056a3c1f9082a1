#pragma once

#include <optional>
#include <string>
#include <vector>

namespace troupe::gpu::internal {

/// A library that is loaded when first needed and stays until the process ends (those with threads of their
/// own do not survive being unloaded). A view: copies are cheap.
class shared_library {
public:
  /// The first of `paths` that loads; a name without a folder is looked for where the loader looks. Else `why` names all that was
  /// tried.
  static std::optional<shared_library> open(const std::vector<std::string>& paths, std::string& why);

  /// Sets `f` to the function `name`; false, with `why`, if the library has none.
  template <class F>
  bool get(F*& f, const char* name, std::string& why) const {
    f = reinterpret_cast<F*>(find(name, why));
    return f != nullptr;
  }
  const std::string& path() const noexcept { return path_; } ///< the file

private:
  shared_library(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}
  void* find(const char* name, std::string& why) const;

  void* handle_;
  std::string path_;
};

/// The folders of a list such as PATH's, without empty ones.
std::vector<std::string> split_folders(const char* list);

} // namespace troupe::gpu::internal
