#pragma once

#include "kernels/prelude.hpp"

#if defined(__CUDACC__)
#define R123_CUDA_DEVICE __host__ __device__
#endif
#include <Random123/philox.h>

/// Random numbers as functions of (seed, step, place): no state.
namespace troupe::gpu::internal::TROUPE_KERNELS {

struct words4 {
  u32 w[4];
};

/// Philox4x32-10 (Salmon et al., SC'11), by Random123.
TROUPE_HD words4 philox(u32 c0, u32 c1, u32 c2, u32 c3, u64 seed) {
  const philox4x32_ctr_t counter = {{c0, c1, c2, c3}};
  const philox4x32_key_t key = {{u32(seed), u32(seed >> 32)}};
  const philox4x32_ctr_t r = philox4x32_R(10, counter, key);
  return {{r.v[0], r.v[1], r.v[2], r.v[3]}};
}

/// The 32 random bits of one element of dropout. Elements are taken in groups of 64: 16 lanes of a group draw one block
/// each, and word w of lane l belongs to element 16 w + l, so that both vector units and warps use every word.
TROUPE_HD words4 dropout_block(u64 seed, u64 step, u32 site, u64 group, u32 lane) {
  const u64 block = group * 16 + lane;
  return philox(u32(block), u32(block >> 32), u32(step), site | u32(step >> 32) << 16, seed);
}

TROUPE_HD u32 dropout_bits(u64 seed, u64 step, u32 site, u64 element) {
  return dropout_block(seed, step, site, element / 64, u32(element % 16)).w[element / 16 % 4];
}

/// The last word of the counter tells the uses of a member's seed apart; dropout sites stay below.
constexpr u32 permutation_site = 0xffffffffu;

/// A bijection of [0, n) that is a function of (seed, epoch): a Feistel network of 8 rounds on the smallest power of two
/// that holds n, walked until it comes back below n (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA
/// 2002). The two halves differ by at most one bit, so fewer than 2 walks are expected. The rounds mix with MurmurHash3's
/// finalizer under round keys from Philox.
struct permutation {
  u64 n;
  u32 left_bits, right_bits;
  u32 keys[8];

  TROUPE_HD static permutation make(u64 seed, u64 epoch, u64 n) {
    permutation p;
    p.n = n;
    u32 bits = 2;
    while (bits < 63 && (u64(1) << bits) < n)
      ++bits;
    p.left_bits = bits / 2;
    p.right_bits = bits - p.left_bits;
    const words4 a = philox(u32(epoch), u32(epoch >> 32), 0, permutation_site, seed);
    const words4 b = philox(u32(epoch), u32(epoch >> 32), 1, permutation_site, seed);
    for (int i = 0; i < 4; ++i) {
      p.keys[i] = a.w[i];
      p.keys[4 + i] = b.w[i];
    }
    return p;
  }

  TROUPE_HD static u32 mix(u32 x) {
    x ^= x >> 16;
    x *= 0x85ebca6bu;
    x ^= x >> 13;
    x *= 0xc2b2ae35u;
    return x ^ (x >> 16);
  }

  /// Precondition: i < n.
  TROUPE_HD u64 operator()(u64 i) const {
    const u32 left_mask = u32((u64(1) << left_bits) - 1), right_mask = u32((u64(1) << right_bits) - 1);
    do {
      u32 left = u32(i >> right_bits), right = u32(i) & right_mask;
      for (int round = 0; round < 8; round += 2) {
        left ^= mix(right + keys[round]) & left_mask;
        right ^= mix(left + keys[round + 1]) & right_mask;
      }
      i = (u64(left) << right_bits) | right;
    } while (i >= n);
    return i;
  }
};

} // namespace troupe::gpu::internal::TROUPE_KERNELS
