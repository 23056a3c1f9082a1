#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "troupe/core/checkpoint.hpp"
#include "troupe/gpu/context.hpp"
#include "troupe/gpu/device.hpp"
#include "troupe/gpu/workload.hpp"

/// What the tests of networks and workloads share.
namespace model_test {

using namespace troupe;

inline gpu::slot_options cpu_slot() {
  gpu::slot_options o;
  o.device = gpu::find_devices().devices.front();
  return o;
}

/// The text of what `f` throws; empty if it does not.
template <class F>
std::string thrown_text(F&& f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return {};
}

inline bool mentions(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

/// 16 numbers, 4 classes, 256 + 128 examples.
inline nlohmann::json small_data() {
  return {{"type", "synthetic"}, {"classes", 4}, {"features", 16}, {"train", 256}, {"test", 128}, {"noise", 0.5}};
}

inline nlohmann::json small_images() {
  return {{"type", "synthetic"}, {"classes", 4}, {"image", {8, 8, 2}}, {"train", 256}, {"test", 128}, {"noise", 0.5}};
}

inline nlohmann::json small_mlp() {
  return {{"data", small_data()}, {"hidden", {24, 16}}, {"batch", 16}};
}

inline nlohmann::json small_cnn() {
  return {{"data", small_images()},
          {"conv", {{{"filters", 8}, {"kernel", 3}, {"pool", 2}}, {{"filters", 12}, {"kernel", 3}, {"pool", 2}}}},
          {"dense", {16}},
          {"batch", 16}};
}

inline nlohmann::json small_transformer() {
  return {{"data", {{"type", "synthetic_text"}, {"classes", 4}, {"vocabulary", 10}, {"length", 20}, {"train", 256}, {"test", 128}, {"noise", 0}}},
          {"width", 16},
          {"heads", 2},
          {"layers", 1},
          {"hidden", 32},
          {"batch", 16}};
}

/// One workload on a context of its own.
struct bench {
  gpu::context ctx{cpu_slot()};
  std::unique_ptr<gpu::workload> work;

  bench(const gpu::workload_registry& registry, const std::string& type, const nlohmann::json& options,
        const core::hyperparameters& hp = {}, std::uint64_t seed = 11) {
    gpu::workload_config cfg{"tester", seed, &options, hp};
    auto made = registry.make(ctx, type, cfg);
    if (!made)
      throw std::runtime_error(made.error().text);
    work = std::move(*made);
  }

  core::checkpoint saved() {
    core::checkpoint out;
    work->save(ctx, out);
    return out;
  }
  std::uint64_t hash() { return core::content_hash(saved()); }
  gpu::run_report run(std::uint64_t steps) {
    gpu::run_report done;
    work->run(ctx, steps, done);
    return done;
  }
};

} // namespace model_test
