#include <nlohmann/json.hpp>

#include "troupe/gpu/dataset.hpp"

namespace troupe::gpu {

bool anchor_data_path(nlohmann::ordered_json& workload, const std::string& folder) {
  if (!workload.is_object())
    return false;
  const auto data = workload.find("data");
  if (data == workload.end() || !data->is_object())
    return false;
  const auto path = data->find("path");
  if (path == data->end() || !path->is_string())
    return false;
  const auto& text = path->get_ref<const std::string&>();
  if (text.empty() || text.front() == '/')
    return false;
  *path = folder + (folder.ends_with('/') ? "" : "/") + text;
  return true;
}

} // namespace troupe::gpu
