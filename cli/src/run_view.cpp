#include "run_view.hpp"

#include <algorithm>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "text.hpp"

namespace troupe::cli {

using actors::trainer_info;
using actors::trainer_state;
using core::hyperparameters;

namespace {

std::string cell_of(const hyperparameters& hp, const std::string& key) {
  auto* x = hp.find(key);
  return x ? value_text(*x) : "";
}

std::string bar(std::uint64_t done, std::uint64_t all, std::size_t width) {
  auto full = all == 0 ? 0 : static_cast<std::size_t>(static_cast<double>(std::min(done, all)) / static_cast<double>(all) *
                                                      static_cast<double>(width));
  std::string out(full, '=');
  if (full < width)
    out += '>';
  return "[" + padded(out, width) + "]";
}

std::string states_text(const std::vector<trainer_info>& trainers) {
  std::map<trainer_state, std::size_t> counts;
  for (auto& t : trainers)
    ++counts[t.state];
  std::string out;
  for (auto& [state, n] : counts)
    out += (out.empty() ? "" : ", ") + std::to_string(n) + " " + std::string{to_string(state)};
  return out;
}

double loss_of(const trainer_info& t) { return t.newest ? t.newest->loss : std::numeric_limits<double>::quiet_NaN(); }
double accuracy_of(const trainer_info& t) { return t.newest ? t.newest->accuracy : std::numeric_limits<double>::quiet_NaN(); }

} // namespace

std::vector<std::string> telling_keys(const std::vector<const hyperparameters*>& xs) {
  std::set<std::string> keys;
  for (auto* hp : xs)
    for (auto& [key, x] : *hp)
      keys.insert(key);
  std::vector<std::string> out;
  for (auto& key : keys) {
    bool differs = xs.size() == 1;
    for (auto* hp : xs) {
      auto *a = hp->find(key), *b = xs.front()->find(key);
      differs = differs || !a != !b || (a && *a != *b);
    }
    if (differs && out.size() < 4)
      out.push_back(key);
  }
  return out;
}

std::vector<std::string> live_lines(const actors::run_status& s, std::size_t columns, std::size_t rows) {
  std::vector<std::string> out;
  auto head = s.experiment + "  " + seconds_text(s.seconds) + "  " + states_text(s.trainers);
  if (s.rounds > 0)
    head += "  " + count_text(s.rounds, "sync point", "sync points");
  out.push_back(shortened(head, columns));

  std::vector<const trainer_info*> shown;
  for (auto& t : s.trainers)
    shown.push_back(&t);
  auto room = std::max<std::size_t>(rows, 3) - 1;
  if (shown.size() > room) {
    std::ranges::stable_sort(shown, {}, [](auto* t) { return !is_live(t->state); });
    shown.resize(room - 1);
  }
  std::size_t name_width = 0, step_width = 0, state_width = 0;
  std::vector<const hyperparameters*> hps;
  auto steps = [](const trainer_info& t) { return std::to_string(t.step) + "/" + std::to_string(t.stop_step); };
  for (auto* t : shown) {
    name_width = std::max(name_width, std::min<std::size_t>(width_of(t->name), 20));
    step_width = std::max(step_width, steps(*t).size());
    state_width = std::max(state_width, to_string(t->state).size());
    hps.push_back(&t->hp);
  }
  auto keys = telling_keys(hps);
  std::size_t bar_width = columns < 100 ? 10 : 20; // what a trainer learns says more than a long bar
  for (auto* t : shown) {
    auto line = padded(shortened(t->name, name_width), name_width) + " " + bar(t->step, t->stop_step, bar_width) + " " +
                padded(steps(*t), step_width, true) + "  " + padded(to_string(t->state), state_width) + "  loss " +
                padded(metric_text(loss_of(*t)), 7) + "  acc " + padded(metric_text(accuracy_of(*t)), 6);
    for (auto& key : keys)
      if (auto text = cell_of(t->hp, key); !text.empty())
        line += "  " + key + " " + text;
    if (!t->slot.empty())
      line += "  on " + t->slot;
    out.push_back(shortened(line, columns));
  }
  if (shown.size() < s.trainers.size())
    out.push_back(shortened("… and " + count_text(s.trainers.size() - shown.size(), "more trainer", "more trainers"), columns));
  return out;
}

std::string progress_line(const actors::run_status& s) {
  double done = 0, all = 0;
  for (auto& t : s.trainers) {
    done += static_cast<double>(std::min(t.step, t.stop_step));
    all += static_cast<double>(t.stop_step);
  }
  return count_text(s.trainers.size(), "trainer", "trainers") + ": " + states_text(s.trainers) + "; " +
         std::to_string(static_cast<std::uint64_t>(done)) + " of " + std::to_string(static_cast<std::uint64_t>(all)) +
         " steps (" + std::to_string(all > 0 ? static_cast<int>(100 * done / all) : 100) + "%), " + seconds_text(s.seconds);
}

std::string decision_text(const core::decision& d, const hyperparameters& before,
                          const std::map<core::trainer_id, std::string>& names) {
  auto name = [&](core::trainer_id t) {
    auto i = names.find(t);
    return i == names.end() ? "trainer " + std::to_string(t) : i->second;
  };
  std::vector<std::string> parts;
  if (d.act == core::decision::action::stop)
    parts.push_back("stops");
  if (d.act == core::decision::action::hold)
    parts.push_back("is held");
  if (d.copy_from)
    parts.push_back("takes weights of " + name(*d.copy_from));
  if (!d.average_of.empty()) {
    std::string all;
    for (auto t : d.average_of)
      all += (all.empty() ? "" : ", ") + name(t);
    if (d.average_of.size() > 4)
      all = count_text(d.average_of.size(), "trainer", "trainers");
    parts.push_back("takes the mean of " + all);
  }
  for (auto& [key, x] : d.changes) {
    auto* old = before.find(key);
    parts.push_back(key + " " + (old ? value_text(*old) + " -> " : "= ") + value_text(x));
  }
  if (parts.empty())
    parts.push_back("goes on");
  std::string out;
  for (auto& part : parts)
    out += (out.empty() ? "" : "; ") + part;
  return d.reason.empty() ? out : out + " (" + d.reason + ")";
}

std::string sync_point_text(const actors::sync_point_event& e) {
  std::uint64_t step = 0;
  std::vector<const hyperparameters*> hps;
  for (auto& m : e.reports) {
    step = std::max(step, m.step);
    hps.push_back(&m.hp);
  }
  auto keys = telling_keys(hps);
  std::vector<text_table::column> columns{{"trainer"}, {"step", true}, {"loss", true}, {"accuracy", true}};
  for (auto& key : keys)
    columns.push_back({key, true});
  for (auto* title : {"computing", "waiting", "parked"})
    columns.push_back({title, true});
  columns.push_back({"decision"});
  text_table table{std::move(columns)};
  const core::decision go_on;
  for (auto& m : e.reports) {
    auto d = e.decisions.find(m.trainer);
    std::vector<std::string> row{m.name, std::to_string(m.step), metric_text(m.loss), metric_text(m.accuracy)};
    for (auto& key : keys)
      row.push_back(cell_of(m.hp, key));
    for (double s : {m.compute_seconds, m.wait_seconds, m.sync_seconds})
      row.push_back(seconds_text(s));
    row.push_back(decision_text(d == e.decisions.end() ? go_on : d->second, m.hp, e.names));
    table.add(std::move(row));
  }
  return "sync point " + std::to_string(e.index) + " at step " + std::to_string(step) + "\n" + table.str(2);
}

namespace {

/// The columns that status and results share.
template <class Trainer, class Extra>
std::string trainers_table(const std::vector<Trainer>& trainers, std::vector<text_table::column> more, Extra extra) {
  std::vector<const hyperparameters*> hps;
  for (auto& t : trainers)
    hps.push_back(&t.hp);
  auto keys = telling_keys(hps);
  std::vector<text_table::column> columns{{"trainer"}, {"state"}, {"step", true}, {"loss", true}, {"accuracy", true}};
  for (auto& key : keys)
    columns.push_back({key, true});
  columns.push_back({"restarts", true});
  columns.insert(columns.end(), more.begin(), more.end());
  text_table table{std::move(columns)};
  for (auto& t : trainers) {
    std::vector<std::string> row{t.name, std::string{to_string(t.state)}, std::to_string(t.step) + "/" + std::to_string(t.stop_step),
                                 metric_text(loss_of(t)), metric_text(accuracy_of(t))};
    for (auto& key : keys)
      row.push_back(cell_of(t.hp, key));
    row.push_back(t.restarts ? std::to_string(t.restarts) : "");
    for (auto& cell : extra(t))
      row.push_back(cell);
    table.add(std::move(row));
  }
  return table.str(2);
}

} // namespace

std::string results_text(const std::vector<actors::trainer_summary>& trainers) {
  const bool barriers = std::any_of(trainers.begin(), trainers.end(), [](auto& t) { return t.barrier_seconds > 0; });
  return trainers_table(
      trainers, {{"computing", true}, {"barrier wait", true}, {"bound", true}, {"failure"}, {"reason"}},
      [barriers](const actors::trainer_summary& t) {
        return std::vector<std::string>{t.newest ? seconds_text(t.newest->compute_seconds) : "",
                                        barriers ? seconds_text(t.barrier_seconds) : "",
                                        barriers ? seconds_text(t.barrier_bound_seconds) : "", t.failure.text, t.reason};
      });
}

namespace {

std::string share_text(double part, double whole) {
  return whole > 0 ? std::to_string(static_cast<int>(100 * part / whole + 0.5)) + "%" : "-";
}

std::string memory_text(const actors::slot_info& s) {
  const auto budget = s.memory_budget > 0 ? bytes_text(s.memory_budget) : std::string{};
  if (!s.answered)
    return budget.empty() ? "" : "- of " + budget;
  return bytes_text(s.memory_used) + (budget.empty() ? "" : " of " + budget);
}

} // namespace

std::string slots_text(const std::vector<actors::slot_info>& slots) {
  text_table table{{{"slot"}, {"device"}, {"model"}, {"trainers", true}, {"running", true}, {"waiting", true}, {"busy", true},
                    {"steps", true}, {"fused", true}, {"memory", true}, {"pages out", true}, {"pages in", true}, {"note"}}};
  const bool fused = std::ranges::any_of(slots, [](auto& s) { return s.fused_steps > 0; });
  const bool pages = std::ranges::any_of(slots, [](auto& s) { return s.pages_out + s.pages_in > 0; });
  for (auto& s : slots) {
    const std::string note = !s.alive                    ? "lost"
                             : !s.answered               ? "no answer"
                             : s.capture_fault.empty() ? ""
                                                         : "steps are not captured: " + s.capture_fault;
    if (!s.answered) {
      table.add({s.name, s.device, s.model, "", "", "", "", "", "", memory_text(s), "", "", note});
      continue;
    }
    table.add({s.name, s.device, s.model, std::to_string(s.trainers), std::to_string(s.running), std::to_string(s.waiting),
               share_text(s.busy_seconds, s.busy_seconds + s.idle_seconds), std::to_string(s.steps),
               fused ? share_text(static_cast<double>(s.fused_steps), static_cast<double>(s.steps)) : "", memory_text(s),
               pages ? std::to_string(s.pages_out) : "", pages ? std::to_string(s.pages_in) : "", note});
  }
  return table.str(2);
}

std::string record_text(const actors::record_info& x) {
  if (x.held_back_seconds <= 0)
    return {};
  auto time = seconds_text(x.held_back_seconds);
  if (x.held_back == 0)
    return "the disk was slower than the reports and held trainers back for " + time + "\n";
  return "the disk is slower than the reports: " + count_text(x.unwritten, "waits", "wait") + " (" + bytes_text(x.unwritten_bytes) +
         "), and trainers wait with them; for " + time + " so far\n";
}

std::string status_text(const actors::run_status& s) {
  auto out = progress_line(s) + "\n" + record_text(s.record) + trainers_table(s.trainers, {{"slot"}, {"failure"}, {"reason"}}, [](const trainer_info& t) {
               return std::vector<std::string>{t.slot, t.failure.text, t.reason};
             });
  if (!s.slots.empty())
    out += "\n" + count_text(s.slots.size(), "slot", "slots") + "\n" + slots_text(s.slots);
  return out;
}

std::string event_text(std::string_view kind, const nlohmann::json& details) {
  auto text = [&](const char* key) {
    auto i = details.find(key);
    if (i == details.end())
      return std::string{};
    return i->is_string() ? i->get<std::string>() : i->dump();
  };
  auto who = text("name");
  if (who.empty() && details.contains("trainer"))
    who = "trainer " + text("trainer");
  auto with = [](std::string_view before, const std::string& x) { return x.empty() ? std::string{} : std::string{before} + x; };
  if (kind == "trainer_failed")
    return who + " failed" + with(" at step ", text("step")) + with(": ", text("reason")) +
           (text("final") == "true" ? "" : "; it is restarted");
  if (kind == "trainer_finished")
    return who + (text("stopped") == "true" ? " stopped" : " finished") + with(" at step ", text("step")) +
           with(" (", text("reason")) + (text("reason").empty() ? "" : ")");
  if (kind == "trainer_started" && text("incarnation") != "0")
    return who + " starts again" + with(" at step ", text("step"));
  if (kind == "gone_on")
    return details.contains("set") ? "goes on from checkpoint set " + text("set") + ", step " + text("step") : "begins at step 0";
  if (kind == "trainer_added")
    return who + " was added";
  if (kind == "node_lost" || kind == "slot_lost")
    return std::string{kind == "node_lost" ? "a worker process was lost" : "a slot was lost"} + with(": ", text("reason"));
  if (kind == "sync_note")
    return "sync point " + text("index") + ": " + text("text");
  // Whatever went wrong otherwise is worth a line as it is.
  if (auto reason = text("reason"); !reason.empty() && kind != "run_ended" && kind != "interrupted") {
    std::string words{kind};
    std::ranges::replace(words, '_', ' ');
    return words + with(" (", who) + (who.empty() ? "" : ")") + ": " + reason;
  }
  return {};
}

} // namespace troupe::cli
