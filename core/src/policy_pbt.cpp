#include "policy_pbt.hpp"

#include <cmath>

#include "json_path.hpp"
#include "object_reader.hpp"

namespace troupe::core {

using internal::fault_at;
using internal::json;
using internal::object_reader;

std::size_t quantile_size(std::size_t n, double quantile) {
  const auto wanted = static_cast<std::size_t>(std::floor(static_cast<double>(n) * quantile + 1e-9));
  return std::min(std::max<std::size_t>(wanted, 1), n / 2);
}

std::map<trainer_id, decision> pbt_policy::decide(const policy_input& in, random_stream& rng) const {
  std::map<trainer_id, decision> out;
  std::map<std::string_view, population> populations;
  for (const auto& m : in.reports) {
    if (!in.only || *in.only == m.trainer)
      out[m.trainer] = {};
    if (m.step >= options_.burn_in_steps)
      populations[signature_in(in, m.trainer)].push_back(&m);
  }
  if (!is_due(in.index, options_.every))
    return out;
  for (auto& [unused, members] : populations)
    std::sort(members.begin(), members.end(),
              [this](auto* a, auto* b) { return options_.by.ranks_before(*a, *b); });
  const auto how = explore_at(in);
  // By trainer number, so that the draws do not depend on how signatures sort.
  for (const auto& m : in.reports)
    if (out.contains(m.trainer) && m.step >= options_.burn_in_steps)
      decide_one(m, populations.at(signature_in(in, m.trainer)), in.reports.size(), out[m.trainer], *how, rng);
  return out;
}

void pbt_policy::decide_one(const metadata& me, const population& ranked, std::size_t reports, decision& d,
                            explorer& how, random_stream& rng) const {
  const auto n = ranked.size();
  const auto healthy_ones = static_cast<std::size_t>(
      std::count_if(ranked.begin(), ranked.end(), [this](auto* m) { return options_.by.healthy(*m); }));
  if (n < 2) {
    if (reports > 1)
      d.reason =
          "nobody to exploit: no other trainer past its burn-in has a workload of the same signature";
    return;
  }
  const auto count = quantile_size(n, options_.quantile);
  const auto rank = static_cast<std::size_t>(std::find(ranked.begin(), ranked.end(), &me) - ranked.begin());
  if (rank < n - count || (options_.recipients && !options_.recipients->contains(me.trainer)))
    return;
  if (healthy_ones < 2) {
    d.reason = "nobody to exploit: fewer than 2 trainers have a finite " + options_.by.metric + " and loss";
    if (!options_.by.healthy(me))
      d.reason += " (" + options_.by.fault(me) + ")";
    return;
  }
  const auto& donor = *ranked[rng.below(std::min(count, healthy_ones))];
  if (options_.by.healthy(me) && !options_.by.better(donor, me))
    return; // a tie: nothing to gain
  d.copy_from = donor.trainer;
  d.changes = changes(me.hp, how.explore(me, donor, rng));
  d.reason = "exploits " + donor.name + " (" + options_.by.metric + " " + shown_number(donor.number(options_.by.metric));
  if (options_.by.healthy(me))
    d.reason += (options_.by.maximise ? " > " : " < ") + shown_number(me.number(options_.by.metric)) + ")";
  else if (std::isfinite(me.loss))
    d.reason += "; its own is " + shown_number(me.number(options_.by.metric)) + ")";
  else
    d.reason += "; its own loss is " + shown_number(me.loss) + ")";
}

/// Keys outside the search space are named only where they differ, since a workload may refuse to change them.
hyperparameters pbt_policy::changes(const hyperparameters& mine, const hyperparameters& wanted) const {
  hyperparameters out;
  for (const auto& [name, x] : wanted) {
    const value* old = mine.find(name);
    if (space_.domains().contains(name) || old == nullptr || *old != x)
      out.set(name, x);
  }
  return out;
}

std::unique_ptr<pbt_policy::explorer> pbt_policy::explore_at(const policy_input&) const {
  struct perturbing final : explorer {
    const search_space& space;
    const perturbation& how;
    perturbing(const search_space& s, const perturbation& h) : space(s), how(h) {}
    hyperparameters explore(const metadata&, const metadata& donor, random_stream& rng) override {
      return space.perturb(donor.hp, how, rng);
    }
  };
  return std::make_unique<perturbing>(space_, options_.how);
}

void read_pbt(object_reader& in, pbt_options& o, std::span<const std::string> trainer_names,
              std::vector<error>& faults) {
  read_objective(in, o.by);
  in.real("quantile", o.quantile, 0, 0.5, true);
  in.whole("every", o.every, 1, UINT64_MAX);
  in.whole("burn_in_steps", o.burn_in_steps, 0, UINT64_MAX);
  const json* names = in.raw("recipients");
  if (names != nullptr && (!names->is_array() || names->empty())) {
    in.fault("recipients", "must be a list of trainers' names; leave it out to mean all");
  } else if (names != nullptr) {
    o.recipients.emplace();
    for (std::size_t i = 0; i < names->size(); ++i)
      if (const auto t =
              trainer_named((*names)[i], trainer_names, json_child(in.pointer("recipients"), i), faults))
        o.recipients->insert(*t);
  }
}

std::unique_ptr<policy> make_pbt(const json& options, const search_space& space,
                                 std::span<const std::string> trainer_names, std::string_view where,
                                 std::vector<error>& faults) {
  const auto before = faults.size();
  object_reader in{options, std::string{where}, faults};
  pbt_options o;
  read_pbt(in, o, trainer_names, faults);
  in.real("factor", o.how.factor, 1, 1000, true);
  in.real("resample_probability", o.how.resample_probability, 0, 1);
  in.finish();
  if (space.empty())
    faults.push_back(
        fault_at(where, "population based training needs a search space to explore; give the experiment a "
                        "\"search_space\""));
  return faults.size() == before ? std::make_unique<pbt_policy>(std::move(o), space) : nullptr;
}

} // namespace troupe::core
