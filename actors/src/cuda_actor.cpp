#include "troupe/actors/gpu_actor.hpp"
#include "troupe/gpu/cuda_source.hpp"

namespace troupe::actors {
namespace {

/// The compiled source; a failure to compile is kept, to be told to every request.
struct cuda_state {
  std::optional<gpu::cuda_module> module;
  std::string fault;

  gpu::cuda_module& get(gpu_call& call, const gpu::cuda_source& source) {
    if (!module && fault.empty()) {
      try {
        module.emplace(call.context(), source);
      } catch (const std::exception& e) {
        fault = e.what();
      }
    }
    if (!module)
      throw std::invalid_argument(fault);
    return *module;
  }
};

tensor_ref launch(gpu::cuda_module& module, gpu_call& call, const cuda_launch& m) {
  if (m.out_type > static_cast<std::uint8_t>(core::dtype::u64))
    throw std::invalid_argument("cuda_launch: out_type " + std::to_string(m.out_type) + " is no element type");
  if (m.threads == 0 || m.threads > 1024)
    throw std::invalid_argument("cuda_launch: " + std::to_string(m.threads) + " threads a block; 1 to 1024 are possible");
  auto out = call.allocate(static_cast<core::dtype>(m.out_type), m.out_shape);
  std::vector<const void*> pointers;
  for (const auto& x : m.in)
    pointers.push_back(call.data(x));
  void* result = call.writable(out);
  std::vector<long long> integers(m.integers.begin(), m.integers.end());
  std::vector<float> reals;
  for (const double x : m.reals)
    reals.push_back(static_cast<float>(x));
  std::vector<void*> args;
  for (auto& p : pointers)
    args.push_back(&p);
  args.push_back(&result);
  for (auto& n : integers)
    args.push_back(&n);
  for (auto& x : reals)
    args.push_back(&x);
  module.launch_raw(m.kernel, gpu::cuda_extent::cover(out.size(), m.threads), args.data());
  return out;
}

} // namespace

core::result<cuda_actor> spawn_cuda(caf::actor_system& sys, gpu_place at, const gpu::cuda_source& source,
                                    gpu_options options) {
  if (at.kind() != gpu::device_kind::cuda)
    return core::error{core::errc::refused, "CUDA source needs a GPU, but " + at.name() +
                                                " is none: open a slot with a device such as \"cuda:0\" (troupe doctor "
                                                "lists what there is)"};
  return spawn_gpu_with<cuda_actor, cuda_state>(
      sys, std::move(at), std::move(options), [source](cuda_state& st, gpu_call& call, const cuda_launch& m) -> tensor_ref {
        return launch(st.get(call, source), call, m);
      });
}

} // namespace troupe::actors
