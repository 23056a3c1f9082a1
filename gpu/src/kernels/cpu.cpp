// Compiled once for each instruction set, with TROUPE_KERNELS as the namespace; see gpu/CMakeLists.txt.
#include "kernels/table.hpp"

#define TROUPE_STRING_OF(x) #x
#define TROUPE_STRING(x) TROUPE_STRING_OF(x)

namespace troupe::gpu::internal::TROUPE_KERNELS {

extern const kernel_table table;
constinit const kernel_table table = make_table(TROUPE_STRING(TROUPE_KERNELS), false);

} // namespace troupe::gpu::internal::TROUPE_KERNELS
