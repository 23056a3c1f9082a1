// Three GPU actors in a row on one slot: normalise, multiply, softmax.

#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>

#include "layers.hpp"
#include "troupe/gpu/cuda_source.hpp"
#include "troupe/gpu/device.hpp"

using namespace troupe;
using namespace std::chrono_literals;
using layers::host_matrix;

namespace {

/// Asks and waits, as a program's main thread may. Prints an error and returns nothing.
template <class Answer, class Handle, class Message>
std::optional<Answer> ask(caf::scoped_actor& self, const Handle& whom, Message what) {
  std::optional<Answer> out;
  actors::mail(self, std::move(what))
      .request(whom, 60s)
      .receive([&](Answer& x) { out = std::move(x); },
               [](caf::error& e) { std::printf("  refused: %s\n", actors::error_text(e).c_str()); });
  return out;
}

host_matrix make_matrix(std::int64_t rows, std::int64_t cols) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < rows * cols; ++i)
    values.push_back(std::sin(static_cast<float>(i)));
  return {std::make_shared<const std::vector<float>>(std::move(values)), rows, cols};
}

} // namespace

int main(int argc, char** argv) {
  std::string device = "cpu";
  if (argc == 3 && std::strcmp(argv[1], "--device") == 0) {
    device = argv[2];
  } else if (argc != 1) {
    const bool help = std::strcmp(argv[1], "--help") == 0;
    if (!help)
      std::fprintf(stderr, "\"%s\" is not understood\n", argv[argc - 1]);
    std::fputs("usage: gpu_actors [--device cpu|cuda|cuda:1|…]\n", help ? stdout : stderr);
    return help ? 0 : 2;
  }

  // 1. A slot: one thread that computes on a device, with a memory budget of 64 MiB.
  const auto found = gpu::find_device(gpu::find_devices(), device);
  if (!found) {
    std::fprintf(stderr, "%s\n", found.error().text.c_str());
    return 1;
  }
  gpu::slot_options slot;
  slot.device = *found;
  slot.memory_budget = 64 << 20;
  auto worker = std::make_shared<gpu::slot_worker>(slot); // outlives the actors

  // 2. Actors that live there, and an ordinary one that chains them.
  actors::config<caf::id_block::layers> cfg;
  caf::actor_system system{cfg};
  caf::scoped_actor self{system};
  const actors::gpu_place place{system, worker};
  const auto door = layers::spawn_door(system, place);
  const auto network = layers::spawn_chain(system, {layers::spawn_normalise(system, place),
                                                    layers::spawn_product(system, place, make_matrix(6, 3)),
                                                    layers::spawn_softmax(system, place)});

  // 3. A matrix goes to the device, through the chain, and back. Between the actors only its name travels.
  const auto x = ask<layers::tensor_ref>(self, door, make_matrix(4, 6));
  const auto y = x ? ask<layers::tensor_ref>(self, network, layers::apply{*x}) : std::nullopt;
  const auto back = y ? ask<host_matrix>(self, door, layers::fetch{*y}) : std::nullopt;
  if (!back)
    return 1;
  std::printf("%s became %s:\n", x->describe().c_str(), y->describe().c_str());
  bool right = true;
  for (std::int64_t r = 0; r < back->rows; ++r) {
    float sum = 0;
    for (std::int64_t c = 0; c < back->cols; ++c) {
      const float p = back->values->at(static_cast<std::size_t>(r * back->cols + c));
      std::printf("  %.4f", p);
      sum += p;
    }
    right = right && std::fabs(sum - 1) < 1e-5F;
    std::puts("");
  }

  // 4. Errors are messages: the actors go on.
  std::puts("a matrix with five columns:");
  const auto narrow = ask<layers::tensor_ref>(self, door, make_matrix(4, 5));
  right = right && narrow && !ask<layers::tensor_ref>(self, network, layers::apply{*narrow});
  std::puts("a matrix of 128 MiB:");
  right = right && !ask<layers::tensor_ref>(self, door, make_matrix(32768, 1024));
  std::puts("the first one once more:");
  const auto again = ask<layers::tensor_ref>(self, network, layers::apply{*x});
  right = right && again;
  if (again)
    std::printf("  %s\n", again->describe().c_str());

  // 5. An actor made of CUDA text alone, compiled when it is first used. Needs a GPU.
  std::puts("an actor of CUDA text:");
  const gpu::cuda_source text{.text = R"(extern "C" __global__ void square(const float* x, float* y, long long n) {
                                           const long long i = blockIdx.x * blockDim.x + threadIdx.x;
                                           if (i < n)
                                             y[i] = x[i] * x[i];
                                         })",
                              .kernels = {"square"}};
  const auto squarer = actors::spawn_cuda(system, place, text);
  if (!squarer) {
    std::printf("  refused: %s\n", squarer.error().text.c_str());
    return right && place.kind() == gpu::device_kind::cpu ? 0 : 1;
  }
  actors::cuda_launch launch;
  launch.kernel = "square";
  launch.in = {*y};
  launch.out_shape = y->shape();
  launch.integers = {static_cast<std::int64_t>(y->size())};
  const auto squares = ask<layers::tensor_ref>(self, *squarer, launch);
  if (squares)
    std::printf("  %s\n", squares->describe().c_str());
  return right && squares ? 0 : 1;
}
