#include "troupe/gpu/versions.hpp"

#include <doctest/doctest.h>

using namespace troupe::gpu;

TEST_CASE("every library has a version or a reason why it has none") {
  auto libraries = library_versions();
  CHECK(libraries.size() >= 3);
  for (auto& x : libraries) {
    CHECK_FALSE(x.name.empty());
    CHECK_FALSE((x.version.empty() && x.note.empty()));
  }
}
