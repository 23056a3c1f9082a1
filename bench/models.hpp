#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/core/value.hpp"
#include "troupe/gpu/dataset.hpp"
#include "troupe/gpu/network.hpp"
#include "troupe/gpu/training_group.hpp"
#include "troupe/gpu/transformer.hpp"

namespace troupe::bench {

/// The models of the comparisons; the programs in bench/peers have the same.
inline std::vector<std::string> model_names() {
  return {"micro", "tiny", "small", "mlp", "cnn", "transformer"};
}

inline std::int64_t batch_of(const std::string& name) {
  return name == "micro" || name == "tiny" ? 8 : name == "small" ? 32 : name == "transformer" ? 64 : 128;
}

/// The transformer trains with AdamW, at a tenth of the rate; the others with SGD and momentum.
inline gpu::optimizer_kind optimizer_of(const std::string& name) {
  return name == "transformer" ? gpu::optimizer_kind::adamw : gpu::optimizer_kind::sgd;
}

inline core::hyperparameters hyperparameters_of(const std::string& name, double lr) {
  if (name == "transformer")
    return {{"lr", lr / 10}, {"weight_decay", 0.01}};
  return {{"lr", lr}, {"momentum", 0.9}};
}

inline gpu::transformer_spec transformer_of(gpu::precision_kind precision = gpu::precision_kind::fp32) {
  gpu::transformer_spec s;
  s.vocabulary = 256;
  s.length = 16;
  s.classes = 5;
  s.precision = precision;
  return s;
}

/// Of all but the transformer. micro, 32-16-10 at batch 8, is for what a step costs beside its arithmetic.
inline gpu::network_spec network_of(const std::string& name, gpu::precision_kind precision = gpu::precision_kind::fp32) {
  gpu::network_spec s;
  s.features = 784;
  s.height = s.width = 28;
  s.channels = 1;
  s.classes = 10;
  s.precision = precision;
  if (name == "micro") {
    s.features = 32;
    s.height = s.width = s.channels = 0;
    s.hidden = {16};
  } else if (name == "cnn") {
    s.conv = {{16, 3, 1, 1, 2}, {32, 3, 1, 1, 2}};
    s.hidden = {128};
  } else {
    s.hidden = name == "tiny" ? std::vector<std::int64_t>{16} : std::vector<std::int64_t>(2, name == "small" ? 64 : 256);
  }
  return s;
}

inline gpu::model_factory factory_of(const std::string& name, gpu::precision_kind precision) {
  return name == "transformer" ? gpu::transformer::factory(transformer_of(precision)) : gpu::network::factory(network_of(name, precision));
}

inline std::string describe(const std::string& name, gpu::precision_kind precision) {
  return name == "transformer" ? transformer_of(precision).describe() : network_of(name, precision).describe();
}

/// What such a model trains on: real data, or, `synthetic`, so many made-up examples of its shape (always for micro).
inline gpu::data_spec data_of(const std::string& name, bool synthetic, std::int64_t examples = 60000) {
  gpu::data_spec s;
  if (name == "transformer") {
    s.type = synthetic ? "synthetic_text" : "languages";
    s.classes = 5;
    s.vocabulary = 256;
    s.train = examples;
  } else if (name == "micro") {
    s.type = "synthetic";
  } else {
    s.type = synthetic ? "synthetic" : "fashion_mnist";
    s.height = s.width = 28;
    if (synthetic)
      s.train = examples;
  }
  return s;
}

} // namespace troupe::bench
