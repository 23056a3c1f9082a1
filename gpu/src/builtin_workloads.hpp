#pragma once

#include <memory>

#include "model_options.hpp"
#include "troupe/gpu/workload.hpp"

namespace troupe::gpu::internal {

/// The factory and checker of "mlp" or "cnn". Workloads made by it share `cache`'s data sets.
workload_registry::factory model_factory(model_kind kind, std::shared_ptr<data_cache> cache);
workload_registry::checker model_checker(model_kind kind);

/// Of "idle".
workload_registry::factory idle_factory();
workload_registry::checker idle_checker();

} // namespace troupe::gpu::internal
