#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "troupe/gpu/context.hpp"
#include "troupe/gpu/ops.hpp"

/// Shape checks of ops.hpp. Each names the operation, the argument, what it is and what it should be; nothing is
/// formatted unless a check fails.
namespace troupe::gpu::internal {

struct shape {
  const void* data;
  std::int64_t rows, cols, ld, stride;
};

template <class T>
shape shape_of(const mat<T>& m) {
  return {m.data, m.rows, m.cols, m.ld, m.stride};
}
template <class T>
shape shape_of(const vec<T>& v) {
  return {v.data, 1, v.size, v.size, v.stride};
}

/// Checks the arguments of one call, in order.
class checker {
public:
  checker(context& ctx, std::string_view op, std::int64_t members);

  /// A readable matrix or vector. A stride of 0 shares it among all members.
  template <class X>
  checker& in(const char* name, const X& x) {
    return usable(name, shape_of(x), false);
  }
  /// A written one: members may not overlap.
  template <class X>
  checker& out(const char* name, const X& x) {
    return usable(name, shape_of(x), true);
  }
  template <class X>
  checker& sized(const char* name, const X& x, std::int64_t rows, std::int64_t cols) {
    return expect(name, shape_of(x), rows, cols);
  }
  /// Per-member structs and the like.
  checker& there(const char* name, const void* p);
  /// `otherwise()` gives the text of the fault.
  template <class F>
  checker& hold(bool condition, const F& otherwise) {
    if (!condition)
      fail(otherwise());
    return *this;
  }

private:
  checker& usable(const char* name, const shape& s, bool written);
  checker& expect(const char* name, const shape& s, std::int64_t rows, std::int64_t cols);
  [[noreturn]] void fail(const std::string& text) const;

  std::string_view op_;
  std::int64_t members_;
};

} // namespace troupe::gpu::internal
