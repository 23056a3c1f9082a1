#include "resume.hpp"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "troupe/core/run_reader.hpp"

namespace troupe::actors::internal {

namespace {

/// Up to the set that the run goes on from.
core::result<void> read_decisions(const std::string& directory, resumed_run& out) {
  bool past = false;
  auto torn = core::visit_run(directory, [&](std::string_view kind, nlohmann::json& line) {
    if (past || (kind != "sync_point" && kind != "checkpoint_set"))
      return;
    if (kind == "checkpoint_set") {
      past = line.value("number", std::uint64_t{0}) == *out.set;
      return;
    }
    const auto k = line.value("index", core::sync_index{0});
    for (const auto& x : line.value("trainers", nlohmann::json::array())) {
      const auto t = x.value("trainer", core::trainer_id{0});
      const auto saved = out.saved.find(t);
      if (!x.contains("decision") ||
          (saved != out.saved.end() && x.value("step", std::uint64_t{0}) <= saved->second.step))
        continue;
      if (auto d = core::decision_from_json(x["decision"], ""); d && !d->changes.empty())
        out.replay[t].insert_or_assign(
            k, core::decision{core::decision::action::go_on, d->changes, {}, {}, d->reason});
    }
  });
  return torn ? core::result<void>{} : torn.error();
}

} // namespace

core::result<resumed_run> read_resumed(const std::string& directory, core::experiment& exp,
                                       const core::experiment_checkers& checkers,
                                       std::vector<core::error>& damage) {
  auto record = core::read_run(directory);
  if (!record)
    return record.error();
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
  const auto newest = core::newest_usable_set(directory, *record, damage);
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
    for (std::size_t i = 0; i <= *newest; ++i)
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

} // namespace troupe::actors::internal
