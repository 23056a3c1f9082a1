#include <nlohmann/json.hpp>

#include "builtin_workloads.hpp"
#include "option_reader.hpp"
#include "troupe/gpu/model_workload.hpp"

namespace troupe::gpu::internal {

workload_registry::factory model_factory(model_kind kind, std::shared_ptr<data_cache> cache) {
  return [kind, cache = std::move(cache)](context& ctx, const workload_config& cfg) {
    std::vector<core::error> faults;
    const auto options = read_model_options(kind, *cfg.options, "/workload", faults);
    check_model_hyperparameters(options.optimizer, cfg.hp, "", faults);
    refuse(faults);
    trained_model what;
    what.kind = kind == model_kind::mlp ? "mlp" : "cnn";
    what.architecture = options.network.describe();
    what.variant = to_string(options.network.precision);
    what.how.make = network::factory(options.network);
    what.how.optimizer = options.optimizer;
    what.how.batch = options.batch;
    what.how.data = resident(ctx, options.data, *cache);
    return make_model_workload(ctx, cfg, std::move(what));
  };
}

workload_registry::checker model_checker(model_kind kind) {
  return [kind](const nlohmann::json& options, const core::hyperparameters& hp, std::string_view where,
                std::vector<core::error>& faults) {
    const std::string at(where);
    const auto before = faults.size();
    const auto read = read_model_options(kind, options, at + "/workload", faults);
    if (faults.size() == before)
      if (const auto text = read.data.missing_files(); !text.empty())
        faults.push_back({core::errc::not_found, at + "/workload/data: " + text});
    check_model_hyperparameters(read.optimizer, hp, where, faults);
  };
}

} // namespace troupe::gpu::internal
