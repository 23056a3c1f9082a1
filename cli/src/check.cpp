#include <ostream>

#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "slots.hpp"
#include "text.hpp"

namespace troupe::cli {

namespace {

std::string schedule_text(const core::sync_options& sync) {
  auto& s = sync.schedule;
  std::string out;
  if (s.every_steps > 0)
    out = "every " + count_text(s.every_steps, "step", "steps");
  if (!s.at_steps.empty()) {
    out += out.empty() ? "at" : " and at";
    for (std::size_t i = 0; i < s.at_steps.size() && i < 8; ++i)
      out += " " + std::to_string(s.at_steps[i]);
    if (s.at_steps.size() > 8)
      out += " …";
  }
  if (s.every_seconds > 0)
    out = "every " + seconds_text(s.every_seconds);
  if (out.empty())
    return "no sync points";
  return "sync points " + out + (sync.asynchronous ? ", asynchronous" : "");
}

} // namespace

int check_experiment(const check_arguments& a, const registries& with, output to) {
  auto loaded = load_experiment(a.experiment, std::nullopt, with);
  if (auto* exp = std::get_if<core::experiment>(&loaded))
    if (auto faults = check_own_pins(*exp); !faults.empty())
      loaded = std::move(faults);
  if (auto* faults = std::get_if<std::vector<core::error>>(&loaded)) {
    if (a.json) {
      nlohmann::json out{{"kind", "check"}, {"ok", false}};
      for (auto& e : *faults)
        out["faults"].push_back(e.text);
      print_json(to.out, out);
    } else {
      print_faults(to.err, a.experiment, *faults);
    }
    return exit_wrong_use;
  }
  auto& exp = std::get<core::experiment>(loaded);
  if (a.json) {
    // Everything spelled out, with what was drawn.
    print_json(to.out, {{"kind", "check"}, {"ok", true}, {"experiment", nlohmann::json::parse(core::experiment_text(exp))}});
    return exit_done;
  }
  to.out << a.experiment << " is right: " << exp.name << ", " << count_text(exp.trainers.size(), "trainer", "trainers") << ", "
         << schedule_text(exp.sync) << ", policy " << exp.policy_type << "\n";
  text_table table{{{"trainer"}, {"workload"}, {"steps", true}, {"slot"}, {"hyperparameters"}}};
  constexpr std::size_t shown = 20;
  for (std::size_t i = 0; i < exp.trainers.size() && i < shown; ++i) {
    auto& t = exp.trainers[i];
    table.add({t.name, t.workload_type, std::to_string(t.stop_step), t.slot, hyperparameters_text(t.hp)});
  }
  to.out << table.str(2);
  if (exp.trainers.size() > shown)
    to.out << "  … and " << count_text(exp.trainers.size() - shown, "more trainer", "more trainers") << "\n";
  return exit_done;
}

} // namespace troupe::cli
