#include "troupe/gpu/cuda_source.hpp"

#include <algorithm>
#include <map>

#include <nvrtc.h>

#include "backend.hpp"
#include "cuda_driver.hpp"
#include "cuda_libraries.hpp"
#include "cuda_support.hpp"
#include "shared_library.hpp"

namespace troupe::gpu {

namespace {

/// NVRTC's functions.
struct nvrtc {
  decltype(&nvrtcCreateProgram) create = nullptr;
  decltype(&nvrtcDestroyProgram) destroy = nullptr;
  decltype(&nvrtcAddNameExpression) add_name = nullptr;
  decltype(&nvrtcGetLoweredName) lowered_name = nullptr;
  decltype(&nvrtcCompileProgram) compile = nullptr;
  decltype(&nvrtcGetProgramLogSize) log_size = nullptr;
  decltype(&nvrtcGetProgramLog) log = nullptr;
  decltype(&nvrtcGetPTXSize) ptx_size = nullptr;
  decltype(&nvrtcGetPTX) ptx = nullptr;
  decltype(&nvrtcGetCUBINSize) cubin_size = nullptr;
  decltype(&nvrtcGetCUBIN) cubin = nullptr;
  decltype(&nvrtcGetNumSupportedArchs) arch_count = nullptr;
  decltype(&nvrtcGetSupportedArchs) archs = nullptr;
  decltype(&nvrtcGetErrorString) text = nullptr;

  /// False, with what is missing in `why`.
  bool load(std::string& why) {
    const auto lib = internal::shared_library::open(internal::cuda_library_paths("libnvrtc"), why);
    return lib && lib->get(create, "nvrtcCreateProgram", why) &&
           lib->get(destroy, "nvrtcDestroyProgram", why) &&
           lib->get(add_name, "nvrtcAddNameExpression", why) &&
           lib->get(lowered_name, "nvrtcGetLoweredName", why) &&
           lib->get(compile, "nvrtcCompileProgram", why) &&
           lib->get(log_size, "nvrtcGetProgramLogSize", why) && lib->get(log, "nvrtcGetProgramLog", why) &&
           lib->get(ptx_size, "nvrtcGetPTXSize", why) && lib->get(ptx, "nvrtcGetPTX", why) &&
           lib->get(cubin_size, "nvrtcGetCUBINSize", why) && lib->get(cubin, "nvrtcGetCUBIN", why) &&
           lib->get(arch_count, "nvrtcGetNumSupportedArchs", why) &&
           lib->get(archs, "nvrtcGetSupportedArchs", why) && lib->get(text, "nvrtcGetErrorString", why);
  }

  std::string log_of(nvrtcProgram program) const {
    std::size_t size = 0;
    if (log_size(program, &size) != NVRTC_SUCCESS || size <= 1)
      return {};
    std::string out(size, '\0');
    if (log(program, out.data()) != NVRTC_SUCCESS)
      return {};
    out.resize(size - 1); // less the final zero
    return out;
  }
};

/// A program, destroyed at the end of its scope.
struct program_scope {
  const nvrtc& lib;
  nvrtcProgram program = nullptr;
  ~program_scope() {
    if (program != nullptr)
      (void)lib.destroy(&program);
  }
};

} // namespace

core::result<cuda_binary> compile_cuda(const cuda_source& source, int compute_major, int compute_minor) {
  const auto fault = [&](core::errc code, const std::string& what) -> core::error {
    return {code, source.name + ": " + what};
  };
  nvrtc lib;
  std::string why;
  if (!lib.load(why))
    return fault(core::errc::device,
                 "compiling CUDA source needs NVRTC, which cannot be loaded: " + why + internal::cuda_library_advice);
  program_scope p{lib};
  auto rc = lib.create(&p.program, source.text.c_str(), source.name.c_str(), 0, nullptr, nullptr);
  if (rc != NVRTC_SUCCESS)
    return fault(core::errc::failed, std::string("NVRTC: ") + lib.text(rc));
  for (const auto& k : source.kernels)
    if (rc = lib.add_name(p.program, k.c_str()); rc != NVRTC_SUCCESS)
      return fault(core::errc::invalid_argument, "kernel \"" + k + "\": " + lib.text(rc));

  // Code for exactly this device, or PTX of the newest architecture below it, which its driver compiles.
  int count = 0;
  std::vector<int> archs;
  if (lib.arch_count(&count) == NVRTC_SUCCESS && count > 0) {
    archs.resize(static_cast<std::size_t>(count));
    if (lib.archs(archs.data()) != NVRTC_SUCCESS)
      archs.clear();
  }
  const int wanted = compute_major * 10 + compute_minor;
  const bool exact = std::find(archs.begin(), archs.end(), wanted) != archs.end();
  int below = 0;
  for (int a : archs)
    if (a <= wanted)
      below = std::max(below, a);
  if (below == 0)
    return fault(core::errc::device, "this NVRTC cannot compile for compute capability " +
                                         std::to_string(compute_major) + "." + std::to_string(compute_minor));
  std::vector<std::string> options{exact ? "--gpu-architecture=sm_" + std::to_string(wanted)
                                         : "--gpu-architecture=compute_" + std::to_string(below)};
  options.insert(options.end(), source.options.begin(), source.options.end());
  for (const auto& folder : internal::cuda_include_folders()) // behind the caller's own
    options.push_back("--include-path=" + folder);
  std::vector<const char*> raw;
  for (const auto& o : options)
    raw.push_back(o.c_str());
  rc = lib.compile(p.program, static_cast<int>(raw.size()), raw.data());
  cuda_binary out;
  out.log = lib.log_of(p.program);
  if (rc != NVRTC_SUCCESS)
    return fault(core::errc::invalid_argument,
                 std::string("the CUDA source does not compile: ") + lib.text(rc) + "\n" + out.log);
  for (const auto& k : source.kernels) {
    const char* name = nullptr;
    if (rc = lib.lowered_name(p.program, k.c_str(), &name); rc != NVRTC_SUCCESS)
      return fault(core::errc::invalid_argument, "there is no kernel \"" + k + "\": " + lib.text(rc));
    out.entry_names.emplace_back(name);
  }
  std::size_t size = 0;
  rc = exact ? lib.cubin_size(p.program, &size) : lib.ptx_size(p.program, &size);
  if (rc == NVRTC_SUCCESS) {
    out.image.resize(size);
    rc = exact ? lib.cubin(p.program, out.image.data()) : lib.ptx(p.program, out.image.data());
  }
  if (rc != NVRTC_SUCCESS)
    return fault(core::errc::failed, std::string("NVRTC gave no code: ") + lib.text(rc));
  return out;
}

namespace {

/// Driver functions, asked of cudart: libcuda is never linked.
struct driver {
  PFN_cuModuleLoadDataEx_v2010 load = nullptr;
  PFN_cuModuleUnload_v2000 unload = nullptr;
  PFN_cuModuleGetFunction_v2000 function = nullptr;
  PFN_cuLaunchKernel_v4000 launch = nullptr;
  PFN_cuGetErrorString_v6000 text = nullptr;

  explicit driver(const std::string& label) {
    internal::get_driver_function(load, "cuModuleLoadDataEx", 2010, label);
    internal::get_driver_function(unload, "cuModuleUnload", 2000, label);
    internal::get_driver_function(function, "cuModuleGetFunction", 2000, label);
    internal::get_driver_function(launch, "cuLaunchKernel", 4000, label);
    internal::get_driver_function(text, "cuGetErrorString", 6000, label);
  }

  void check(CUresult rc, const std::string& label, const std::string& call, void* stream) const {
    if (rc == CUDA_SUCCESS)
      return;
    const char* s = nullptr;
    if (text(rc, &s) != CUDA_SUCCESS || s == nullptr)
      s = "unknown error";
    const auto number = static_cast<cudaError_t>(rc); // the same as the runtime's
    cudaError_t waited = cudaSuccess;
    const bool lost = internal::is_device_lost(number, static_cast<cudaStream_t>(stream), waited);
    throw device_error(label + ": " + call + " failed: " + s + " (" + std::to_string(rc) + ")" +
                           (lost ? "; this process cannot use the GPU any more, restart it" : ""),
                       lost);
  }
};

} // namespace

struct cuda_module::impl {
  context& ctx;
  std::string label, name, log;
  driver api;
  CUmodule module = nullptr;
  std::map<std::string, CUfunction, std::less<>> kernels;

  impl(context& c, const cuda_source& source)
      : ctx(c), label(c.impl().label()), name(source.name), api(label) {
    const auto& d = c.options().device;
    auto made = compile_cuda(source, d.compute_major, d.compute_minor);
    if (!made)
      throw device_error(label + ": " + made.error().text, false);
    log = made->log;
    std::string jit(8192, '\0'); // the driver's compiler speaks up where the image is PTX
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void* values[] = {jit.data(), reinterpret_cast<void*>(jit.size())};
    const auto rc = api.load(&module, made->image.c_str(), 2, options, values);
    api.check(rc, label, "loading " + name + " " + std::string(jit.c_str()), c.stream());
    try {
      for (std::size_t i = 0; i < source.kernels.size(); ++i)
        api.check(api.function(&kernels[source.kernels[i]], module, made->entry_names[i].c_str()), label,
                  "finding kernel " + source.kernels[i], c.stream());
    } catch (...) {
      (void)api.unload(module);
      throw;
    }
  }
  ~impl() {
    (void)cudaStreamSynchronize(static_cast<cudaStream_t>(ctx.stream())); // its kernels may still run
    (void)api.unload(module);
    (void)cudaGetLastError();
  }
  impl(const impl&) = delete;
  impl& operator=(const impl&) = delete;
};

cuda_module::cuda_module(context& ctx, const cuda_source& source) {
  ctx.check_thread();
  if (ctx.kind() != device_kind::cuda)
    throw device_error(
        ctx.impl().label() + ": " + source.name +
            ": CUDA source needs a GPU slot, this one is a CPU's; `troupe doctor` lists the devices",
        false);
  impl_ = std::make_unique<impl>(ctx, source);
}
cuda_module::~cuda_module() = default;
cuda_module::cuda_module(cuda_module&&) noexcept = default;
cuda_module& cuda_module::operator=(cuda_module&&) noexcept = default;

void cuda_module::launch_raw(std::string_view kernel, const cuda_extent& extent, void** args) {
  impl_->ctx.check_thread();
  const auto at = impl_->kernels.find(kernel);
  if (at == impl_->kernels.end()) {
    std::string list;
    for (const auto& [name, f] : impl_->kernels)
      list += (list.empty() ? "" : ", ") + name;
    throw device_error(impl_->label + ": " + impl_->name + " has no kernel \"" + std::string(kernel) +
                           "\"; cuda_source::kernels named: " + (list.empty() ? "none" : list),
                       false);
  }
  const auto& [gx, gy, gz] = extent.grid;
  const auto& [bx, by, bz] = extent.block;
  impl_->api.check(impl_->api.launch(at->second, gx, gy, gz, bx, by, bz, extent.shared_bytes,
                                     static_cast<CUstream>(impl_->ctx.stream()), args, nullptr),
                   impl_->label, "launching " + std::string(kernel), impl_->ctx.stream());
}

const std::string& cuda_module::compiler_log() const noexcept { return impl_->log; }

} // namespace troupe::gpu
