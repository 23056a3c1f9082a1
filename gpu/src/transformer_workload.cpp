#include <nlohmann/json.hpp>

#include "builtin_workloads.hpp"
#include "troupe/gpu/model_workload.hpp"

namespace troupe::gpu::internal {

workload_registry::factory transformer_factory(std::shared_ptr<data_cache> cache) {
  return [cache = std::move(cache)](context& ctx, const workload_config& cfg) {
    std::vector<core::error> faults;
    const auto options = read_transformer_options(*cfg.options, "/workload", faults);
    check_model_hyperparameters(options.optimizer, cfg.hp, "", faults);
    refuse(faults);
    trained_model what;
    what.kind = "transformer";
    what.architecture = options.network.describe();
    what.variant = to_string(options.network.precision);
    what.how.make = transformer::factory(options.network);
    what.how.optimizer = options.optimizer;
    what.how.batch = options.batch;
    what.how.data = resident(ctx, options.data, *cache);
    return make_model_workload(ctx, cfg, std::move(what));
  };
}

workload_registry::checker transformer_checker() {
  return [](const nlohmann::json& options, const core::hyperparameters& hp, std::string_view where,
            std::vector<core::error>& faults) {
    const std::string at(where);
    const auto before = faults.size();
    const auto read = read_transformer_options(options, at + "/workload", faults);
    if (faults.size() == before)
      if (const auto text = read.data.missing_files(); !text.empty())
        faults.push_back({core::errc::not_found, at + "/workload/data: " + text});
    check_model_hyperparameters(read.optimizer, hp, where, faults);
  };
}

} // namespace troupe::gpu::internal
