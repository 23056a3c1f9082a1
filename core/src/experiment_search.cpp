#include "experiment_search.hpp"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "json_path.hpp"
#include "object_reader.hpp"

namespace troupe::core::internal {

namespace {

/// All values of a domain, or `points` of them at equal distances on its scale, ends included.
std::vector<value> values_of(const domain& d, std::uint64_t points) {
  if (auto* choice = std::get_if<choice_domain>(&d))
    return choice->values;
  std::vector<value> out;
  for (std::uint64_t i = 0; i < points; ++i) {
    auto x = value_at(d, points == 1 ? 0.5 : static_cast<double>(i) / static_cast<double>(points - 1));
    if (out.empty() || out.back() != x) // a coarse domain has fewer
      out.push_back(std::move(x));
  }
  return out;
}

void read_grid_values(const json& j, const std::string& where, const search_space& space, grid& into,
                      std::vector<error>& faults) {
  if (!j.is_object() || j.empty()) {
    faults.push_back(fault_at(where, "must be an object of lists, such as {\"lr\": [0.1, 0.01]}"));
    return;
  }
  for (auto& [key, list] : j.items()) {
    auto at = json_child(where, key);
    if (!list.is_array() || list.empty()) {
      faults.push_back(fault_at(at, "must be a list of at least one value"));
      continue;
    }
    auto domain = space.domains().find(key);
    for (std::size_t i = 0; i < list.size(); ++i) {
      auto x = value_from_json(list[i], json_child(at, i));
      if (!x)
        faults.push_back(x.error());
      else if (domain != space.domains().end() && !unit_of(domain->second, *x))
        faults.push_back(fault_at(json_child(at, i), to_string(*x) + " is outside the search space"));
      else if (std::ranges::find(into[key], *x) != into[key].end())
        faults.push_back(fault_at(json_child(at, i), to_string(*x) + " is there twice"));
      else
        into[key].push_back(*std::move(x));
    }
  }
}

} // namespace

std::uint64_t read_search(const json& j, const std::string& where, const search_space& space,
                          const hyperparameters& fixed, grid& into, std::vector<error>& faults) {
  object_reader in{j, where, faults};
  if (!in.is_object())
    return 1;
  std::string type;
  in.text("type", type);
  std::uint64_t count = 1;
  if (type == "random") {
    in.whole("draws", count, 1, max_trainers);
    if (!in.has("draws"))
      in.fault("draws", "is missing: how many trainers to draw");
    if (space.empty())
      in.fault("type", "draws from the search space, and /search_space is missing");
  } else if (type == "grid") {
    std::uint64_t points = 1, repeats = 1;
    in.whole("points", points, 1, max_trainers);
    in.whole("repeats", repeats, 1, max_trainers);
    if (auto* values = in.raw("values"))
      read_grid_values(*values, in.pointer("values"), space, into, faults);
    for (auto& [key, values] : into)
      if (fixed.find(key))
        faults.push_back(fault_at(json_child(in.pointer("values"), key), "is given as a hyperparameter already"));
    for (auto& [key, d] : space.domains()) {
      if (into.contains(key) || fixed.find(key))
        continue;
      if (std::holds_alternative<choice_domain>(d) || in.has("points"))
        into[key] = values_of(d, points);
      else
        in.fault("points", "is missing: '" + key + "' is no list, so give points (how many values of each), or its values in \"values\"");
    }
    if (into.empty() && !in.has("values"))
      in.fault("values", "is missing, and there is no /search_space: a grid needs values");
    count = repeats;
    for (auto& [key, values] : into)
      count = std::min<std::uint64_t>(count * std::max<std::size_t>(values.size(), 1), max_trainers + 1);
  } else if (!in.has("type")) {
    in.fault("type", "is missing; known are \"grid\" and \"random\"");
  } else {
    in.fault("type", "'" + type + "' is no known search; known are \"grid\" and \"random\"");
  }
  in.finish();
  return count;
}

void take_point(const grid& points, std::uint64_t i, hyperparameters& into) {
  for (auto key = points.rbegin(); key != points.rend(); ++key) {
    into.set(key->first, key->second[i % key->second.size()]);
    i /= key->second.size();
  }
}

} // namespace troupe::core::internal
