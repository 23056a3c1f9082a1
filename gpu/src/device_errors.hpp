#pragma once

namespace troupe::gpu::internal {

/// CUDA's errors by number (runtime and driver have the same), so that tests need no CUDA; the newest names are not in every toolkit.
/// After one of these every further call of the process fails.
constexpr bool is_sticky(int rc) noexcept {
  switch (rc) {
  case 214: // uncorrectable ECC error
  case 220: // uncorrectable NVLink error
  case 226: // contained error
  case 700: // illegal address
  case 702: // launch timeout
  case 709: // context is destroyed
  case 710: // assert
  case 714: // hardware stack error
  case 715: // illegal instruction
  case 716: // misaligned address
  case 717: // invalid address space
  case 718: // invalid program counter
  case 719: // launch failure
  case 721: // tensor memory leak
  case 810: // MPS client terminated
  case 911: // external device
    return true;
  default:
    return false;
  }
}

/// Whether it is worth asking what became of the device after an error: not where that is known, nor where memory ran out.
constexpr bool asks_again(int rc) noexcept { return rc != 0 && rc != 2 && !is_sticky(rc); }

/// Whether a device is lost, after an error and what waiting for its stream said then (0: good). What a GPU that fell off the bus, is
/// taken by another process or was never ready answers (999, 46, 101, 802) may also mean a single call; so does cuBLAS's "execution
/// failed", which hides the cause. A device that can still be waited for goes on.
constexpr bool is_lost(int rc, int waited) noexcept {
  const bool during_capture = waited >= 900 && waited <= 908; // a capture that failed, which ends without the device
  return is_sticky(rc) || (waited != 0 && waited != 2 && !during_capture);
}

} // namespace troupe::gpu::internal
