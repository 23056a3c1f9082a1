#include "builtin_model.hpp"
#include "troupe/gpu/transformer.hpp"

namespace troupe::gpu::internal {

workload_registry::factory transformer_factory(std::shared_ptr<data_cache> cache) {
  return builtin_model_factory<transformer>("transformer", read_transformer_options, std::move(cache));
}

workload_registry::checker transformer_checker() {
  return builtin_model_checker(read_transformer_options);
}

} // namespace troupe::gpu::internal
