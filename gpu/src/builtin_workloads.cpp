#include "builtin_workloads.hpp"

#include <stdexcept>

namespace troupe::gpu {

void internal::refuse(const std::vector<core::error>& faults) {
  std::string all;
  for (const auto& f : faults)
    all += (all.empty() ? "" : "; ") + f.text;
  if (!faults.empty())
    throw std::invalid_argument(all);
}

std::shared_ptr<const resident_data> internal::resident(context& ctx, const data_spec& spec, data_cache& cache) {
  auto data = cache.get(spec);
  if (!data)
    throw std::runtime_error(data.error().text);
  return cache.resident(ctx, *data, data_place::where_it_fits);
}

workload_registry builtin_workloads() {
  auto cache = std::make_shared<data_cache>();
  workload_registry out;
  out.add("mlp", internal::model_factory(internal::model_kind::mlp, cache), internal::model_checker(internal::model_kind::mlp));
  out.add("cnn", internal::model_factory(internal::model_kind::cnn, cache), internal::model_checker(internal::model_kind::cnn));
  out.add("transformer", internal::transformer_factory(cache), internal::transformer_checker());
  out.add("idle", internal::idle_factory(), internal::idle_checker());
  return out;
}

} // namespace troupe::gpu
