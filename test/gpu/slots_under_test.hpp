#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "troupe/gpu/context.hpp"

namespace troupe::gpu {

/// A slot on the CPU.
inline slot_options cpu_slot(std::uint64_t budget = 0) {
  slot_options o;
  o.device = find_devices().devices.front();
  o.memory_budget = budget;
  return o;
}

/// The CPU and the first GPU. Says so where there is no GPU, and fails where TROUPE_REQUIRE_CUDA=1 asks for
/// one.
inline std::vector<slot_options> slots_under_test(std::uint64_t budget = 0) {
  std::vector<slot_options> out{cpu_slot(budget)};
  const auto report = find_devices();
  if (auto gpu = find_device(report, "cuda")) {
    out.push_back(out.front());
    out.back().device = *gpu;
  } else if (const char* required = std::getenv("TROUPE_REQUIRE_CUDA");
             required != nullptr && std::string(required) == "1") {
    FAIL("TROUPE_REQUIRE_CUDA=1, but no GPU can be used: " << report.cuda_status);
  } else {
    MESSAGE("not run on a GPU: " << report.cuda_status);
  }
  return out;
}

} // namespace troupe::gpu
