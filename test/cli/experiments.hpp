#pragma once

#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

/// Experiments that the command is tried with, and its answers as JSON.

inline bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

inline std::vector<nlohmann::json> lines_of(const std::string& text) {
  std::vector<nlohmann::json> out;
  std::istringstream in{text};
  for (std::string line; std::getline(in, line);)
    out.push_back(nlohmann::json::parse(line));
  return out;
}

inline std::vector<nlohmann::json> of_kind(const std::vector<nlohmann::json>& lines, const std::string& kind) {
  std::vector<nlohmann::json> out;
  for (auto& line : lines)
    if (line["kind"] == kind)
      out.push_back(line);
  return out;
}

/// Three trainers that meet at steps 100 and 200, hand weights over and end at 300.
inline std::string short_experiment() {
  return R"({
    "name": "short", "seed": 3,
    "defaults": {"workload": {"type": "idle"}, "stop_step": 300},
    "trainers": [{"name": "a", "hyperparameters": {"lr": 0.0001}}, {"name": "b", "hyperparameters": {"lr": 0.001}},
                 {"name": "c", "hyperparameters": {"lr": 0.002}}],
    "search_space": {"lr": {"type": "log_uniform", "low": 0.0001, "high": 0.01}},
    "sync": {"at_steps": [100, 200]},
    "policy": {"type": "pbt", "metric": "accuracy", "quantile": 0.34}})";
}

/// Two trainers that go on until they are told to stop.
inline std::string endless_experiment() {
  return R"({
    "name": "endless",
    "defaults": {"workload": {"type": "idle", "step_us": 100}, "stop_step": 1000000000, "hyperparameters": {"lr": 0.001}},
    "trainers": [{"name": "a"}, {"name": "b"}],
    "sync": {"every_steps": 50}})";
}
