#pragma once

#include <memory>

#include "model_options.hpp"
#include "troupe/gpu/workload.hpp"

namespace troupe::gpu::internal {

/// What factories share: throws `std::invalid_argument` with all faults' texts if there are any; loads or makes a data set and
/// brings it to the context's device.
void refuse(const std::vector<core::error>& faults);
std::shared_ptr<const resident_data> resident(context& ctx, const data_spec& spec, data_cache& cache);

/// The factory and checker of "mlp" or "cnn". Workloads made by it share `cache`'s data sets.
workload_registry::factory model_factory(model_kind kind, std::shared_ptr<data_cache> cache);
workload_registry::checker model_checker(model_kind kind);

/// Of "transformer".
workload_registry::factory transformer_factory(std::shared_ptr<data_cache> cache);
workload_registry::checker transformer_checker();

/// Of "idle".
workload_registry::factory idle_factory();
workload_registry::checker idle_checker();

} // namespace troupe::gpu::internal
