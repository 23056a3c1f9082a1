#include <algorithm>
#include <cmath>
#include <set>

#include "json_path.hpp"
#include "object_reader.hpp"
#include "policies.hpp"

namespace troupe::core {

namespace {

using internal::fault_at;
using internal::json;
using internal::object_reader;

/// Members of a group take the mean of their weights, as in federated averaging (McMahan et al. 2017) with
/// equal parts.
class average_policy : public policy {
public:
  average_policy(std::vector<std::vector<trainer_id>> groups, std::uint64_t every)
      : groups_(std::move(groups)), every_(every) {}

  bool moves_weights() const override { return true; }

  std::map<trainer_id, decision> decide(const policy_input& in, random_stream&) const override {
    std::map<trainer_id, decision> out;
    if (is_due(in.index, every_))
      for (const auto& group : groups_in(in))
        average(in, group, out);
    return out;
  }

private:
  using group = std::vector<const metadata*>;

  std::vector<group> groups_in(const policy_input& in) const {
    std::vector<group> out;
    if (groups_.empty()) {
      std::map<std::string_view, group> by_signature;
      for (const auto& m : in.reports)
        by_signature[signature_in(in, m.trainer)].push_back(&m);
      for (auto& [unused, members] : by_signature)
        out.push_back(std::move(members));
      return out;
    }
    for (const auto& ids : groups_) {
      auto& members = out.emplace_back();
      for (const auto& m : in.reports)
        if (std::find(ids.begin(), ids.end(), m.trainer) != ids.end())
          members.push_back(&m);
    }
    return out;
  }

  static void average(const policy_input& in, const group& members, std::map<trainer_id, decision>& out) {
    if (members.size() < 2)
      return;
    const auto tell = [&](const metadata& m, decision d) {
      if (!in.only || *in.only == m.trainer)
        out[m.trainer] = std::move(d);
    };
    const auto signature = signature_in(in, members.front()->trainer);
    for (const auto* m : members)
      if (signature_in(in, m->trainer) != signature) {
        decision refused;
        refused.reason = "not averaged: " + members.front()->name + " and " + m->name +
                         " have workloads of different signatures, so their weights cannot be mixed";
        for (const auto* member : members)
          tell(*member, refused);
        return;
      }
    decision mean;
    std::string names;
    for (const auto* m : members)
      if (std::isfinite(m->loss)) {
        mean.average_of.push_back(m->trainer);
        names += (names.empty() ? "" : ", ") + m->name;
      }
    if (mean.average_of.size() < 2)
      mean.average_of.clear();
    mean.reason = mean.average_of.empty()
                      ? "not averaged: fewer than 2 trainers of its group have a finite loss"
                      : "takes the mean weights of " + names;
    for (const auto* m : members) {
      decision left_out;
      left_out.reason = "not averaged: its loss is " + to_string(value{m->loss});
      tell(*m, std::isfinite(m->loss) ? mean : left_out);
    }
  }

  std::vector<std::vector<trainer_id>> groups_; ///< empty: everybody by signature
  std::uint64_t every_;
};

} // namespace

std::unique_ptr<policy> make_average(const json& options, const search_space&,
                                     std::span<const std::string> trainer_names, std::string_view where,
                                     std::vector<error>& faults) {
  const auto before = faults.size();
  object_reader in{options, std::string{where}, faults};
  std::uint64_t every = 1;
  in.whole("every", every, 1, UINT64_MAX);
  std::vector<std::vector<trainer_id>> groups;
  std::set<trainer_id> seen;
  const json* list = in.raw("groups");
  if (list != nullptr && !list->is_array()) {
    in.fault("groups", "must be a list of lists of trainers' names");
  } else if (list != nullptr) {
    const auto at = in.pointer("groups");
    if (list->empty())
      in.fault("groups", "is empty; leave it out to average all trainers of the same signature");
    for (std::size_t i = 0; i < list->size(); ++i) {
      const auto& names = (*list)[i];
      if (!names.is_array() || names.size() < 2) {
        faults.push_back(fault_at(json_child(at, i), "must be a list of at least 2 trainers' names"));
        continue;
      }
      auto& ids = groups.emplace_back();
      for (std::size_t k = 0; k < names.size(); ++k) {
        const auto place = json_child(json_child(at, i), k);
        const auto t = trainer_named(names[k], trainer_names, place, faults);
        if (t && !seen.insert(*t).second)
          faults.push_back(fault_at(place, names[k].dump() + " is in a group already"));
        else if (t)
          ids.push_back(*t);
      }
    }
  }
  in.finish();
  return faults.size() == before ? std::make_unique<average_policy>(std::move(groups), every) : nullptr;
}

} // namespace troupe::core
