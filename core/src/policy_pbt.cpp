#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "json_path.hpp"
#include "object_reader.hpp"
#include "policies.hpp"

namespace troupe::core {

namespace {

using internal::fault_at;
using internal::json;
using internal::object_reader;

struct pbt_options {
  objective by;
  double quantile = 0.25;
  perturbation how;
  std::uint64_t every = 1;
  std::uint64_t burn_in_steps = 0;
  std::optional<std::set<trainer_id>> recipients; ///< nullopt: everybody
};

/// Population based training (Jaderberg et al. 2017, "Population Based Training of Neural Networks") with
/// truncation selection: who ranks in the bottom quantile exploits somebody drawn from the top quantile and
/// explores from there. Each signature is a population of its own, as weights go only between equals.
class pbt_policy : public policy {
public:
  pbt_policy(pbt_options options, search_space space)
      : options_(std::move(options)), space_(std::move(space)) {}

  bool moves_weights() const override { return true; }

  std::map<trainer_id, decision> decide(const policy_input& in, random_stream& rng) const override {
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
      std::sort(members.begin(), members.end(), [this](auto* a, auto* b) { return options_.by.ranks_before(*a, *b); });
    // By trainer number, so that the draws do not depend on how signatures sort.
    for (const auto& m : in.reports)
      if (out.contains(m.trainer) && m.step >= options_.burn_in_steps)
        decide_one(m, populations.at(signature_in(in, m.trainer)), in.reports.size(), out[m.trainer], rng);
    return out;
  }

private:
  using population = std::vector<const metadata*>;

  void decide_one(const metadata& me, const population& ranked, std::size_t reports, decision& d,
                  random_stream& rng) const {
    const auto n = ranked.size();
    const auto healthy_ones = static_cast<std::size_t>(
        std::count_if(ranked.begin(), ranked.end(), [this](auto* m) { return options_.by.healthy(*m); }));
    if (n < 2) {
      if (reports > 1)
        d.reason =
            "nobody to exploit: no other trainer past its burn-in has a workload of the same signature";
      return;
    }
    const auto wanted =
        static_cast<std::size_t>(std::floor(static_cast<double>(n) * options_.quantile + 1e-9));
    const auto count = std::min(std::max<std::size_t>(wanted, 1), n / 2);
    const auto rank = static_cast<std::size_t>(std::find(ranked.begin(), ranked.end(), &me) - ranked.begin());
    if (rank < n - count || (options_.recipients && !options_.recipients->contains(me.trainer)))
      return;
    if (healthy_ones < 2) {
      d.reason = "nobody to exploit: fewer than 2 trainers have a finite " + options_.by.metric + " and loss";
      return;
    }
    const auto& donor = *ranked[rng.below(std::min(count, healthy_ones))];
    if (options_.by.healthy(me) && !options_.by.better(donor, me))
      return; // a tie: nothing to gain
    d.copy_from = donor.trainer;
    d.changes = changes(me.hp, donor.hp, rng);
    d.reason = "exploits " + donor.name + " (" + options_.by.metric + " " + shown_number(donor.number(options_.by.metric));
    if (options_.by.healthy(me))
      d.reason += (options_.by.maximise ? " > " : " < ") + shown_number(me.number(options_.by.metric)) + ")";
    else if (std::isfinite(me.loss))
      d.reason += "; its own is " + shown_number(me.number(options_.by.metric)) + ")";
    else
      d.reason += "; its own loss is " + shown_number(me.loss) + ")";
  }

  /// The donor's hyperparameters, perturbed. Keys outside the search space are named only where they differ,
  /// since a workload may refuse to change them.
  hyperparameters changes(const hyperparameters& mine, const hyperparameters& donors,
                          random_stream& rng) const {
    hyperparameters out;
    for (const auto& [name, x] : space_.perturb(donors, options_.how, rng)) {
      const value* old = mine.find(name);
      if (space_.domains().contains(name) || old == nullptr || *old != x)
        out.set(name, x);
    }
    return out;
  }

  pbt_options options_;
  search_space space_;
};

} // namespace

std::unique_ptr<policy> make_pbt(const json& options, const search_space& space,
                                 std::span<const std::string> trainer_names, std::string_view where,
                                 std::vector<error>& faults) {
  const auto before = faults.size();
  object_reader in{options, std::string{where}, faults};
  pbt_options o;
  read_objective(in, o.by);
  in.real("quantile", o.quantile, 0, 0.5, true);
  in.real("factor", o.how.factor, 1, 1000, true);
  in.real("resample_probability", o.how.resample_probability, 0, 1);
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
  in.finish();
  if (space.empty())
    faults.push_back(
        fault_at(where, "population based training needs a search space to explore; give the experiment a "
                        "\"search_space\""));
  return faults.size() == before ? std::make_unique<pbt_policy>(std::move(o), space) : nullptr;
}

} // namespace troupe::core
