#include "troupe/gpu/versions.hpp"

#include <string>

#include <doctest/doctest.h>

using namespace troupe::gpu;

#if defined(TROUPE_WITH_CUDA)
TEST_CASE("a build with CUDA says for which GPUs its kernels are") {
  std::string kernels;
  for (const auto& x : library_versions())
    if (x.name == "CUDA kernels")
      kernels = x.version;
  CHECK(kernels.find_first_of("0123456789") != std::string::npos);
  CHECK(kernels.find(';') == std::string::npos);
}
#endif

TEST_CASE("every library has a version or a reason why it has none") {
  auto libraries = library_versions();
  CHECK(libraries.size() >= 3);
  for (auto& x : libraries) {
    CHECK_FALSE(x.name.empty());
    CHECK_FALSE((x.version.empty() && x.note.empty()));
  }
}
