#include <algorithm>
#include <ostream>

#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "control.hpp"
#include "files.hpp"
#include "run_view.hpp"
#include "text.hpp"
#include "troupe/actors/slot_json.hpp"
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
  return "was interrupted" + (run.outcome_reason.empty() ? "" : ": " + run.outcome_reason) + "; go on with `troupe resume`";
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
    if (s.missing.empty())
      out["checkpoint_sets"].push_back(to_json(s.set));
  return out;
}

/// What was kept of the run's slots, with when that was.
struct kept_slots {
  std::string time;
  bool at_end = false;
  nlohmann::json list;
  std::vector<actors::slot_info> slots;
};

/// nullopt: nothing was kept.
core::result<std::optional<kept_slots>> slots_of(const std::string& run) {
  auto kept = core::read_slots(run);
  if (!kept && kept.error().code == core::errc::not_found)
    return std::optional<kept_slots>{};
  if (!kept)
    return kept.error();
  kept_slots out{(*kept)["time"].get<std::string>(), (*kept)["at_end"].get<bool>(), (*kept)["slots"], {}};
  try {
    for (const auto& x : out.list)
      out.slots.push_back(actors::slot_from_json(x));
  } catch (const nlohmann::json::exception& e) {
    return core::error{core::errc::io, "the slots kept in '" + run + "' are not understood: " + e.what()};
  }
  return std::optional{std::move(out)};
}

std::string text_of(const kept_slots& x) {
  return "\n" + count_text(x.slots.size(), "slot", "slots") +
         (x.at_end ? " when the run ended, " + x.time : " as of " + x.time + ": what they did after it was not kept") + "\n" +
         slots_text(x.slots);
}

} // namespace

int show_run(const show_arguments& a, output to) {
  const auto complain = [&](const core::error& e) {
    if (a.json)
      print_json(to.out, failed_result(e.text));
    else
      to.err << "troupe: " << e.text << "\n";
    return status_of_refusal(e.code);
  };
  if (auto ok = check_run_directory(a.run); !ok)
    return complain(ok.error());
  auto run = core::read_run(a.run);
  if (!run)
    return complain(run.error());
  bool in_use = core::is_run_in_use(a.run);
  std::optional<kept_slots> slots;
  if (a.slots) {
    auto kept = slots_of(a.run);
    if (kept)
      slots = *std::move(kept);
    else
      to.err << "troupe: " << kept.error().text << "\n"; // the rest is worth seeing all the same
  }
  if (a.json) {
    auto out = as_json(*run, a.run, in_use);
    if (slots) {
      out["slots"] = slots->list;
      out["slots_time"] = slots->time;
      out["slots_at_end"] = slots->at_end;
    }
    print_json(to.out, out);
    return exit_done;
  }
  to.out << a.run << " " << state_of(*run, in_use) << "\n\n";
  auto shown = core::visit_run(a.run, [&](std::string_view kind, nlohmann::json& line) {
    if (kind != "sync_point")
      return;
    if (auto e = sync_point_of(line))
      to.out << sync_point_text(*e) << "\n";
  });
  if (!shown && shown.error().code != core::errc::not_found) // a run cut off at its very beginning has no record
    return complain(shown.error());
  to.out << "trainers\n" << trainers_text(run->trainers);
  if (!run->sets.empty()) {
    auto& newest = run->sets.back().set;
    to.out << "\nnewest checkpoints: " << a.run << "/checkpoints/" << newest.number;
    if (newest.sync)
      to.out << " (after sync point " << *newest.sync << ")";
    to.out << "\n";
  }
  if (slots && !slots->slots.empty())
    to.out << text_of(*slots);
  return exit_done;
}

} // namespace troupe::cli
