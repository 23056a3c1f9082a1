#include "troupe/core/stop_rules.hpp"

#include <cmath>
#include <limits>

#include "object_reader.hpp"
#include "policies.hpp"

namespace troupe::core {

using internal::json;
using internal::object_reader;

namespace {

constexpr double max_seconds = 1e9;
constexpr double largest = std::numeric_limits<double>::max();

void read_target(const json& j, const std::string& where, std::optional<metric_target>& into,
                 std::vector<error>& faults) {
  object_reader in{j, where, faults};
  if (!in.is_object())
    return;
  metric_target out;
  out.metric = "accuracy";
  in.text("metric", out.metric);
  if (out.metric.empty())
    in.fault("metric", "must name a number of the metadata, such as \"accuracy\" or \"loss\"");
  const bool least = in.has("at_least"), most = in.has("at_most");
  if (least == most)
    in.fault("at_least", least ? "cannot be combined with at_most" : "is missing: give at_least or at_most");
  out.at_least = least;
  in.real(least ? "at_least" : "at_most", out.value, -largest, largest);
  in.finish();
  into = std::move(out);
}

void read_plateau(const json& j, const std::string& where, std::optional<stop_rules::plateau_rule>& into,
                  std::vector<error>& faults) {
  object_reader in{j, where, faults};
  if (!in.is_object())
    return;
  stop_rules::plateau_rule out;
  objective by;
  read_objective(in, by);
  out.metric = by.metric;
  out.maximise = by.maximise;
  in.real("delta", out.delta, 0, largest);
  in.whole("patience", out.patience, 1, 1'000'000'000);
  in.finish();
  into = std::move(out);
}

json target_json(const metric_target& x) {
  return {{"metric", x.metric}, {x.at_least ? "at_least" : "at_most", x.value}};
}

} // namespace

bool metric_target::reached(const metadata& m) const {
  const auto x = m.number(metric);
  return std::isfinite(x) && (at_least ? x >= value : x <= value);
}

std::string metric_target::text() const {
  return metric + (at_least ? " >= " : " <= ") + shown_number(value);
}

std::optional<std::string> stop_watch::observe(const metadata& m) {
  if (seen_ && m.sync <= *seen_)
    return std::nullopt;
  seen_ = m.sync;
  if (m.step < rules_.burn_in_steps)
    return std::nullopt;
  if (rules_.target && rules_.target->reached(m))
    return "reached its target: " + rules_.target->metric + " " +
           shown_number(m.number(rules_.target->metric)) + (rules_.target->at_least ? " >= " : " <= ") +
           shown_number(rules_.target->value);
  if (!rules_.plateau)
    return std::nullopt;
  const auto& p = *rules_.plateau;
  const auto x = m.number(p.metric);
  if (std::isfinite(x) && (!best_ || (p.maximise ? x > *best_ + p.delta : x < *best_ - p.delta))) {
    best_ = x;
    without_ = 0;
    return std::nullopt;
  }
  if (++without_ < p.patience)
    return std::nullopt;
  return "is on a plateau: its best " + p.metric + " is " + (best_ ? shown_number(*best_) : "not finite") +
         " since " + std::to_string(without_) + (without_ == 1 ? " sync point" : " sync points");
}

void read_stop_rules(const json& j, std::string_view where, stop_rules& into, std::vector<error>& faults) {
  object_reader in{j, std::string{where}, faults};
  in.real("seconds", into.seconds, 0, max_seconds, true);
  if (const auto* x = in.raw("target"))
    read_target(*x, in.pointer("target"), into.target, faults);
  if (const auto* x = in.raw("plateau"))
    read_plateau(*x, in.pointer("plateau"), into.plateau, faults);
  in.whole("burn_in_steps", into.burn_in_steps, 0, std::uint64_t{1} << 53);
  in.finish();
}

void read_run_stop_rules(const json& j, std::string_view where, run_stop_rules& into,
                         std::vector<error>& faults) {
  object_reader in{j, std::string{where}, faults};
  in.real("seconds", into.seconds, 0, max_seconds, true);
  in.whole("steps", into.steps, 1, std::uint64_t{1} << 53);
  if (const auto* x = in.raw("target"))
    read_target(*x, in.pointer("target"), into.target, faults);
  in.finish();
}

json to_json(const stop_rules& x) {
  json out = json::object();
  if (x.seconds > 0)
    out["seconds"] = x.seconds;
  if (x.target)
    out["target"] = target_json(*x.target);
  if (x.plateau)
    out["plateau"] = {{"metric", x.plateau->metric},
                      {"mode", x.plateau->maximise ? "max" : "min"},
                      {"delta", x.plateau->delta},
                      {"patience", x.plateau->patience}};
  if (x.burn_in_steps > 0)
    out["burn_in_steps"] = x.burn_in_steps;
  return out;
}

json to_json(const run_stop_rules& x) {
  json out = json::object();
  if (x.seconds > 0)
    out["seconds"] = x.seconds;
  if (x.steps > 0)
    out["steps"] = x.steps;
  if (x.target)
    out["target"] = target_json(*x.target);
  return out;
}

} // namespace troupe::core
