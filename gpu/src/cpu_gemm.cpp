#include "cpu_gemm.hpp"

#include <bit>
#include <chrono>
#include <limits>

namespace troupe::gpu::internal {

namespace {

/// A matrix of rows x cols bf16 with leading dimension ld, as dense fp32.
void widen(const void* from, std::int64_t rows, std::int64_t cols, std::int64_t ld, std::vector<float>& out) {
  const auto* x = static_cast<const std::uint16_t*>(from);
  out.resize(static_cast<std::size_t>(rows * cols));
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j)
      out[static_cast<std::size_t>(i * cols + j)] = std::bit_cast<float>(std::uint32_t(x[i * ld + j]) << 16);
}

void scale(const product& p) {
  for (std::int64_t i = 0; i < p.m; ++i)
    for (std::int64_t j = 0; j < p.n; ++j)
      p.c[i * p.ldc + j] = p.beta == 0 ? 0.f : p.beta * p.c[i * p.ldc + j];
}

constexpr gemm_library standard() {
#ifdef TROUPE_WITH_ONEDNN
  return gemm_library::onednn;
#else
  return gemm_library::openblas;
#endif
}

} // namespace

cpu_gemm::cpu_gemm(const slot_options& options, bool native_bf16)
    : plan_(options.plan), native_bf16_(native_bf16) {
  if (standard() == gemm_library::openblas)
    (void)blas(); // better now than in the middle of a run
}

void cpu_gemm::operator()(const gemm_call& call) {
  const auto element = call.low ? sizeof(std::uint16_t) : sizeof(float);
  product p{call.m,    call.n, call.k, call.trans_a, call.trans_b, call.low, call.alpha,
            call.beta, call.a, call.b, call.c,       call.lda,     call.ldb, call.ldc};
  const bool trivial = call.k == 0 || call.alpha == 0;
  const auto library = trivial || call.low ? standard() : choose(p);
  for (std::int64_t i = 0; i < call.members; ++i) {
    p.a = static_cast<const char*>(call.a) + static_cast<std::size_t>(i * call.stride_a) * element;
    p.b = static_cast<const char*>(call.b) + static_cast<std::size_t>(i * call.stride_b) * element;
    p.c = call.c + i * call.stride_c;
    if (trivial)
      scale(p);
    else if (call.low)
      compute_low(p);
    else if (!compute(library, p))
      compute(standard(), p);
  }
}

bool cpu_gemm::compute(gemm_library library, const product& p) {
  switch (library) {
  case gemm_library::onednn:
    onednn_.sgemm(p);
    return true;
  case gemm_library::onednn_matmul:
    return onednn_.matmul(p);
  case gemm_library::openblas:
    blas().sgemm(p);
    return true;
  }
  return false;
}

void cpu_gemm::compute_low(const product& p) {
  if (native_bf16_ && onednn_.matmul(p))
    return;
  auto wide = p;
  wide.low = false;
  wide.lda = p.trans_a ? p.m : p.k;
  wide.ldb = p.trans_b ? p.k : p.n;
  widen(p.a, p.trans_a ? p.k : p.m, wide.lda, p.lda, a_);
  widen(p.b, p.trans_b ? p.n : p.k, wide.ldb, p.ldb, b_);
  wide.a = a_.data();
  wide.b = b_.data();
  compute(standard(), wide);
}

gemm_library cpu_gemm::choose(const product& p) {
  if (plan_ == nullptr)
    return standard();
  const gemm_shape shape{p.m, p.n, p.k, p.trans_a, p.trans_b, p.beta != 0};
  if (const auto at = choices_.find(shape); at != choices_.end())
    return at->second;
  auto choice = plan_->find(shape);
  if (!choice)
    choice = plan_->probing() ? probe(shape, p) : standard();
  if ((*choice == gemm_library::onednn || *choice == gemm_library::onednn_matmul) && !onednn::available())
    throw device_error(
        "the gemm plan asks for oneDNN, but this Troupe was built without it; install libdnnl-dev and build "
        "again, or use a plan that was measured on this machine",
        false);
  choices_.emplace(shape, *choice);
  return *choice;
}

gemm_library cpu_gemm::probe(const gemm_shape& shape, const product& p) {
  using clock = std::chrono::steady_clock;
  std::vector<std::pair<gemm_library, double>> seconds; // the standard first
  constexpr double never = std::numeric_limits<double>::infinity();
  if (onednn::available())
    seconds = {{gemm_library::onednn, never}, {gemm_library::onednn_matmul, never}};
  if (blas_ == nullptr)
    blas_ = openblas::load(); // none: one candidate less
  if (blas_ != nullptr)
    seconds.emplace_back(gemm_library::openblas, never);
  if (seconds.size() > 1) {
    // On copies: C must not be touched, and the operands' values do not matter.
    const auto ra = p.trans_a ? p.k : p.m, rb = p.trans_b ? p.n : p.k;
    std::vector<float> a(static_cast<std::size_t>(ra * p.lda), 0.5f),
        b(static_cast<std::size_t>(rb * p.ldb), 0.25f), c(static_cast<std::size_t>(p.m * p.ldc), 1.f);
    auto copy = p;
    copy.a = a.data();
    copy.b = b.data();
    copy.c = c.data();
    // Round by round, so that a disturbance hits all; the least time of each counts.
    const auto end = clock::now() + std::chrono::milliseconds(5);
    for (int round = 0; round < 4 || clock::now() < end; ++round)
      for (auto& [library, best] : seconds) {
        const auto began = clock::now();
        const bool done = compute(library, copy);
        const double took = std::chrono::duration<double>(clock::now() - began).count();
        if (done && round > 0) // the first makes code and touches memory
          best = std::min(best, took);
      }
  }
  return plan_->decide(shape, seconds);
}

openblas& cpu_gemm::blas() {
  if (blas_ == nullptr) {
    std::string why;
    blas_ = openblas::load(&why);
    if (blas_ == nullptr)
      throw device_error(
          "matrix products need OpenBLAS here, but it cannot be loaded: " + why +
              "; install libopenblas0 (Debian), or build Troupe with oneDNN and use a plan without OpenBLAS",
          false);
  }
  return *blas_;
}

} // namespace troupe::gpu::internal
