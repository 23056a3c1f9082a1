#include <algorithm>
#include <ostream>

#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "run_view.hpp"
#include "text.hpp"
#include "troupe/core/run_reader.hpp"

namespace troupe::cli {

namespace {

/// A recorded sync point as a running one tells it; nullopt: the line is not of this version.
std::optional<actors::sync_point_event> sync_point_of(nlohmann::json& line) {
  actors::sync_point_event out;
  auto take = [&](nlohmann::json& entry) {
    auto t = entry.find("trainer");
    auto d = entry.find("decision");
    if (t == entry.end() || !t->is_number_unsigned() || d == entry.end())
      return false;
    auto decision = core::decision_from_json(*d, "/decision");
    if (!decision)
      return false;
    out.decisions.emplace(t->get<core::trainer_id>(), *std::move(decision));
    entry.erase("decision");
    return true;
  };
  auto index = line.find("index"), trainers = line.find("trainers");
  if (index == line.end() || !index->is_number_unsigned() || trainers == line.end() || !trainers->is_array())
    return std::nullopt;
  out.index = index->get<core::sync_index>();
  for (auto& entry : *trainers) {
    if (!entry.is_object() || !take(entry))
      return std::nullopt;
    auto m = core::metadata_from_json(entry, "");
    if (!m)
      return std::nullopt;
    out.names.emplace(m->trainer, m->name);
    out.reports.push_back(*std::move(m));
  }
  return out;
}

std::string state_of(const core::run_record& run, bool in_use) {
  if (in_use)
    return "is going on";
  if (run.outcome == "done")
    return "is done";
  if (run.outcome == "failed")
    return "failed" + (run.outcome_reason.empty() ? "" : ": " + run.outcome_reason);
  return "was interrupted; go on with `troupe resume`";
}

std::string state_of(const core::trainer_record& t) {
  return t.stopped ? "stopped" : std::string{to_string(t.state)};
}

std::string trainers_text(const std::vector<core::trainer_record>& trainers) {
  text_table table{{{"trainer"}, {"state"}, {"step", true}, {"loss", true}, {"accuracy", true}, {"hyperparameters"}, {"reason"}}};
  for (auto& t : trainers)
    table.add({t.name.empty() ? "trainer " + std::to_string(t.trainer) : t.name, state_of(t), std::to_string(t.step),
               t.last ? metric_text(t.last->loss) : "", t.last ? metric_text(t.last->accuracy) : "",
               t.last ? hyperparameters_text(t.last->hp) : "", t.reason});
  return table.str(2);
}

nlohmann::json as_json(const core::run_record& run, const std::string& path, bool in_use) {
  nlohmann::json out{{"kind", "run"},           {"directory", path},          {"outcome", run.outcome},
                     {"reason", run.outcome_reason}, {"live", in_use}, {"trainers", nlohmann::json::array()},
                     {"checkpoint_sets", nlohmann::json::array()}};
  if (run.last_sync)
    out["last_sync"] = *run.last_sync;
  for (auto& t : run.trainers) {
    nlohmann::json x{{"trainer", t.trainer}, {"name", t.name}, {"state", state_of(t)}, {"step", t.step},
                     {"incarnation", t.incarnation}, {"reason", t.reason}};
    if (t.last)
      x["metadata"] = to_json(*t.last);
    out["trainers"].push_back(std::move(x));
  }
  for (auto& s : run.sets)
    out["checkpoint_sets"].push_back(to_json(s.set));
  return out;
}

} // namespace

int show_run(const show_arguments& a, output to) {
  auto run = core::read_run(a.run);
  if (!run) {
    if (a.json)
      print_json(to.out, failed_result(run.error().text));
    else
      to.err << "troupe: " << run.error().text << "\n";
    return run.error().code == core::errc::not_found ? exit_wrong_use : exit_failed;
  }
  bool in_use = core::is_run_in_use(a.run);
  if (a.json) {
    print_json(to.out, as_json(*run, a.run, in_use));
    return exit_done;
  }
  to.out << a.run << " " << state_of(*run, in_use) << "\n\n";
  auto shown = core::visit_run(a.run, [&](std::string_view kind, nlohmann::json& line) {
    if (kind != "sync_point")
      return;
    if (auto e = sync_point_of(line))
      to.out << sync_point_text(*e) << "\n";
  });
  if (!shown && shown.error().code != core::errc::not_found) { // a run cut off at its very beginning has no record
    to.err << "troupe: " << shown.error().text << "\n";
    return exit_failed;
  }
  to.out << "trainers\n" << trainers_text(run->trainers);
  if (!run->sets.empty()) {
    auto& newest = run->sets.back().set;
    to.out << "\nnewest checkpoints: " << a.run << "/checkpoints/" << newest.number;
    if (newest.sync)
      to.out << " (after sync point " << *newest.sync << ")";
    to.out << "\n";
  }
  return exit_done;
}

} // namespace troupe::cli
