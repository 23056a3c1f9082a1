#include <algorithm>
#include <limits>

#include "json_path.hpp"
#include "object_reader.hpp"
#include "policies.hpp"

namespace troupe::core {

namespace {

using internal::json;
using internal::object_reader;

class schedule_policy : public policy {
public:
  struct entry {
    sync_index sync = 0;
    bool everyone = false;
    std::vector<trainer_id> trainers;
    hyperparameters set;

    bool concerns(trainer_id t) const {
      return everyone || std::find(trainers.begin(), trainers.end(), t) != trainers.end();
    }
  };

  explicit schedule_policy(std::vector<entry> entries) : entries_(std::move(entries)) {}

  std::map<trainer_id, decision> decide(const policy_input& in, random_stream&) const override {
    std::map<trainer_id, decision> out;
    for (const auto& e : entries_) {
      if (e.sync != in.index)
        continue;
      for (const auto& m : in.reports) {
        if (!e.concerns(m.trainer) || (in.only && *in.only != m.trainer))
          continue;
        auto& d = out[m.trainer];
        d.changes.update(e.set);
        d.reason = "as scheduled";
      }
    }
    return out;
  }

private:
  std::vector<entry> entries_;
};

schedule_policy::entry read_entry(const json& j, std::span<const std::string> names, const std::string& where,
                                  std::vector<error>& faults) {
  schedule_policy::entry out;
  object_reader in{j, where, faults};
  if (!in.is_object())
    return out;
  if (!in.has("sync"))
    in.fault("sync", "is missing: the number of a sync point, from 0");
  in.whole("sync", out.sync, 0, std::numeric_limits<sync_index>::max());

  const auto at = in.pointer("trainer");
  const auto add = [&](const json& name, std::string_view place) {
    if (const auto t = trainer_named(name, names, place, faults))
      out.trainers.push_back(*t);
  };
  const json* who = in.raw("trainer");
  if (who == nullptr || *who == "all") {
    out.everyone = true;
  } else if (who->is_array()) {
    if (who->empty())
      in.fault("trainer", "names nobody; leave it out to mean all");
    for (std::size_t i = 0; i < who->size(); ++i)
      add((*who)[i], json_child(at, i));
  } else {
    add(*who, at);
  }

  if (!in.has("set")) {
    in.fault("set", "is missing: the hyperparameters to set");
  } else if (auto set = hyperparameters_from_json(*in.raw("set"), in.pointer("set")); !set) {
    faults.push_back(set.error());
  } else {
    out.set = std::move(*set);
    if (out.set.empty())
      in.fault("set", "sets nothing");
  }
  in.finish();
  return out;
}

} // namespace

std::unique_ptr<policy> make_schedule(const json& options, const search_space&,
                                      std::span<const std::string> trainer_names, std::string_view where,
                                      std::vector<error>& faults) {
  const auto before = faults.size();
  object_reader in{options, std::string{where}, faults};
  std::vector<schedule_policy::entry> entries;
  const json* list = in.raw("at");
  if (list != nullptr && list->is_array())
    for (std::size_t i = 0; i < list->size(); ++i)
      entries.push_back(read_entry((*list)[i], trainer_names, json_child(in.pointer("at"), i), faults));
  else if (in.is_object())
    in.fault("at", "must be a list such as [{\"sync\": 0, \"trainer\": \"all\", \"set\": {\"lr\": 0.01}}]");
  in.finish();
  return faults.size() == before ? std::make_unique<schedule_policy>(std::move(entries)) : nullptr;
}

} // namespace troupe::core
