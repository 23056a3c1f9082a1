// The kernels as nvcc sees them, for cuda_emulation.hpp. No test here: ops_*_test.cpp run this table like a device's.
#define TROUPE_KERNELS emulated_cuda
#define TROUPE_CUDA_EMULATION
#define TROUPE_PRODUCTS_KEEP_SUBNORMALS

#include "gpu/cuda_emulation.hpp"
#include "kernels/prelude.hpp"

#define __global__
#define __device__
#define __launch_bounds__(threads)
#define __shared__ static
#define threadIdx (cuda_emulation::runner().index)
#define blockIdx (cuda_emulation::runner().block)
#define blockDim (cuda_emulation::runner().block_dim)
#define gridDim (cuda_emulation::runner().grid_dim)
#define __syncthreads() cuda_emulation::runner().wait(cuda_emulation::waits_for::block)
#define __shfl_xor_sync(lanes, value, mask) cuda_emulation::runner().exchange(value, unsigned(mask))

namespace troupe::gpu::internal::emulated_cuda {

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x, unsigned y, unsigned z) : x(x), y(y), z(z) {}
};

enum class threads : std::uint8_t;

template <threads Kind, class... Params, class... Args>
void enqueue(const launch_target&, const char* form, void (*kernel)(Params...), dim3 grid, dim3 block, const Args&... args) {
  const std::uint64_t count = std::uint64_t(block.x) * block.y * block.z;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 || grid.z > 65535 || count == 0 || count > 1024 ||
      count % 32 != 0)
    throw std::logic_error(std::string(form) + ": a GPU would refuse this launch");
  auto& r = cuda_emulation::runner();
  r.grid_dim = {grid.x, grid.y, grid.z};
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        r.block = {x, y, z};
        r.run({block.x, block.y, block.z}, Kind != threads{}, [&] { kernel(args...); });
      }
}

} // namespace troupe::gpu::internal::emulated_cuda

#include "kernels/table.hpp"

const troupe::gpu::internal::kernel_table& cuda_emulation::table() {
  static const auto t = troupe::gpu::internal::emulated_cuda::make_table("emulated cuda", true);
  return t;
}
