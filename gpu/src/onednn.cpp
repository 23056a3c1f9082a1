#include "matrix_libraries.hpp"

#ifdef TROUPE_WITH_ONEDNN
#include <bit>
#include <map>
#include <tuple>
#include <unordered_map>

#include <oneapi/dnnl/dnnl.hpp>
#endif

namespace troupe::gpu::internal {

bool onednn::native_bf16() noexcept {
#if defined(__x86_64__) && defined(__GNUC__)
  return available() && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

#ifdef TROUPE_WITH_ONEDNN

namespace {

[[noreturn]] void fail(const char* what, const product& p, const std::string& why) {
  throw device_error(std::string("oneDNN's ") + what + " of " + std::to_string(p.m) + " x " +
                         std::to_string(p.n) + " x " + std::to_string(p.k) + " failed: " + why,
                     false);
}

/// All that a primitive is made for. alpha and beta by their bits, so that the order is total.
using matmul_key = std::tuple<std::int64_t, std::int64_t, std::int64_t, bool, bool, bool, std::uint32_t,
                              std::uint32_t, std::int64_t, std::int64_t, std::int64_t>;

matmul_key key_of(const product& p) {
  return {p.m,
          p.n,
          p.k,
          p.trans_a,
          p.trans_b,
          p.low,
          std::bit_cast<std::uint32_t>(p.alpha),
          std::bit_cast<std::uint32_t>(p.beta),
          p.lda,
          p.ldb,
          p.ldc};
}

struct prepared {
  dnnl::matmul primitive;
  dnnl::memory a, b, c;
  std::unordered_map<int, dnnl::memory> args;
};

} // namespace

struct onednn::impl {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<matmul_key, std::unique_ptr<prepared>> primitives; // null: oneDNN has none

  std::unique_ptr<prepared> prepare(const product& p) {
    using dnnl::memory;
    const auto type = p.low ? memory::data_type::bf16 : memory::data_type::f32;
    const auto strides = [](bool trans, std::int64_t ld) {
      return trans ? memory::dims{1, ld} : memory::dims{ld, 1};
    };
    const memory::desc a({p.m, p.k}, type, strides(p.trans_a, p.lda));
    const memory::desc b({p.k, p.n}, type, strides(p.trans_b, p.ldb));
    const memory::desc c({p.m, p.n}, memory::data_type::f32, strides(false, p.ldc));
    dnnl::primitive_attr attr;
    if (p.beta != 0) {
      dnnl::post_ops ops;
      ops.append_sum(p.beta);
      attr.set_post_ops(ops);
    }
    try {
#if DNNL_VERSION_MAJOR >= 3
      if (p.alpha != 1)
        return nullptr;
      const dnnl::matmul::primitive_desc desc(engine, a, b, c, attr);
#else
      if (p.alpha != 1)
        attr.set_output_scales(0, {p.alpha});
      const dnnl::matmul::primitive_desc desc(dnnl::matmul::desc(a, b, c), attr, engine);
#endif
      auto out = std::make_unique<prepared>();
      out->primitive = dnnl::matmul(desc);
      out->a = memory(a, engine, nullptr);
      out->b = memory(b, engine, nullptr);
      out->c = memory(c, engine, nullptr);
      out->args = {{DNNL_ARG_SRC, out->a}, {DNNL_ARG_WEIGHTS, out->b}, {DNNL_ARG_DST, out->c}};
      return out;
    } catch (const dnnl::error& e) {
      if (e.status == dnnl_unimplemented)
        return nullptr;
      throw;
    }
  }
};

onednn::onednn() : impl_(std::make_unique<impl>()) {}
onednn::~onednn() = default;

bool onednn::available() noexcept { return true; }

std::string onednn::version() {
  const auto* v = dnnl_version();
  return std::to_string(v->major) + "." + std::to_string(v->minor) + "." + std::to_string(v->patch);
}

void onednn::sgemm(const product& p) {
  const auto status = dnnl_sgemm(p.trans_a ? 'T' : 'N', p.trans_b ? 'T' : 'N', p.m, p.n, p.k, p.alpha,
                                 static_cast<const float*>(p.a), p.lda, static_cast<const float*>(p.b), p.ldb,
                                 p.beta, p.c, p.ldc);
  if (status != dnnl_success)
    fail("sgemm", p, "status " + std::to_string(status));
}

bool onednn::matmul(const product& p) {
  try {
    auto at = impl_->primitives.find(key_of(p));
    if (at == impl_->primitives.end()) {
      if (impl_->primitives.size() >= 512) // a beta that changes often; oneDNN's own cache keeps the code
        impl_->primitives.clear();
      at = impl_->primitives.emplace(key_of(p), impl_->prepare(p)).first;
    }
    auto* const x = at->second.get();
    if (x == nullptr)
      return false;
    x->a.set_data_handle(const_cast<void*>(p.a)); // only read
    x->b.set_data_handle(const_cast<void*>(p.b));
    x->c.set_data_handle(p.c);
    x->primitive.execute(impl_->stream, x->args);
    return true;
  } catch (const dnnl::error& e) {
    fail("matmul", p, e.what());
  }
}

#else

struct onednn::impl {};
onednn::onednn() = default;
onednn::~onednn() = default;
bool onednn::available() noexcept { return false; }
std::string onednn::version() { return "none"; }
void onednn::sgemm(const product&) { throw std::logic_error("this Troupe was built without oneDNN"); }
bool onednn::matmul(const product&) { return false; }

#endif

} // namespace troupe::gpu::internal
