#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "builtin_workloads.hpp"
#include "troupe/gpu/model_workload.hpp"

/// What Troupe's own architectures have in common as workloads. `read(options, where, faults)` gives the fixed options: data,
/// network, optimizer and batch.
namespace troupe::gpu::internal {

template <class Model, class Read>
workload_registry::factory builtin_model_factory(std::string kind, Read read, std::shared_ptr<data_cache> cache) {
  return [kind = std::move(kind), read, cache = std::move(cache)](context& ctx, const workload_config& cfg) {
    std::vector<core::error> faults;
    const auto options = read(*cfg.options, std::string_view{"/workload"}, faults);
    check_model_hyperparameters(options.optimizer, cfg.hp, "", faults);
    refuse(faults);
    trained_model what;
    what.kind = kind;
    what.architecture = options.network.describe();
    what.variant = to_string(options.network.precision);
    what.how.make = Model::factory(options.network);
    what.how.optimizer = options.optimizer;
    what.how.batch = options.batch;
    what.how.data = resident(ctx, options.data, *cache);
    return make_model_workload(ctx, cfg, std::move(what));
  };
}

template <class Read>
workload_registry::checker builtin_model_checker(Read read) {
  return [read](const nlohmann::json& options, const core::hyperparameters& hp, std::string_view where,
                std::vector<core::error>& faults) {
    const auto at = std::string(where) + "/workload";
    const auto before = faults.size();
    const auto found = read(options, std::string_view{at}, faults);
    if (faults.size() == before)
      if (const auto text = found.data.missing_files(); !text.empty())
        faults.push_back({core::errc::not_found, at + "/data: " + text});
    check_model_hyperparameters(found.optimizer, hp, where, faults);
  };
}

} // namespace troupe::gpu::internal
