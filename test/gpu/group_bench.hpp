#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "backend.hpp"
#include "gpu/cuda_emulation.hpp"
#include "gpu/model_support.hpp"
#include "kernel_table.hpp"
#include "troupe/gpu/network.hpp"
#include "troupe/gpu/training_group.hpp"

/// A training group on a context of its own, for the tests of groups.
namespace group_test {

using namespace troupe;
using namespace troupe::gpu;
using namespace model_test;

struct group_bench {
  context ctx;
  std::shared_ptr<const resident_data> data;
  group_options options;
  std::unique_ptr<training_group> group;
  network_spec spec;

  /// `budget`: without the data.
  group_bench(network_spec s, optimizer_kind optimizer, const nlohmann::json& from, std::int64_t block = 1, bool emulated = false,
              std::uint64_t budget = 0, std::uint64_t pinned = 0, capture_mode capture = capture_mode::never)
    : group_bench(std::move(s), optimizer, data_of(from), block, emulated, budget, pinned, capture) {
  }
  group_bench(network_spec s, optimizer_kind optimizer, std::shared_ptr<const dataset> host, std::int64_t block, bool emulated,
              std::uint64_t budget, std::uint64_t pinned, capture_mode capture)
    : ctx(slot_of(budget == 0 ? 0 : budget + bytes_of(host->train) + bytes_of(host->test), pinned, capture)), spec(std::move(s)) {
    if (emulated)
      internal::kernel_override::use(ctx, cuda_emulation::table());
    ctx.impl().delay_copies(); // asynchronous ones come as late as their marks allow
    data = std::make_shared<const resident_data>(ctx, host);
    spec.features = host->features;
    spec.classes = host->classes;
    spec.height = host->height;
    spec.width = host->width;
    spec.channels = host->channels;
    options = {network::factory(spec), optimizer, 16, data, block};
    group = std::make_unique<training_group>(ctx, options);
  }

  static slot_options slot_of(std::uint64_t budget, std::uint64_t pinned, capture_mode capture) {
    auto o = cpu_slot();
    o.memory_budget = budget;
    o.pinned_budget = pinned;
    o.capture = capture;
    return o;
  }
  static std::shared_ptr<const dataset> data_of(const nlohmann::json& from) {
    std::vector<core::error> faults;
    return std::make_shared<const dataset>(make_synthetic(data_spec::from_json(from, "", faults)));
  }
  static std::uint64_t bytes_of(const labelled_examples& x) {
    return x.images.size() + x.floats.size() * sizeof(float) + x.labels.size() * sizeof(std::int32_t);
  }
  /// Another group, whose batches come from the host: as if there had been no room for the data.
  void stage_data() {
    group.reset();
    const auto host = std::make_shared<const dataset>(data->host());
    data.reset();
    auto taken = ctx.allocate(ctx.memory_free() - bytes_of(host->train));
    data = std::make_shared<const resident_data>(ctx, host, data_place::where_it_fits);
    options.data = data;
    taken = {};
    group = std::make_unique<training_group>(ctx, options);
  }

  core::checkpoint saved(std::int64_t member) {
    core::checkpoint out;
    group->save(member, out);
    return out;
  }
  std::uint64_t hash(std::int64_t member) { return core::content_hash(saved(member)); }
};

inline member_params params_of(std::int64_t i) {
  member_params p;
  p.lr = 0.02F * static_cast<float>(1 + i % 5);
  p.momentum = i % 4 == 1 ? 0.5F : 0.9F;
  p.weight_decay = i % 7 == 2 ? 1e-3F : 0;
  p.clip_norm = i % 6 == 3 ? 0.5F : 0;
  p.dropout = i % 3 == 0 ? 0.1F : 0;
  p.label_smoothing = i % 5 == 4 ? 0.1F : 0;
  p.schedule = i % 4 == 2 ? 2.0F : 0;
  p.schedule_a = 40;
  return p;
}

inline network_spec dense() {
  network_spec s;
  s.hidden = {24, 16};
  return s;
}

} // namespace group_test
