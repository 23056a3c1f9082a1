#include "resume.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "troupe/core/run_reader.hpp"

namespace troupe::actors::internal {

namespace {

/// What the record says up to a set, without what was done again after a crash.
template <class T>
class branch {
public:
  /// `read(line, into)` takes what it wants of a sync point's line.
  template <class Read>
  core::result<void> read(const std::string& directory, std::optional<std::uint32_t> set, Read read) {
    bool past = false;
    auto torn = core::visit_run(directory, [&](std::string_view kind, nlohmann::json& line) {
      if (past)
        return;
      if (kind == "sync_point") {
        read(line, items_);
      } else if (kind == "checkpoint_set") {
        const auto number = line.value("number", std::uint64_t{0});
        sizes_[number] = items_.size();
        past = set && number == *set;
      } else if (kind == "gone_on") {
        const auto from = line.find("set");
        const auto known = from != line.end() && from->is_number_unsigned()
                               ? sizes_.find(from->template get<std::uint64_t>())
                               : sizes_.end();
        items_.resize(known == sizes_.end() ? 0 : std::min(known->second, items_.size()));
      }
    });
    return torn ? core::result<void>{} : torn.error();
  }
  std::vector<T>& items() { return items_; }

private:
  std::vector<T> items_;
  std::map<std::uint64_t, std::size_t> sizes_;
};

struct past_decision {
  core::sync_index index = 0;
  core::trainer_id trainer = 0;
  std::uint64_t step = 0;
  bool reported = false; ///< at this sync point; else it was held
  core::decision what;
};

void read_decisions_of(nlohmann::json& line, std::vector<past_decision>& into) {
  const auto k = line.value("index", core::sync_index{0});
  for (const char* list : {"trainers", "others"})
    for (const auto& x : line.value(list, nlohmann::json::array())) {
      past_decision d{k, x.value("trainer", core::trainer_id{0}), x.value("step", std::uint64_t{0}),
                      std::string_view(list) == "trainers", {}};
      if (x.contains("decision"))
        if (auto what = core::decision_from_json(x["decision"], ""))
          d.what = std::move(*what);
      into.push_back(std::move(d));
    }
}

/// Up to the set that the run goes on from: who is held, and which hyperparameters a trainer is given again as it comes by.
core::result<void> read_decisions(const std::string& directory, resumed_run& out) {
  branch<past_decision> log;
  if (auto ok = log.read(directory, out.set, read_decisions_of); !ok)
    return ok;
  using action = core::decision::action;
  std::map<core::trainer_id, std::uint64_t> steps;
  core::sync_index newest = 0;
  out.last_sync.reset(); // the record may have later ones that were done again after a crash
  for (auto& x : log.items()) {
    newest = std::max(newest, x.index);
    out.last_sync = newest; // one may have been opened once more after it
    auto& standing = out.standing[x.trainer];
    if (x.reported) {
      steps[x.trainer] = x.step;
      standing.passed = x.index;
      standing.held_at = x.what.act == action::hold ? standing.passed : std::nullopt;
      standing.behind = standing.behind && x.index < newest;
    } else if (x.what.act == action::go_on && standing.held_at) {
      standing.held_at.reset();
      standing.behind = newest > *standing.passed;
    }
    if (x.what.changes.empty() || !standing.passed)
      continue;
    // A trainer whose state is older comes by here again.
    const auto saved = out.saved.find(x.trainer);
    if (saved == out.saved.end() || steps[x.trainer] >= saved->second.step)
      out.replay[x.trainer].insert_or_assign(*standing.passed,
                                             core::decision{action::go_on, x.what.changes, {}, {}, x.what.reason});
  }
  return {};
}

std::string list_of(const std::vector<core::error>& faults) {
  std::string out;
  for (const auto& f : faults)
    out += "\n  " + f.text;
  return out;
}

/// What was trained is not thrown away without a word.
core::result<void> may_begin(const std::string& directory, const core::run_record& record, const core::resume_point& from,
                             bool from_start) {
  if (from.other_format)
    return core::error{core::errc::refused, "'" + directory + "' cannot be gone on with by this version of Troupe:" + list_of(from.damage)};
  if (!from.set && !record.sets.empty() && !from_start)
    return core::error{core::errc::refused, "no set of checkpoints of '" + directory + "' can be used:" + list_of(from.damage) +
                                                "\nPut its files back, or begin again at step 0 (`troupe resume --from-start`; "
                                                "run_options::from_start in a program)"};
  if (!record.begun && !from_start && core::holds_states(directory))
    return core::error{core::errc::refused, "'" + directory + "' holds states of trainers, but its record run.jsonl is gone: put it back, or "
                                            "begin again at step 0 (`troupe resume --from-start`; run_options::from_start in a program)"};
  if (from_start && from.set)
    return core::error{core::errc::refused, "checkpoint set " + std::to_string(record.sets[*from.set].set.number) + " of '" + directory +
                                                "' can be used: go on from it, without beginning at step 0"};
  return {};
}

} // namespace

core::result<resumed_run> read_resumed(const std::string& directory, core::experiment& exp,
                                       const core::experiment_checkers& checkers,
                                       bool from_start, std::vector<core::error>& damage) {
  auto record = core::read_run(directory);
  if (!record)
    return record.error();
  if (record->experiment_changed)
    return core::error{core::errc::refused, "'" + directory + "/experiment.json' was changed after the run began, and what was trained "
                                            "does not belong to it: put the old text back, or begin a new run with the new one"};
  resumed_run out;
  using status = core::trainer_record::status;
  for (const auto& t : record->trainers) {
    if (t.trainer >= exp.trainers.size() && !t.added.empty()) {
      auto added = core::parse_trainer(t.added, exp, checkers);
      if (const auto* faults = std::get_if<std::vector<core::error>>(&added))
        return core::error{core::errc::invalid_argument,
                           "trainer \"" + t.name +
                               "\" was added to the run, but cannot be added again: " + faults->front().text};
      exp.trainers.push_back(std::get<core::trainer_spec>(std::move(added)));
    }
  }
  const bool over =
      !record->trainers.empty() &&
      std::all_of(record->trainers.begin(), record->trainers.end(), [](const core::trainer_record& t) {
        return t.state == status::finished || t.state == status::failed;
      });
  if (over) { // nothing is left to do
    out.last_sync = record->last_sync;
    for (const auto& t : record->trainers) {
      resumed_run::past past;
      static_cast<core::trainer_record&>(past) = t;
      past.newest_incarnation = t.incarnation;
      out.trainers.push_back(std::move(past));
    }
    return out;
  }
  const auto from = core::find_resume_point(directory, *record);
  damage = from.damage;
  if (auto ok = may_begin(directory, *record, from, from_start); !ok)
    return ok.error();
  const auto& newest = from.set;
  out.next_set = record->next_set;
  // What happened after the set happens again: the record counts up to it.
  auto then = core::read_run(directory, newest ? record->sets[*newest].position : 0);
  if (!then)
    return then.error();
  if (newest) {
    const auto& set = record->sets[*newest].set;
    out.set = set.number;
    for (const auto& t : set.trainers)
      out.saved[t.trainer] = t;
    out.last_sync = then->last_sync;
    out.kept_subnormals = !then->flushed_subnormals;
    for (std::size_t i = 0; i <= *newest; ++i)
      if (record->sets[i].missing.empty())
        out.sets.push_back(record->sets[i].set);
    if (auto ok = read_decisions(directory, out); !ok)
      return ok.error();
  }
  for (const auto& t : record->trainers) {
    resumed_run::past past;
    past.newest_incarnation = t.incarnation;
    if (t.trainer < then->trainers.size())
      static_cast<core::trainer_record&>(past) = then->trainers[t.trainer];
    out.trainers.push_back(std::move(past));
  }
  return out;
}

core::result<std::vector<core::metadata>> read_history(const std::string& directory, std::optional<std::uint32_t> set) {
  if (!set)
    return std::vector<core::metadata>{};
  branch<core::metadata> log;
  auto ok = log.read(directory, set, [](nlohmann::json& line, std::vector<core::metadata>& into) {
    for (auto& report : line["trainers"]) {
      report.erase("decision");
      if (auto m = core::metadata_from_json(report, ""))
        into.push_back(std::move(*m));
    }
  });
  if (!ok)
    return ok.error();
  return std::move(log.items());
}

} // namespace troupe::actors::internal
