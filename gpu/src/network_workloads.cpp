#include <filesystem>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "builtin_workloads.hpp"
#include "option_reader.hpp"
#include "troupe/gpu/model_workload.hpp"

namespace troupe::gpu::internal {

namespace {

/// The first of Fashion-MNIST's files that is not there, else empty.
std::string missing_file(const data_spec& spec) {
  if (spec.type != "fashion_mnist")
    return {};
  const auto folder = spec.path.empty() ? fashion_mnist_folder() : spec.path;
  for (const auto* name : {"train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz",
                           "t10k-labels-idx1-ubyte.gz"}) {
    std::error_code ignored;
    if (!std::filesystem::exists(folder + "/" + name, ignored))
      return folder + "/" + name;
  }
  return {};
}

std::shared_ptr<const resident_data> resident(context& ctx, const data_spec& spec, data_cache& cache) {
  auto data = cache.get(spec);
  if (!data)
    throw std::runtime_error(data.error().text);
  return cache.resident(ctx, *data);
}

} // namespace

workload_registry::factory model_factory(model_kind kind, std::shared_ptr<data_cache> cache) {
  return [kind, cache = std::move(cache)](context& ctx, const workload_config& cfg) {
    std::vector<core::error> faults;
    const auto options = read_model_options(kind, *cfg.options, "/workload", faults);
    check_model_hyperparameters(options.optimizer, cfg.hp, "", faults);
    if (!faults.empty()) {
      std::string all;
      for (const auto& f : faults)
        all += (all.empty() ? "" : "; ") + f.text;
      throw std::invalid_argument(all);
    }
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
      if (const auto file = missing_file(read.data); !file.empty())
        faults.push_back({core::errc::not_found,
                          at + "/workload/data: " + file + " is not there: install Debian's package dataset-fashion-mnist, or set "
                            "TROUPE_DATA_DIR to the folder that holds fashion-mnist/"});
    check_model_hyperparameters(read.optimizer, hp, where, faults);
  };
}

} // namespace troupe::gpu::internal
