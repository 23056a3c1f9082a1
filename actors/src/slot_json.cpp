#include "troupe/actors/slot_json.hpp"

#include <nlohmann/json.hpp>

namespace troupe::actors {

using nlohmann::json;

namespace {

/// What is known of a slot whose process has answered: f(key, a reference to it), for one that is written and for one that is read.
template <class Slot, class F>
void each_counter(Slot& s, F f) {
  f("trainers", s.trainers);
  f("running", s.running);
  f("waiting", s.waiting);
  f("steps", s.steps);
  f("slices", s.slices);
  f("fused_steps", s.fused_steps);
  f("fused_slices", s.fused_slices);
  f("fused_members", s.fused_members);
  f("busy_seconds", s.busy_seconds);
  f("idle_seconds", s.idle_seconds);
  f("memory_used", s.memory_used);
  f("memory_peak", s.memory_peak);
  f("pinned_used", s.pinned_used);
  f("pinned_budget", s.pinned_budget);
  f("pages_out", s.pages_out);
  f("pages_in", s.pages_in);
  f("paged_bytes", s.paged_bytes);
  f("staged_bytes", s.staged_bytes);
  f("slot_copies", s.slot_copies);
  f("slot_copied_bytes", s.slot_copied_bytes);
  f("captures", s.captures);
  f("launches", s.launches);
}

} // namespace

json to_json(const slot_info& s) {
  json x{{"slot", s.name},   {"node", s.node},   {"device", s.device},       {"device_id", s.device_id},
         {"model", s.model}, {"alive", s.alive}, {"answered", s.answered}, {"memory_budget", s.memory_budget}};
  if (s.answered)
    each_counter(s, [&x](const char* key, auto value) { x[key] = value; });
  if (!s.capture_fault.empty())
    x["capture_fault"] = s.capture_fault;
  return x;
}

slot_info slot_from_json(const json& x) {
  slot_info s;
  s.name = x.at("slot").get<std::string>();
  s.node = x.at("node").get<std::uint32_t>();
  s.device = x.at("device").get<std::string>();
  s.device_id = x.at("device_id").get<std::string>();
  s.model = x.at("model").get<std::string>();
  s.alive = x.at("alive").get<bool>();
  s.answered = x.at("answered").get<bool>();
  s.memory_budget = x.at("memory_budget").get<std::uint64_t>();
  if (!s.answered)
    return s;
  each_counter(s, [&x](const char* key, auto& to) { x.at(key).get_to(to); });
  s.capture_fault = x.value("capture_fault", std::string{});
  return s;
}

} // namespace troupe::actors
