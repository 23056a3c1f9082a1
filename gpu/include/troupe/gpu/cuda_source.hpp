#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "troupe/core/result.hpp"
#include "troupe/gpu/context.hpp"

/// CUDA C++ given as text at run time: compiled by NVRTC for the device at hand, launched on a context's
/// stream. The way for users to bring kernels of their own without nvcc. NVRTC is loaded when it is first
/// needed.
namespace troupe::gpu {

/// What to compile.
struct cuda_source {
  std::string text;                 ///< CUDA C++; device code only
  std::vector<std::string> kernels{}; ///< as in C++: "scale", "ns::add<float>"; those are what can be launched
  /// NVRTC's, such as "-use_fast_math", "-DN=4". The folders of CUDA's own headers come behind these by themselves, where they are
  /// installed beside its libraries.
  std::vector<std::string> options{};
  std::string name = "source.cu";   ///< for the compiler's messages
};

/// Compiled code.
struct cuda_binary {
  std::string image;                    ///< cubin, or PTX where the compiler does not know the device yet
  std::vector<std::string> entry_names; ///< mangled, one for each of `cuda_source::kernels`
  std::string log;                      ///< warnings
};

/// Compiles for a compute capability, such as 9, 0. Needs NVRTC but no GPU and no driver; any thread. The
/// error has the compiler's log, or says what is missing.
core::result<cuda_binary> compile_cuda(const cuda_source& source, int compute_major, int compute_minor);

/// Size of a launch.
struct cuda_extent {
  std::array<unsigned, 3> grid{1, 1, 1};  ///< blocks
  std::array<unsigned, 3> block{1, 1, 1}; ///< threads of a block
  unsigned shared_bytes = 0;              ///< dynamic shared memory of a block

  /// Enough blocks of `threads` for n elements in one dimension; at least one block.
  static cuda_extent cover(std::size_t n, unsigned threads = 256) {
    cuda_extent out;
    out.grid[0] = n == 0 ? 1 : static_cast<unsigned>((n + threads - 1) / threads);
    out.block[0] = threads;
    return out;
  }
};

/// Kernels of one source, loaded on one context's device. Made, used and destroyed on the context's thread,
/// and destroyed before the context.
class cuda_module {
public:
  /// Throws `device_error` on a CPU context, where NVRTC or the driver is missing, and, with the compiler's
  /// log, for code that does not compile.
  cuda_module(context& ctx, const cuda_source& source);
  ~cuda_module();
  cuda_module(cuda_module&&) noexcept;
  cuda_module& operator=(cuda_module&&) noexcept;

  /// Enqueues a kernel on the context's stream. `args` must have exactly the kernel's parameter types: a
  /// `float*` for a `float*`, an `int` for an `int`. Throws `device_error` for an unknown name or a launch
  /// that the driver refuses.
  template <class... Args>
  void launch(std::string_view kernel, const cuda_extent& extent, Args... args) {
    static_assert((std::is_trivially_copyable_v<Args> && ...), "kernel arguments are copied byte by byte");
    void* pointers[sizeof...(Args) + 1] = {static_cast<void*>(&args)..., nullptr};
    launch_raw(kernel, extent, pointers);
  }
  /// `args`: a pointer to each argument.
  void launch_raw(std::string_view kernel, const cuda_extent& extent, void** args);

  const std::string& compiler_log() const noexcept; ///< warnings

private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

} // namespace troupe::gpu
