#include "resume.hpp"

#include <algorithm>
#include <utility>

#include "troupe/core/run_reader.hpp"

namespace troupe::actors::internal {

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
