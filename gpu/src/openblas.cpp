#include <limits>

#include <dlfcn.h>

#include "matrix_libraries.hpp"

namespace troupe::gpu::internal {

std::unique_ptr<openblas> openblas::load(std::string* why) {
  void* lib = nullptr;
  for (const char* name : {"libopenblas.so.0", "libopenblas.so"})
    if (lib == nullptr)
      lib = ::dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (lib == nullptr) {
    if (why != nullptr)
      *why = ::dlerror();
    return nullptr;
  }
  std::unique_ptr<openblas> out(new openblas);
  out->sgemm_ = reinterpret_cast<decltype(out->sgemm_)>(::dlsym(lib, "cblas_sgemm"));
  out->config_ = reinterpret_cast<decltype(out->config_)>(::dlsym(lib, "openblas_get_config"));
  auto* const set = reinterpret_cast<void (*)(int)>(::dlsym(lib, "openblas_set_num_threads"));
  auto* const get = reinterpret_cast<int (*)()>(::dlsym(lib, "openblas_get_num_threads"));
  if (out->sgemm_ == nullptr || out->config_ == nullptr || set == nullptr || get == nullptr) {
    if (why != nullptr)
      *why = "the library lacks cblas_sgemm or openblas_set_num_threads";
    return nullptr;
  }
  if (get() != 1) // one for the whole process; parallelism is across trainers
    set(1);
  return out;
}

std::string openblas::version() const {
  const std::string text = config_(); // "OpenBLAS 0.3.21 DYNAMIC_ARCH NO_AFFINITY Cooperlake MAX_THREADS=64"
  const auto at = text.find(' ');
  return at == std::string::npos ? text : text.substr(at + 1, text.find(' ', at + 1) - at - 1);
}

void openblas::sgemm(const product& p) const {
  for (auto x : {p.m, p.n, p.k, p.lda, p.ldb, p.ldc})
    if (x > std::numeric_limits<int>::max())
      throw std::invalid_argument("gemm: OpenBLAS takes sizes below 2^31 only, this one is " + std::to_string(x));
  constexpr int row_major = 101, no_trans = 111, trans = 112; // cblas.h
  sgemm_(row_major, p.trans_a ? trans : no_trans, p.trans_b ? trans : no_trans, static_cast<int>(p.m), static_cast<int>(p.n),
         static_cast<int>(p.k), p.alpha, static_cast<const float*>(p.a), static_cast<int>(p.lda),
         static_cast<const float*>(p.b), static_cast<int>(p.ldb), p.beta, p.c, static_cast<int>(p.ldc));
}

} // namespace troupe::gpu::internal
