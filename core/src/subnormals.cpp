#include "troupe/core/subnormals.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace troupe::core {

namespace {

#if defined(__x86_64__)
constexpr std::uint64_t bits = 0x8000 | 0x0040; // MXCSR: flush to zero, denormals are zeros
std::uint64_t control() noexcept { return _mm_getcsr(); }
void set_control(std::uint64_t x) noexcept { _mm_setcsr(static_cast<unsigned>(x)); }
#elif defined(__aarch64__)
constexpr std::uint64_t bits = 1u << 24; // FPCR.FZ
std::uint64_t control() noexcept {
  std::uint64_t x;
  asm volatile("mrs %0, fpcr" : "=r"(x));
  return x;
}
void set_control(std::uint64_t x) noexcept { asm volatile("msr fpcr, %0" : : "r"(x)); }
#else
constexpr std::uint64_t bits = 0;
std::uint64_t control() noexcept { return 0; }
void set_control(std::uint64_t) noexcept {}
#endif

} // namespace

void flush_subnormals() noexcept { set_control(control() | bits); }

bool flushes_subnormals() noexcept { return bits != 0 && (control() & bits) == bits; }

subnormals_scope::subnormals_scope(bool on) noexcept : before_(control() & bits) {
  set_control(on ? control() | bits : control() & ~bits);
}

subnormals_scope::~subnormals_scope() { set_control((control() & ~bits) | before_); }

} // namespace troupe::core
