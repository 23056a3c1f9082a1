#include "checks.hpp"

#include <stdexcept>

namespace troupe::gpu::internal {

namespace {

std::string text_of(const shape& s) {
  return std::to_string(s.rows) + " x " + std::to_string(s.cols) + " (row distance " + std::to_string(s.ld) +
         ", member distance " + std::to_string(s.stride) + ")";
}

} // namespace

checker::checker(context& ctx, std::string_view op, std::int64_t members) : op_(op), members_(members) {
  ctx.check_thread();
  if (members < 0)
    fail("the number of members is " + std::to_string(members));
}

void checker::fail(const std::string& text) const { throw std::invalid_argument(std::string(op_) + ": " + text); }

checker& checker::usable(const char* name, const shape& s, bool written) {
  if (s.rows < 0 || s.cols < 0 || s.ld < s.cols)
    fail(std::string(name) + " is " + text_of(s) + "; sizes may not be negative, and rows may not overlap");
  if (members_ == 0 || s.rows == 0 || s.cols == 0)
    return *this;
  if (s.data == nullptr)
    fail(std::string(name) + " is null, but should hold " + text_of(s));
  if (written && members_ > 1 && s.stride < (s.rows - 1) * s.ld + s.cols)
    fail(std::string(name) + " is " + text_of(s) + ", so its " + std::to_string(members_) + " members overlap");
  return *this;
}

checker& checker::expect(const char* name, const shape& s, std::int64_t rows, std::int64_t cols) {
  if (s.rows != rows || s.cols != cols)
    fail(std::string(name) + " is " + text_of(s) + ", expected " + std::to_string(rows) + " x " +
         std::to_string(cols));
  return *this;
}

checker& checker::there(const char* name, const void* p) {
  if (p == nullptr && members_ > 0)
    fail(std::string(name) + " is null");
  return *this;
}

} // namespace troupe::gpu::internal
