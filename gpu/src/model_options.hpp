#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "troupe/core/result.hpp"
#include "troupe/gpu/dataset.hpp"
#include "troupe/gpu/network.hpp"
#include "troupe/gpu/training_group.hpp"
#include "troupe/gpu/transformer.hpp"

namespace troupe::gpu::internal {

enum class model_kind : std::uint8_t { mlp, cnn };

/// The fixed options of the workloads "mlp" and "cnn".
struct model_options {
  data_spec data;
  network_spec network;
  optimizer_kind optimizer = optimizer_kind::sgd;
  std::int64_t batch = 128;
};

/// Those of "transformer".
struct transformer_options {
  data_spec data;
  transformer_spec network;
  optimizer_kind optimizer = optimizer_kind::adamw;
  std::int64_t batch = 64;
};

/// Every fault's text begins with `where` and the JSON pointer below it. The result is usable only if none was added.
model_options read_model_options(model_kind kind, const nlohmann::json& options, std::string_view where,
                                 std::vector<core::error>& faults);
transformer_options read_transformer_options(const nlohmann::json& options, std::string_view where,
                                             std::vector<core::error>& faults);

} // namespace troupe::gpu::internal
