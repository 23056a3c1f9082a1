#include "troupe/gpu/cuda_source.hpp"

#include "backend.hpp"

namespace troupe::gpu {

namespace {
constexpr const char* reason =
    "this Troupe was built without CUDA, so CUDA source cannot be compiled; configure with TROUPE_CUDA=ON";
}

struct cuda_module::impl {
  std::string log;
};

core::result<cuda_binary> compile_cuda(const cuda_source& source, int, int) {
  return core::error{core::errc::device, source.name + ": " + reason};
}

cuda_module::cuda_module(context& ctx, const cuda_source& source) {
  throw device_error(ctx.impl().label() + ": " + source.name + ": " + reason, false);
}
cuda_module::~cuda_module() = default;
cuda_module::cuda_module(cuda_module&&) noexcept = default;
cuda_module& cuda_module::operator=(cuda_module&&) noexcept = default;
void cuda_module::launch_raw(std::string_view, const cuda_extent&, void**) {
  throw device_error(reason, false);
}
const std::string& cuda_module::compiler_log() const noexcept { return impl_->log; }

} // namespace troupe::gpu
