#include "troupe/core/policy.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "json_path.hpp"
#include "object_reader.hpp"
#include "policies.hpp"
#include "troupe/core/suggest.hpp"

namespace troupe::core {

using internal::fault_at;
using internal::json;
using internal::object_reader;

// -- decisions as JSON -----

std::string_view to_string(decision::action x) noexcept {
  switch (x) {
  case decision::action::go_on:
    return "go_on";
  case decision::action::stop:
    return "stop";
  case decision::action::hold:
    return "hold";
  }
  return "unknown";
}

json to_json(const decision& x) {
  json out;
  out["action"] = std::string{to_string(x.act)};
  if (!x.changes.empty())
    out["changes"] = to_json(x.changes);
  if (x.copy_from)
    out["copy_from"] = *x.copy_from;
  if (!x.average_of.empty())
    out["average_of"] = x.average_of;
  if (!x.reason.empty())
    out["reason"] = x.reason;
  return out;
}

result<decision> decision_from_json(const json& j, std::string_view where) {
  std::vector<error> faults;
  object_reader in{j, std::string{where}, faults};
  decision out;
  constexpr auto last = std::numeric_limits<trainer_id>::max();
  std::string action;
  in.text("action", action);
  if (action == "stop")
    out.act = decision::action::stop;
  else if (action == "hold")
    out.act = decision::action::hold;
  else if (in.is_object() && action != "go_on")
    in.fault("action", "must be \"go_on\", \"stop\" or \"hold\"");
  if (in.has("copy_from"))
    in.whole("copy_from", out.copy_from.emplace(), 0, last);
  if (const auto* donors = in.raw("average_of"); donors != nullptr && donors->is_array()) {
    for (std::size_t i = 0; i < donors->size(); ++i)
      if (const auto t = in.whole_number((*donors)[i], json_child(in.pointer("average_of"), i), 0, last))
        out.average_of.push_back(static_cast<trainer_id>(*t));
  } else if (donors != nullptr) {
    in.fault("average_of", "must be a list of trainers' numbers");
  }
  in.text("reason", out.reason);
  if (in.has("changes")) {
    auto changes = hyperparameters_from_json(*in.raw("changes"), in.pointer("changes"));
    if (changes)
      out.changes = std::move(*changes);
    else
      faults.push_back(changes.error());
  }
  in.finish();
  if (faults.empty())
    return out;
  std::string text;
  for (const auto& f : faults)
    text += (text.empty() ? "" : "; ") + f.text;
  return error{errc::invalid_argument, std::move(text)};
}

// -- the registry -----

void policy_registry::add(std::string type, factory make) {
  factories_.insert_or_assign(std::move(type), std::move(make));
}

std::unique_ptr<policy> policy_registry::make(std::string_view type, const json& options,
                                              const search_space& space,
                                              std::span<const std::string> trainer_names,
                                              std::string_view where, std::vector<error>& faults) const {
  const auto it = factories_.find(type);
  if (it != factories_.end())
    return it->second(options, space, trainer_names, where, faults);
  const auto known = names();
  faults.push_back(fault_at(json_child(where, "type"), "\"" + std::string{type} + "\" is no known policy" +
                                                           suggestion(type, std::span{known})));
  return nullptr;
}

std::vector<std::string> policy_registry::names() const {
  std::vector<std::string> out;
  for (const auto& [name, unused] : factories_)
    out.push_back(name);
  return out;
}

namespace {

class none_policy : public policy {
public:
  std::map<trainer_id, decision> decide(const policy_input&, random_stream&) const override { return {}; }
};

} // namespace

std::optional<trainer_id> trainer_named(const json& name, std::span<const std::string> trainer_names,
                                        std::string_view where, std::vector<error>& faults) {
  if (!name.is_string()) {
    faults.push_back(
        fault_at(where, "must be a trainer's name, but is " + std::string{internal::kind_of(name)}));
    return std::nullopt;
  }
  const auto& text = name.get_ref<const std::string&>();
  const auto it = std::find(trainer_names.begin(), trainer_names.end(), text);
  if (it != trainer_names.end())
    return static_cast<trainer_id>(it - trainer_names.begin());
  faults.push_back(fault_at(where, "\"" + text + "\" is no trainer" + suggestion(text, trainer_names)));
  return std::nullopt;
}

policy_registry builtin_policies() {
  policy_registry out;
  out.add("none",
          [](const json& options, const search_space&, std::span<const std::string>, std::string_view where,
             std::vector<error>& faults) -> std::unique_ptr<policy> {
            object_reader{options, std::string{where}, faults}.finish();
            return std::make_unique<none_policy>();
          });
  out.add("schedule", make_schedule);
  out.add("average", make_average);
  out.add("pbt", make_pbt);
  out.add("halving", make_halving);
  out.add("asha", make_asha);
  out.add("median", make_median);
  out.add("pb2", make_pb2);
  return out;
}

// -- sanitize -----

namespace {

void say(decision& d, const std::string& text) { d.reason += (d.reason.empty() ? "" : "; ") + text; }

/// Why `donor` cannot give weights to `to`; empty if it can.
std::string obstacle(const policy_input& in, trainer_id to, trainer_id donor) {
  const auto it = std::find_if(in.reports.begin(), in.reports.end(),
                               [donor](const metadata& m) { return m.trainer == donor; });
  if (it == in.reports.end())
    return "trainer " + std::to_string(donor) + " did not report";
  const auto name = it->name.empty() ? "trainer " + std::to_string(donor) : it->name;
  if (!std::isfinite(it->loss))
    return name + "'s loss is " + to_string(value{it->loss});
  if (signature_in(in, donor) != signature_in(in, to))
    return name + " is of another signature";
  return {};
}

void check_copy(const policy_input& in, trainer_id t, decision& d) {
  const auto why = *d.copy_from == t ? std::string{"it is its own donor"} : obstacle(in, t, *d.copy_from);
  if (why.empty()) {
    if (!d.average_of.empty())
      say(d, "no average: it copies another's weights");
    d.average_of.clear();
    return;
  }
  say(d, "no copy: " + why);
  d.copy_from.reset();
  if (d.average_of.empty())
    d.changes = {};
}

void check_average(const policy_input& in, trainer_id t, decision& d) {
  std::vector<trainer_id> donors;
  for (const auto donor : d.average_of) {
    if (std::find(donors.begin(), donors.end(), donor) != donors.end())
      continue;
    if (const auto why = obstacle(in, t, donor); why.empty())
      donors.push_back(donor);
    else
      say(d, "left out of the average: " + why);
  }
  d.average_of = std::move(donors);
  if (!d.average_of.empty() && d.average_of != std::vector{t})
    return;
  say(d, "no average: nobody is left to average with");
  d.average_of.clear();
  d.changes = {};
}

} // namespace

void sanitize(std::map<trainer_id, decision>& decisions, const policy_input& in) {
  std::erase_if(decisions, [&in](const auto& entry) {
    const auto t = entry.first;
    if (t < in.standing.size() && in.standing[t] == trainer_standing::held)
      return false;
    const bool reported =
        std::any_of(in.reports.begin(), in.reports.end(), [t](const metadata& m) { return m.trainer == t; });
    return !reported || (in.only && *in.only != t);
  });
  for (auto& [t, d] : decisions) {
    if (d.act != decision::action::go_on) {
      d.copy_from.reset();
      d.average_of.clear();
      d.changes = {};
      continue;
    }
    if (d.copy_from)
      check_copy(in, t, d);
    if (!d.average_of.empty())
      check_average(in, t, d);
  }
}

} // namespace troupe::core
