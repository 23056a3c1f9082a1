#include <nlohmann/json.hpp>

#include "troupe/core/experiment.hpp"

namespace troupe::core {

namespace {

using json = nlohmann::ordered_json;

json ordered(const nlohmann::json& j) { return json::parse(j.dump()); }

json of_text(const std::string& object) {
  auto j = json::parse(object.empty() ? "{}" : object, nullptr, false);
  return j.is_object() ? j : json::object();
}

struct domain_writer {
  json operator()(const uniform_domain& d) const {
    json out{{"type", "uniform"}, {"low", d.low}, {"high", d.high}};
    if (d.quantum > 0)
      out["quantum"] = d.quantum;
    return out;
  }
  json operator()(const log_uniform_domain& d) const { return {{"type", "log_uniform"}, {"low", d.low}, {"high", d.high}}; }
  json operator()(const integer_domain& d) const {
    return {{"type", "integer"}, {"low", d.low}, {"high", d.high}, {"log", d.log}};
  }
  json operator()(const choice_domain& d) const {
    json out{{"type", "choice"}, {"values", json::array()}, {"ordered", d.ordered}};
    for (auto& x : d.values)
      out["values"].push_back(ordered(to_json(x)));
    return out;
  }
};

json trainer(const trainer_spec& t) {
  json out{{"name", t.name}, {"workload", {{"type", t.workload_type}}}};
  out["workload"].update(of_text(t.workload_options));
  out["hyperparameters"] = ordered(to_json(t.hp));
  out["seed"] = t.seed;
  out["stop_step"] = t.stop_step;
  if (!t.slot.empty())
    out["slot"] = t.slot;
  if (t.priority != 0)
    out["priority"] = t.priority;
  if (!t.stop.empty())
    out["stop"] = ordered(to_json(t.stop));
  return out;
}

json sync(const sync_options& s) {
  auto out = json::object();
  if (s.schedule.every_steps > 0)
    out["every_steps"] = s.schedule.every_steps;
  if (!s.schedule.at_steps.empty())
    out["at_steps"] = s.schedule.at_steps;
  if (s.schedule.every_seconds > 0)
    out["every_seconds"] = s.schedule.every_seconds;
  out["asynchronous"] = s.asynchronous;
  out["quorum"] = s.quorum;
  out["deadline_seconds"] = s.deadline_seconds;
  out["stragglers"] = std::string{to_string(s.stragglers)};
  return out;
}

json slot(const slot_request& r) {
  json out{{"device", r.device}, {"count", r.count}, {"capture", r.capture}};
  if (r.milli_share > 0)
    out["milli_share"] = r.milli_share;
  if (r.memory_bytes > 0)
    out["memory_bytes"] = r.memory_bytes;
  if (r.pinned_bytes > 0)
    out["pinned_bytes"] = r.pinned_bytes;
  return out;
}

} // namespace

std::string experiment_text(const experiment& x) {
  json out{{"name", x.name}, {"seed", x.seed}};
  auto& trainers = out["trainers"] = json::array();
  for (auto& t : x.trainers)
    trainers.push_back(trainer(t));
  out["sync"] = sync(x.sync);
  if (!x.space.empty())
    for (auto& [key, d] : x.space.domains())
      out["search_space"][key] = std::visit(domain_writer{}, d);
  out["policy"] = {{"type", x.policy_type}};
  out["policy"].update(of_text(x.policy_options));
  out["checkpoints"] = {{"every_syncs", x.checkpoints.every_syncs},
                        {"every_seconds", x.checkpoints.every_seconds},
                        {"keep", x.checkpoints.keep}};
  out["record"] = {{"max_unwritten", x.record.max_unwritten}, {"max_unwritten_bytes", x.record.max_unwritten_bytes}};
  out["failures"] = {{"max_restarts", x.failures.max_restarts},
                     {"fail_fast", x.failures.fail_fast},
                     {"refill", x.failures.refill}};
  if (!x.stop.empty())
    out["stop"] = ordered(to_json(x.stop));
  for (auto& r : x.slots)
    out["slots"].push_back(slot(r));
  out["quantum_ms"] = x.quantum_ms;
  out["fusion"] = x.fusion;
  out["rebalance"] = x.rebalance;
  out["math"] = x.math;
  return out.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

} // namespace troupe::core
