#include "builtin_model.hpp"
#include "troupe/gpu/network.hpp"

namespace troupe::gpu::internal {

namespace {

auto reader(model_kind kind) {
  return [kind](const nlohmann::json& options, std::string_view where, std::vector<core::error>& faults) {
    return read_model_options(kind, options, where, faults);
  };
}

} // namespace

workload_registry::factory model_factory(model_kind kind, std::shared_ptr<data_cache> cache) {
  return builtin_model_factory<network>(kind == model_kind::mlp ? "mlp" : "cnn", reader(kind), std::move(cache));
}

workload_registry::checker model_checker(model_kind kind) {
  return builtin_model_checker(reader(kind));
}

} // namespace troupe::gpu::internal
