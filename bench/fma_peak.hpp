#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace troupe::bench {

namespace fma_detail {

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

constexpr int chains = 12; // more than latency times width, fewer than there are registers
constexpr std::int64_t rounds = 20000;

#if defined(__x86_64__)

// Vectors of GCC's, so that one source serves both widths; the attribute decides the instructions.
typedef float wide __attribute__((vector_size(64)));
typedef float half __attribute__((vector_size(32)));

template <class V>
[[gnu::always_inline]] inline float spin(float seed) {
  V sums[chains];
  for (int i = 0; i < chains; ++i)
    sums[i] = V{} + (seed + static_cast<float>(i));
  const V factor = V{} + 0.9999F, term = V{} + 1e-3F;
  for (std::int64_t k = 0; k < rounds; ++k) {
#pragma GCC unroll 12
    for (int i = 0; i < chains; ++i)
      sums[i] = sums[i] * factor + term;
  }
  float out = 0;
  for (const auto& s : sums)
    out += s[0];
  return out;
}

[[gnu::target("avx512f"), gnu::noinline]] inline float spin_512(float seed) {
  return spin<wide>(seed);
}
[[gnu::target("avx2,fma"), gnu::noinline]] inline float spin_256(float seed) {
  return spin<half>(seed);
}

inline double rate(float (*f)(float), int lanes, double seconds) {
  volatile float sink = f(1);
  const double start = now();
  std::int64_t calls = 0;
  while (now() - start < seconds) {
    sink = f(static_cast<float>(calls++));
  }
  (void)sink;
  return static_cast<double>(calls * rounds * chains * lanes * 2) / (now() - start) / 1e9;
}

#endif

} // namespace fma_detail

/// The calling core's fp32 multiply-add rate in GFLOP/s (2 per multiply-add), measured for about `seconds` with the widest
/// vectors the processor has; 0 where the processor has no FMA.
inline double measure_fma_peak(double seconds) {
  using namespace fma_detail;
#if defined(__x86_64__)
  double best = 0;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    best = rate(spin_256, 8, seconds / 2);
  if (__builtin_cpu_supports("avx512f"))
    best = std::max(best, rate(spin_512, 16, seconds / 2));
  return best;
#else
  (void)seconds;
  return 0;
#endif
}

} // namespace troupe::bench
