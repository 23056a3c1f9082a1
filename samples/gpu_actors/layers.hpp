#pragma once

// Actors that compute on a slot of a device, and an ordinary one that chains them. Their messages name tensors; the tensors stay
// on the device.

#include <cstdint>
#include <memory>
#include <vector>

#include "troupe/actors/gpu_actor.hpp"

namespace layers {

using troupe::actors::gpu_place;
using troupe::actors::result;
using troupe::actors::tensor_ref;

/// A matrix in the host's memory. It holds a pointer, so it is a message for this process only.
struct host_matrix {
  std::shared_ptr<const std::vector<float>> values; ///< row-major
  std::int64_t rows = 0, cols = 0;
};
TROUPE_LOCAL_MESSAGE(host_matrix)

/// To the host, please.
struct fetch {
  tensor_ref x;
};
TROUPE_INSPECT(fetch, x)

/// Compute on this.
struct apply {
  tensor_ref x;
};
TROUPE_INSPECT(apply, x)

/// The door between host and device: numbers go in, a tensor's name comes out, and the other way round.
using door = troupe::actors::typed_actor<result<tensor_ref>(host_matrix), result<host_matrix>(fetch)>;
/// A matrix in, a matrix out.
using layer = troupe::actors::typed_actor<result<tensor_ref>(apply)>;

door spawn_door(caf::actor_system& system, const gpu_place& at);
/// Each row less its mean, divided by its deviation.
layer spawn_normalise(caf::actor_system& system, const gpu_place& at);
/// x W, for `w` with as many rows as x has columns.
layer spawn_product(caf::actor_system& system, const gpu_place& at, host_matrix w);
/// Each row as probabilities. On a GPU a kernel from CUDA text, on the CPU a loop.
layer spawn_softmax(caf::actor_system& system, const gpu_place& at);
/// One after the other. Itself a layer.
layer spawn_chain(caf::actor_system& system, std::vector<layer> of);

} // namespace layers

CAF_BEGIN_TYPE_ID_BLOCK(layers, troupe::actors::first_user_type_id)
  CAF_ADD_TYPE_ID(layers, (layers::host_matrix))
  CAF_ADD_TYPE_ID(layers, (layers::fetch))
  CAF_ADD_TYPE_ID(layers, (layers::apply))
CAF_END_TYPE_ID_BLOCK(layers)
