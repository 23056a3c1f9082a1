// The kernels for the GPU; kernels/launch_cuda.hpp has their forms, the other headers of kernels/ their arithmetic.
#define TROUPE_KERNELS cuda
#include "kernels/table.hpp"

namespace troupe::gpu::internal::cuda {

extern const kernel_table table;
const kernel_table table = make_table("cuda", true);

} // namespace troupe::gpu::internal::cuda
