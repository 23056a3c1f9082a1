#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "object_reader.hpp"
#include "policies.hpp"
#include "troupe/core/experiment.hpp"

namespace troupe::core {

namespace {

using internal::fault_at;
using internal::json;
using internal::object_reader;

/// What the reports so far say of every rung. Sync points are the rungs.
class ladder {
public:
  ladder(const policy_input& in, const objective& by) : in_(in), by_(by) {
    for (const auto& m : in.history) {
      rungs_[m.sync].push_back(&m);
      auto& newest = newest_[m.trainer];
      newest = std::max(newest.value_or(m.sync), m.sync);
    }
    for (auto& [unused, all] : rungs_)
      std::sort(all.begin(), all.end(), [&](auto* a, auto* b) { return by_.ranks_before(*a, *b); });
  }

  /// Everyone who ever reported there, best first, those without a finite value last.
  const std::vector<const metadata*>& rung(sync_index k) const {
    static const std::vector<const metadata*> none;
    const auto i = rungs_.find(k);
    return i == rungs_.end() ? none : i->second;
  }
  std::vector<sync_index> highest_first() const {
    std::vector<sync_index> out;
    for (auto i = rungs_.rbegin(); i != rungs_.rend(); ++i)
      out.push_back(i->first);
    return out;
  }
  trainer_standing standing(trainer_id t) const {
    return t < in_.standing.size() ? in_.standing[t] : trainer_standing::running;
  }
  bool is_held_at(trainer_id t, sync_index k) const {
    const auto i = newest_.find(t);
    return standing(t) == trainer_standing::held && i != newest_.end() && i->second == k;
  }
  /// How many live trainers may still come to rung `k` for the first time.
  std::size_t may_come(sync_index k) const {
    std::size_t n = 0;
    for (trainer_id t = 0; t < in_.standing.size(); ++t) {
      const auto i = newest_.find(t);
      const bool live = standing(t) == trainer_standing::running || standing(t) == trainer_standing::held;
      n += live && (i == newest_.end() || *i->second < k);
    }
    return n;
  }

private:
  const policy_input& in_;
  const objective& by_;
  std::map<sync_index, std::vector<const metadata*>> rungs_;
  std::map<trainer_id, std::optional<sync_index>> newest_;
};

struct halving_options {
  objective by;
  std::uint64_t eta = 3;
};

std::string name_of(const metadata& m) {
  return m.name.empty() ? "trainer " + std::to_string(m.trainer) : m.name;
}

decision held(const metadata& m, const halving_options& o) {
  decision d;
  d.act = decision::action::hold;
  d.reason = "held with " + o.by.text(m);
  return d;
}

decision stopped(const metadata& m, const halving_options& o, std::string_view why) {
  decision d;
  d.act = decision::action::stop;
  d.reason = "stopped by policy: " + o.by.text(m) + " " + std::string{why};
  return d;
}

decision never_promoted(const metadata& m, const halving_options& o) {
  decision d;
  d.act = decision::action::stop;
  d.reason = "stopped by policy: " + name_of(m) + " is never promoted: " + o.by.fault(m);
  return d;
}

class ladder_policy : public policy {
public:
  explicit ladder_policy(halving_options o) : options_(std::move(o)) {}
  bool holds() const override { return true; }
  bool wants_history() const override { return true; }

protected:
  static void check_steps(const experiment& x, std::vector<error>& faults) {
    if (x.sync.schedule.every_seconds > 0)
      faults.push_back(fault_at("/sync/every_seconds", "cannot be used with policy '" + x.policy_type +
                                                           "', whose rungs are numbers of steps"));
  }
  decision promoted(const metadata& m, std::size_t rank, std::size_t of) const {
    decision d;
    d.reason = "promoted: " + options_.by.text(m) + " is number " + std::to_string(rank + 1) + " of " +
               std::to_string(of);
    return d;
  }

  halving_options options_;
};

/// Successive halving (Jamieson and Talwalkar 2016, "Non-stochastic best arm identification and
/// hyperparameter optimization"): of those at a rung the best 1 in eta go on, together. The others are held
/// until the next rung is decided, and take the places of those that fail on the way there.
class halving_policy final : public ladder_policy {
public:
  using ladder_policy::ladder_policy;

  std::map<trainer_id, decision> decide(const policy_input& in, random_stream&) const override {
    std::map<trainer_id, decision> out;
    const ladder all(in, options_.by);
    const auto k = in.index;
    if (in.last_call) { // those who went on from here have come to their ends, or failed
      fill(all, k, places(all, k + 1), out);
      return out;
    }
    const auto here = all.rung(k);
    for (const auto& m : in.reports)
      if (!options_.by.healthy(m))
        out[m.trainer] = never_promoted(m, options_);
    const auto at_rung = [&](const metadata& m) {
      const bool reports = std::any_of(in.reports.begin(), in.reports.end(),
                                       [&](const metadata& r) { return r.trainer == m.trainer; });
      return reports || all.is_held_at(m.trainer, k);
    };
    if (k > 0 && fill(all, k - 1, places(all, k), out)) {
      for (const auto* m : here)
        if (at_rung(*m) && options_.by.healthy(*m)) {
          out[m->trainer] = held(*m, options_);
          out[m->trainer].reason += " until the place of one that failed is filled";
        }
      return out;
    }
    std::size_t rank = 0;
    for (const auto* m : here) {
      if (!at_rung(*m) || !options_.by.healthy(*m))
        continue;
      out[m->trainer] = rank < places(all, k + 1) ? promoted(*m, rank, here.size()) : held(*m, options_);
      ++rank;
    }
    for (const auto r : all.highest_first())
      if (r < k)
        for (const auto* m : all.rung(r))
          if (all.is_held_at(m->trainer, r))
            out[m->trainer] =
                stopped(*m, options_, "was not among the best " + std::to_string(places(all, r + 1)));
    return out;
  }

  void check(const experiment& x, std::vector<error>& faults) const override {
    check_steps(x, faults);
    if (x.sync.asynchronous)
      faults.push_back(fault_at("/sync/asynchronous",
                                "cannot be used with policy 'halving', which compares trainers "
                                "at the same step; policy 'asha' waits for nobody"));
    if (x.sync.stragglers == straggler_treatment::go_on_without || x.sync.quorum < 1)
      faults.push_back(fault_at("/sync/stragglers",
                                "cannot leave anyone out with policy 'halving': \"wait\", or "
                                "\"stop\" with deadline_seconds"));
    if (x.failures.refill)
      faults.push_back(
          fault_at("/failures/refill", "cannot be used with policy 'halving', which fills places itself"));
  }

private:
  /// How many are to be at rung `k`.
  std::size_t places(const ladder& all, sync_index k) const {
    auto n = all.rung(0).size();
    for (sync_index i = 0; i < k; ++i)
      n = std::max<std::size_t>(1, n / options_.eta);
    return n;
  }

  /// Lets the best of those held at `k` take the places at the next rung whose owners failed. False: none is
  /// free, or nobody is left.
  bool fill(const ladder& all, sync_index k, std::size_t places, std::map<trainer_id, decision>& out) const {
    std::size_t taken = 0;
    for (const auto* m : all.rung(k))
      taken += options_.by.healthy(*m) && !all.is_held_at(m->trainer, k) &&
               all.standing(m->trainer) != trainer_standing::failed;
    bool any = false;
    std::size_t rank = 0;
    for (const auto* m : all.rung(k)) {
      if (taken < places && all.is_held_at(m->trainer, k) && options_.by.healthy(*m)) {
        out[m->trainer] = promoted(*m, rank, all.rung(k).size());
        out[m->trainer].reason += "; takes the place of one that failed";
        ++taken;
        any = true;
      }
      ++rank;
    }
    return any;
  }
};

/// Asynchronous successive halving (Li et al. 2018, "A system for massively parallel hyperparameter tuning"):
/// whenever somebody reports, everyone who is now among the best 1 in eta of their rung goes on.
class asha_policy final : public ladder_policy {
public:
  using ladder_policy::ladder_policy;

  std::map<trainer_id, decision> decide(const policy_input& in, random_stream&) const override {
    std::map<trainer_id, decision> out;
    const ladder all(in, options_.by);
    if (in.last_call) {
      // Some may not have been there to be promoted when they came to be among the best: they were being restarted.
      for (const auto k : all.highest_first())
        for (std::size_t i = 0; i < all.rung(k).size() / options_.eta; ++i)
          if (const auto& m = *all.rung(k)[i]; all.is_held_at(m.trainer, k) && options_.by.healthy(m))
            out[m.trainer] = promoted(m, i, all.rung(k).size());
      // Fewer than eta came to some rung: the best there goes on all the same, so that one comes to its end.
      if (!out.empty() || std::find(in.standing.begin(), in.standing.end(), trainer_standing::finished) != in.standing.end())
        return out;
      for (const auto k : all.highest_first())
        for (std::size_t i = 0; i < all.rung(k).size(); ++i)
          if (const auto& m = *all.rung(k)[i]; all.is_held_at(m.trainer, k) && options_.by.healthy(m)) {
            out[m.trainer] = promoted(m, i, all.rung(k).size());
            return out;
          }
      return out;
    }
    for (const auto k : all.highest_first()) {
      const auto& here = all.rung(k);
      const auto best = here.size() / options_.eta;
      const auto at_most = std::max<std::size_t>(1, (here.size() + all.may_come(k)) / options_.eta);
      for (std::size_t i = 0; i < here.size(); ++i) {
        const auto& m = *here[i];
        const bool asks = in.only == m.trainer && k == in.index;
        if (!asks && !all.is_held_at(m.trainer, k))
          continue;
        if (!options_.by.healthy(m))
          out[m.trainer] = never_promoted(m, options_);
        else if (i < best)
          out[m.trainer] = promoted(m, i, here.size());
        else if (i >= at_most)
          out[m.trainer] =
              stopped(m, options_, "cannot be among the best " + std::to_string(at_most) + " any more");
        else if (asks)
          out[m.trainer] = held(m, options_);
      }
    }
    return out;
  }

  void check(const experiment& x, std::vector<error>& faults) const override {
    check_steps(x, faults);
    if (!x.sync.asynchronous)
      faults.push_back(fault_at("/sync/asynchronous",
                                "must be true with policy 'asha', which waits for nobody; policy "
                                "'halving' decides about all trainers of a rung together"));
  }
};

std::optional<halving_options> read(const json& options, std::string_view where, std::vector<error>& faults) {
  const auto before = faults.size();
  object_reader in{options, std::string{where}, faults};
  halving_options out;
  read_objective(in, out.by);
  in.whole("eta", out.eta, 2, 1000);
  in.finish();
  return faults.size() == before ? std::optional{out} : std::nullopt;
}

} // namespace

std::unique_ptr<policy> make_halving(const json& options, const search_space&, std::span<const std::string>,
                                     std::string_view where, std::vector<error>& faults) {
  auto o = read(options, where, faults);
  return o ? std::make_unique<halving_policy>(std::move(*o)) : nullptr;
}

std::unique_ptr<policy> make_asha(const json& options, const search_space&, std::span<const std::string>,
                                  std::string_view where, std::vector<error>& faults) {
  auto o = read(options, where, faults);
  return o ? std::make_unique<asha_policy>(std::move(*o)) : nullptr;
}

} // namespace troupe::core
