#include "kernel_table.hpp"

#include "backend.hpp"
#include "troupe/gpu/context.hpp"

namespace troupe::gpu::internal {

namespace cpu_baseline {
extern const kernel_table table;
}
#if defined(TROUPE_KERNELS_X86)
namespace cpu_v3 {
extern const kernel_table table;
}
namespace cpu_v4 {
extern const kernel_table table;
}
#endif

#if defined(TROUPE_WITH_CUDA)
namespace cuda {
extern const kernel_table table;
}
#endif

std::vector<const kernel_table*> cpu_kernel_tables() {
  std::vector<const kernel_table*> tables{&cpu_baseline::table};
#if defined(TROUPE_KERNELS_X86)
  // The psABI's levels; the operating system's support for the wide registers is part of the answer.
  __builtin_cpu_init();
  if (__builtin_cpu_supports("x86-64-v3"))
    tables.push_back(&cpu_v3::table);
  if (__builtin_cpu_supports("x86-64-v4"))
    tables.push_back(&cpu_v4::table);
#endif
  return tables;
}

const kernel_table& kernels_for(device_kind kind) {
  if (kind == device_kind::cpu) {
    static const kernel_table* const best = cpu_kernel_tables().back();
    return *best;
  }
#if defined(TROUPE_WITH_CUDA)
  return cuda::table;
#else
  throw device_error("kernels for CUDA were asked for, but this build has none: configure with TROUPE_CUDA=ON", false);
#endif
}

launch_target target_of(context& ctx) noexcept {
  backend& b = ctx.impl();
  b.touch();
  const scratch_memory scratch = b.scratch();
  return {ctx.stream(), scratch.data, scratch.floats, b.label().c_str(), b.recorder()};
}

void kernel_override::use(context& ctx, const kernel_table& table) noexcept {
  ctx.kernels_ = &table;
  if (table.wants_many) // a GPU's
    ctx.impl().keep_subnormals_in_products();
}

} // namespace troupe::gpu::internal
