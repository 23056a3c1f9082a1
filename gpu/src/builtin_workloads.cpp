#include "builtin_workloads.hpp"

namespace troupe::gpu {

workload_registry builtin_workloads() {
  auto cache = std::make_shared<data_cache>();
  workload_registry out;
  out.add("mlp", internal::model_factory(internal::model_kind::mlp, cache), internal::model_checker(internal::model_kind::mlp));
  out.add("cnn", internal::model_factory(internal::model_kind::cnn, cache), internal::model_checker(internal::model_kind::cnn));
  out.add("idle", internal::idle_factory(), internal::idle_checker());
  return out;
}

} // namespace troupe::gpu
