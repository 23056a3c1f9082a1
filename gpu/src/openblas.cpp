#include <limits>

#include "matrix_libraries.hpp"
#include "shared_library.hpp"

namespace troupe::gpu::internal {

std::unique_ptr<openblas> openblas::load(std::string* why) {
  std::string text;
  const auto lib = shared_library::open({"libopenblas.so.0", "libopenblas.so"}, text);
  std::unique_ptr<openblas> out(new openblas);
  void (*set)(int) = nullptr;
  int (*get)() = nullptr;
  if (!lib || !lib->get(out->sgemm_, "cblas_sgemm", text) ||
      !lib->get(out->config_, "openblas_get_config", text) ||
      !lib->get(set, "openblas_set_num_threads", text) || !lib->get(get, "openblas_get_num_threads", text)) {
    if (why != nullptr)
      *why = text;
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
      throw std::invalid_argument("gemm: OpenBLAS takes sizes below 2^31 only, this one is " +
                                  std::to_string(x));
  constexpr int row_major = 101, no_trans = 111, trans = 112; // cblas.h
  sgemm_(row_major, p.trans_a ? trans : no_trans, p.trans_b ? trans : no_trans, static_cast<int>(p.m),
         static_cast<int>(p.n), static_cast<int>(p.k), p.alpha, static_cast<const float*>(p.a),
         static_cast<int>(p.lda), static_cast<const float*>(p.b), static_cast<int>(p.ldb), p.beta, p.c,
         static_cast<int>(p.ldc));
}

} // namespace troupe::gpu::internal
