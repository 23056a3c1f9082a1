#include "troupe/gpu/cuda_source.hpp"

#include <cstdlib>
#include <optional>
#include <vector>

#include <doctest/doctest.h>

#include "slots_under_test.hpp"
#include "temporary_folder.hpp"
#if defined(TROUPE_WITH_CUDA)
#include "cuda_libraries.hpp"
#endif

using namespace troupe;
using namespace troupe::gpu;

namespace {

const cuda_source scale{
    "template <class T> __global__ void scale(T* x, T f, int n) {\n"
    "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "  if (i < n) x[i] *= f;\n"
    "}\n"
    "extern \"C\" __global__ void set(int* x, int value) { x[threadIdx.x] = value + OFFSET; }\n",
    {"scale<float>", "set"},
    {"-DOFFSET=2"},
    "scale.cu"};

/// Null, after a message, where NVRTC is absent; a failure where CUDA is required.
std::optional<core::result<cuda_binary>> compile(const cuda_source& s, int major = 9, int minor = 0) {
  auto r = compile_cuda(s, major, minor);
  if (!r && (r.error().text.find("cannot be loaded") != std::string::npos ||
             r.error().text.find("built without CUDA") != std::string::npos)) {
    if (std::getenv("TROUPE_REQUIRE_CUDA") != nullptr)
      FAIL(r.error().text);
    MESSAGE("not tested: " << r.error().text);
    return std::nullopt;
  }
  return r;
}

std::string text_of_failure(auto&& f) {
  try {
    f();
  } catch (const device_error& e) {
    return e.what();
  }
  return {};
}

} // namespace

TEST_CASE("a source compiles without a GPU and its kernels are found by their C++ names") {
  auto r = compile(scale);
  if (!r)
    return;
  REQUIRE(*r);
  CHECK((*r)->image.substr(1, 3) == "ELF");
  REQUIRE((*r)->entry_names.size() == 2);
  CHECK((*r)->entry_names[0].find("scale") != std::string::npos);
  CHECK((*r)->entry_names[1] == "set");
}

TEST_CASE("a source may include CUDA's own headers and the caller's folders come first") {
#if defined(TROUPE_WITH_CUDA)
  if (internal::cuda_include_folders().empty()) {
    MESSAGE("not tested: there are no CUDA headers");
    return;
  }
  cuda_source halves{"#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
                     "extern \"C\" __global__ void f(__half* x, __nv_bfloat16* y) { y[0] = __float2bfloat16(__half2float(x[0])); }\n",
                     {"f"}};
  const auto r = compile(halves);
  if (!r)
    return;
  CHECK_MESSAGE(*r, (*r ? "" : r->error().text));
  temporary_folder own;
  write_whole(own / "cuda_fp16.h", "#error mine\n");
  halves.options = {"-I" + own.path()};
  const auto mine = compile_cuda(halves, 9, 0);
  REQUIRE_FALSE(mine);
  CHECK(mine.error().text.find("mine") != std::string::npos);
#endif
}

TEST_CASE("for a device newer than the compiler the result is PTX") {
  if (auto r = compile(scale, 99, 9)) {
    REQUIRE(*r);
    CHECK((*r)->image.find(".target sm_") != std::string::npos);
  }
}

TEST_CASE("a faulty source gives the compiler's log with file and line") {
  auto bad = scale;
  bad.text += "__global__ void broken() { undeclared = 1; }\n";
  if (auto r = compile(bad)) {
    REQUIRE_FALSE(*r);
    CHECK(r->error().code == core::errc::invalid_argument);
    CHECK(r->error().text.find("scale.cu(6)") != std::string::npos);
    CHECK(r->error().text.find("undeclared") != std::string::npos);
  }
}

TEST_CASE("unknown kernels and options and devices are refused") {
  auto bad = scale;
  bad.kernels.emplace_back("missing");
  if (auto r = compile(bad)) {
    REQUIRE_FALSE(*r);
    CHECK(r->error().text.find("missing") != std::string::npos);
  }
  bad = scale;
  bad.options.emplace_back("--no-such-option");
  if (auto r = compile(bad))
    CHECK(r->error().text.find("no-such-option") != std::string::npos);
  if (auto r = compile(scale, 1, 0))
    CHECK(r->error().text.find("compute capability 1.0") != std::string::npos);
}

TEST_CASE("CUDA source is refused on a CPU slot with the slot and the file named") {
  slot_options o;
  o.device = find_devices().devices.front();
  o.index = 3;
  context ctx(o);
  const auto text = text_of_failure([&] { cuda_module m(ctx, scale); });
  CHECK(text.find("slot 3 (cpu)") != std::string::npos);
  CHECK(text.find("scale.cu") != std::string::npos);
}

TEST_CASE("an extent covers all elements") {
  CHECK(cuda_extent::cover(0).grid[0] == 1);
  CHECK(cuda_extent::cover(256).grid[0] == 1);
  CHECK(cuda_extent::cover(257).grid[0] == 2);
  CHECK(cuda_extent::cover(10, 4).grid[0] == 3);
}

TEST_CASE("compiled kernels run on the GPU and a wrong launch is an error that is not sticky") {
  for (const auto& o : slots_under_test()) {
    if (o.device.kind != device_kind::cuda)
      continue;
    context ctx(o);
    cuda_module m(ctx, scale);
    std::vector<float> x(1000, 3.f);
    auto d = ctx.allocate_of<float>(x.size());
    ctx.upload(d.data(), std::span<const float>(x));
    m.launch("scale<float>", cuda_extent::cover(x.size()), d.as<float>(), 2.f, static_cast<int>(x.size()));
    ctx.download(x.data(), d.data(), d.size());
    CHECK(x == std::vector<float>(1000, 6.f));
    CHECK(text_of_failure([&] { m.launch("unknown", {}); }).find("scale<float>, set") != std::string::npos);
    cuda_extent wrong;
    wrong.block[0] = 1 << 20;
    CHECK(text_of_failure([&] { m.launch("set", wrong, d.as<int>(), 1); }).find("launching set failed") !=
          std::string::npos);
    ctx.synchronize();
  }
}
