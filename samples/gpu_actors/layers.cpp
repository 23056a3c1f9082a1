#include "layers.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "troupe/gpu/cuda_source.hpp"
#include "troupe/gpu/ops.hpp"

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;

namespace layers {
namespace {

/// A view of a tensor, for Troupe's operations. What it throws goes back to who asked.
gpu::mat<const float> matrix(gpu_call& call, const tensor_ref& x) {
  const auto* data = call.data<float>(x); // refuses other types and tensors of other slots
  if (x.shape().size() != 2)
    throw std::invalid_argument("a matrix is needed, not " + x.describe());
  return {data, x.shape()[0], x.shape()[1], x.shape()[1], 0};
}
gpu::mat<float> matrix(const tensor<float>& y) {
  return gpu::mat<float>::dense(y.data(), y.shape()[0], y.shape()[1]);
}

/// The state of a product: its weights, which live on the device. Made and destroyed on the slot's thread.
struct product_state {
  tensor_ref w;
};

/// The state of a softmax on a GPU: a compiled kernel.
struct softmax_kernel {
  static constexpr auto text = R"(
    extern "C" __global__ void softmax(const float* x, float* y, int rows, int cols) {
      const int r = blockIdx.x * blockDim.x + threadIdx.x;
      if (r >= rows)
        return;
      float most = x[r * cols], sum = 0;
      for (int c = 1; c < cols; ++c)
        most = fmaxf(most, x[r * cols + c]);
      for (int c = 0; c < cols; ++c)
        sum += y[r * cols + c] = expf(x[r * cols + c] - most);
      for (int c = 0; c < cols; ++c)
        y[r * cols + c] /= sum;
    })";

  gpu::cuda_module code;
  explicit softmax_kernel(gpu_call& call)
    : code(call.context(), gpu::cuda_source{.text = text, .kernels = {"softmax"}, .name = "softmax.cu"}) {}
};

struct chain_state {
  std::vector<layer> layers;
  static constexpr const char* name = "chain";
};

/// Hands the tensor to layer `i`, what comes back to the next one, and the last one's to who asked.
template <class Self, class Promise>
void pass_on(Self* self, std::size_t i, const tensor_ref& x, Promise promise) {
  if (i == state(self).layers.size()) {
    promise.deliver(x);
    return;
  }
  mail(self, apply{x})
      .request(state(self).layers[i], 60s)
      .then([=](const tensor_ref& y) { pass_on(self, i + 1, y, promise); },
            [=](caf::error& e) mutable { promise.deliver(std::move(e)); });
}

layer::behavior_type chain(layer::stateful_pointer<chain_state> self, const std::vector<layer>& of) {
  state(self).layers = of;
  return {
      [=](const apply& m) -> result<tensor_ref> {
        auto promise = self->make_response_promise<tensor_ref>();
        pass_on(self, 0, m.x, promise);
        return promise;
      },
  };
}

} // namespace

// A GPU actor is a list of handlers that run on the slot's thread, with its context. This one has no state.
door spawn_door(caf::actor_system& system, const gpu_place& at) {
  return spawn_gpu<door>(
      system, at, {},
      [](gpu_call& call, const host_matrix& m) -> tensor_ref {
        return call.upload(std::span<const float>(*m.values), {m.rows, m.cols});
      },
      [](gpu_call& call, const fetch& m) -> host_matrix {
        return {std::make_shared<const std::vector<float>>(call.read<float>(m.x)), m.x.shape().at(0), m.x.shape().at(1)};
      });
}

layer spawn_normalise(caf::actor_system& system, const gpu_place& at) {
  return spawn_gpu<layer>(system, at, {}, [](gpu_call& call, const apply& m) -> tensor_ref {
    const auto x = matrix(call, m.x);
    auto y = call.make<float>(m.x.shape());
    auto stats = call.make<float>({x.rows, 2}), ones = call.make<float>({x.cols}), zeros = call.make<float>({x.cols});
    fill(call.context(), 1, gpu::vec<float>{ones.data(), x.cols, x.cols}, 1);
    fill(call.context(), 1, gpu::vec<float>{zeros.data(), x.cols, x.cols}, 0);
    layer_norm(call.context(), 1, x, {ones.data(), x.cols, 0}, {zeros.data(), x.cols, 0}, 1e-5F, matrix(y), matrix(stats));
    return y; // the others go back to the slot, in the order of its stream
  });
}

// This one has: its weights come to the device with the first message.
layer spawn_product(caf::actor_system& system, const gpu_place& at, host_matrix w) {
  return spawn_gpu_with<layer, product_state>(
      system, at, {}, [w](product_state& state, gpu_call& call, const apply& m) -> tensor_ref {
        if (!state.w)
          state.w = call.upload(std::span<const float>(*w.values), {w.rows, w.cols});
        const auto x = matrix(call, m.x);
        if (x.cols != w.rows)
          throw std::invalid_argument("this product takes matrices with " + std::to_string(w.rows) + " columns, not "
                                      + m.x.describe());
        auto y = call.make<float>({x.rows, w.cols});
        gemm(call.context(), 1, false, false, 1, x, matrix(call, state.w), 0, matrix(y));
        return y;
      });
}

layer spawn_softmax(caf::actor_system& system, const gpu_place& at) {
  if (at.kind() == gpu::device_kind::cuda)
    return spawn_gpu_with<layer, softmax_kernel>(
        system, at, {}, [](softmax_kernel& kernel, gpu_call& call, const apply& m) -> tensor_ref {
          const auto x = matrix(call, m.x);
          auto y = call.make<float>(m.x.shape());
          kernel.code.launch("softmax", gpu::cuda_extent::cover(static_cast<std::size_t>(x.rows)), x.data, y.data(),
                             static_cast<int>(x.rows), static_cast<int>(x.cols));
          return y; // the kernel may still run: whoever uses y on this slot comes after it
        });
  return spawn_gpu<layer>(system, at, {}, [](gpu_call& call, const apply& m) -> tensor_ref {
    const auto x = matrix(call, m.x);
    auto y = call.make<float>(m.x.shape());
    for (std::int64_t r = 0; r < x.rows; ++r) { // on the CPU device memory is the host's
      const auto *from = x.data + r * x.ld, *to = from + x.cols;
      const float most = *std::max_element(from, to);
      float sum = 0;
      for (std::int64_t c = 0; c < x.cols; ++c)
        sum += y.data()[r * x.cols + c] = std::exp(from[c] - most);
      for (std::int64_t c = 0; c < x.cols; ++c)
        y.data()[r * x.cols + c] /= sum;
    }
    return y;
  });
}

layer spawn_chain(caf::actor_system& system, std::vector<layer> of) {
  return system.spawn(chain, std::move(of));
}

} // namespace layers
