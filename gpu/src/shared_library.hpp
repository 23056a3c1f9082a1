#pragma once

#include <optional>
#include <string>
#include <vector>

namespace troupe::gpu::internal {

/// A library that is loaded when first needed and stays until the process ends (those with threads of their
/// own do not survive being unloaded). A view: copies are cheap.
class shared_library {
public:
  /// The first of `names` that loads, each tried as it is and in `folders`. Else `why` names all that was
  /// tried.
  static std::optional<shared_library> open(const std::vector<std::string>& names,
                                            const std::vector<std::string>& folders, std::string& why);

  /// Sets `f` to the function `name`; false, with `why`, if the library has none.
  template <class F>
  bool get(F*& f, const char* name, std::string& why) const {
    f = reinterpret_cast<F*>(find(name, why));
    return f != nullptr;
  }
  const std::string& path() const noexcept { return path_; }

private:
  shared_library(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}
  void* find(const char* name, std::string& why) const;

  void* handle_;
  std::string path_; // as it was found
};

} // namespace troupe::gpu::internal
