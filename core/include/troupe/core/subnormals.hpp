#pragma once

#include <cstdint>

namespace troupe::core {

/// Whether processors of this kind can flush subnormal numbers (below 1.2e-38 as a float, 2.2e-308 as a double): x86-64 and aarch64.
/// They do so at no cost, while some take many times as long to compute with one. A momentum whose gradient has become
/// 0 ends as one and stays so, since 0.9 times the fourth smallest rounds to itself.
#if defined(__x86_64__) || defined(__aarch64__)
inline constexpr bool can_flush_subnormals = true;
#else
inline constexpr bool can_flush_subnormals = false;
#endif

/// From now on, arithmetic of the calling thread takes subnormal numbers for zeros and gives zeros instead of them, as
/// FTZ and DAZ (x86-64) or FZ (aarch64) say; so do threads that it starts. Copies and comparisons of bits are not arithmetic. Nothing
/// where processors cannot.
void flush_subnormals() noexcept;
/// Whether the calling thread does.
bool flushes_subnormals() noexcept;

/// For its life, the calling thread flushes, or where `on` is false does not.
class subnormals_scope {
public:
  explicit subnormals_scope(bool on = true) noexcept;
  ~subnormals_scope();
  subnormals_scope(const subnormals_scope&) = delete;
  subnormals_scope& operator=(const subnormals_scope&) = delete;

private:
  std::uint64_t before_;
};

} // namespace troupe::core
