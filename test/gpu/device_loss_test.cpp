/// How it is told that a GPU is lost, and on which one calls are made.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "device_errors.hpp"
#include "gpu/model_support.hpp"
#include "gpu/variable.hpp"
#include "primary_scope.hpp"
#if defined(TROUPE_WITH_CUDA)
#include "cuda_blas.hpp"
#endif

using namespace troupe::gpu;
using namespace troupe::gpu::internal;

TEST_CASE("an error after which no call succeeds is sticky without a question") {
  for (const int rc : {214, 220, 700, 709, 715, 719, 810}) {
    CAPTURE(rc);
    CHECK(is_sticky(rc));
    CHECK_FALSE(asks_again(rc));
    CHECK(is_lost(rc, 0));
  }
  CHECK_FALSE(asks_again(2)); // no memory
  CHECK_FALSE(is_lost(2, 0));
}

TEST_CASE("after an error that may mean a call or the device the device is lost if it cannot be waited for either") {
  for (const int rc : {999, 46, 101, 802, 1, 9, 400}) {
    CAPTURE(rc);
    CHECK(asks_again(rc));
    CHECK_FALSE(is_lost(rc, 0));
    CHECK(is_lost(rc, 999));
    CHECK(is_lost(rc, 46));
    CHECK(is_lost(rc, 700));
    CHECK_FALSE(is_lost(rc, 901)); // a capture ends without the device
  }
  CHECK(is_lost(0, 700)); // a library failed without saying why
  CHECK_FALSE(is_lost(0, 0));
}

#if defined(TROUPE_WITH_CUDA)
TEST_CASE("after a product that failed the stream tells whether the device is lost") {
  if (!std::filesystem::exists(TROUPE_FAKE_LIBRARIES)) {
    MESSAGE("not tested: this program is not where it was built");
    return;
  }
  const variable fake("TROUPE_CUDA_LIBRARIES", TROUPE_FAKE_LIBRARIES);
  const bool has_gpu = find_devices().cuda_status == "ok"; // without a driver no stream can be waited for
  for (const std::int64_t members : {1, 3}) {
    cuda_blas blas(nullptr, nullptr, 0, math_mode::fp32, "slot 5");
    gemm_call call;
    call.members = members;
    call.m = call.n = call.k = call.lda = call.ldb = call.ldc = 2;
    std::string text;
    bool sticky = false;
    try {
      blas.gemm(call);
    } catch (const device_error& e) {
      text = e.what();
      sticky = e.sticky();
    }
    CHECK(model_test::mentions(text, "slot 5: cublasSgemm"));
    CHECK(model_test::mentions(text, "failed"));
    CHECK(sticky == !has_gpu);
    CHECK(model_test::mentions(text, "the device does not answer") == !has_gpu);
    CHECK(model_test::mentions(text, "restart it") == !has_gpu);
  }
}
#endif

namespace {

/// A thread's contexts, innermost last; what was done is noted.
struct fake_driver {
  mutable std::vector<int> stack;
  mutable std::vector<std::string> calls;
  bool can_enter = true;
  bool current(int ordinal) const noexcept { return !stack.empty() && stack.back() == ordinal; }
  bool enter(int ordinal) const noexcept {
    calls.push_back("enter " + std::to_string(ordinal));
    if (can_enter)
      stack.push_back(ordinal);
    return can_enter;
  }
  void leave(int ordinal) const noexcept {
    calls.push_back("leave " + std::to_string(ordinal));
    stack.pop_back();
  }
};

} // namespace

TEST_CASE("a thread that never chose a GPU has none again after a call for another") {
  const fake_driver d;
  {
    const primary_scope scope(d, 1);
    CHECK(d.current(1));
    const primary_scope within(d, 1); // there already
    CHECK(d.stack.size() == 1);
  }
  CHECK(d.stack.empty());
  CHECK(d.calls == std::vector<std::string>{"enter 1", "leave 1"});
}

TEST_CASE("a thread of one GPU is back on it after a call for another also where that is the first") {
  fake_driver d;
  d.stack = {2};
  {
    const primary_scope scope(d, 0);
    CHECK(d.current(0));
  }
  CHECK(d.current(2));
  d.can_enter = false;
  {
    const primary_scope scope(d, 0);
    CHECK(d.current(2));
  }
  CHECK(d.current(2)); // what was not entered is not left
}
