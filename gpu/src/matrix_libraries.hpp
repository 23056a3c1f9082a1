#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "backend.hpp"

/// The CPU's matrix libraries, each behind one function, so that their headers stay in one file each.
namespace troupe::gpu::internal {

/// One member's product; the operands' type is `low ? bf16 : float`.
struct product {
  std::int64_t m, n, k;
  bool trans_a, trans_b, low;
  float alpha, beta;
  const void* a;
  const void* b;
  float* c;
  std::int64_t lda, ldb, ldc;
};

/// oneDNN. Not thread-safe: one per slot.
class onednn {
public:
  onednn();
  ~onednn();

  static bool available() noexcept; ///< built in
  static std::string version();
  /// The CPU multiplies bf16 itself, so that `matmul` of bf16 operands pays.
  static bool native_bf16() noexcept;

  void sgemm(const product& p); ///< fp32 only
  /// False if oneDNN has no primitive for it.
  bool matmul(const product& p);

private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

/// OpenBLAS, loaded at run time and never unloaded.
class openblas {
public:
  /// Null if there is none on this machine; `why`, where given, then has the loader's text.
  static std::unique_ptr<openblas> load(std::string* why = nullptr);
  std::string version() const;
  void sgemm(const product& p) const;

private:
  openblas() = default;
  void (*sgemm_)(int order, int ta, int tb, int m, int n, int k, float alpha, const float* a, int lda,
                 const float* b, int ldb, float beta, float* c, int ldc) = nullptr;
  char* (*config_)() = nullptr;
};

} // namespace troupe::gpu::internal
