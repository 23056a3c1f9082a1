#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "object_reader.hpp"
#include "policies.hpp"

namespace troupe::core {

namespace {

using internal::json;
using internal::object_reader;

struct median_options {
  objective by;
  std::uint64_t burn_in_steps = 0;
  std::uint64_t min_reports = 2;
  std::uint64_t min_trainers = 3;
};

/// The median stopping rule (Golovin et al. 2017, "Google Vizier: a service for black-box optimization"): a
/// trainer stops at step s if its best value so far is worse than the median of the others' running averages
/// up to s. Of the others, those count that have come to s, whatever became of them. What is not finite
/// counts nowhere.
class median_policy final : public policy {
public:
  explicit median_policy(median_options o) : options_(std::move(o)) {}
  bool wants_history() const override { return true; }

  std::map<trainer_id, decision> decide(const policy_input& in, random_stream&) const override {
    std::map<trainer_id, decision> out;
    reports_of reports;
    for (const auto& m : in.history)
      reports[m.trainer].push_back(&m);
    std::map<std::uint64_t, std::vector<average>> averages; // by step: those who meet are at the same one
    for (const auto& m : in.reports) {
      if (in.only && *in.only != m.trainer)
        continue;
      const auto [i, fresh] = averages.try_emplace(m.step);
      if (fresh)
        i->second = averages_up_to(m.step, reports);
      if (auto d = decide_one(m, reports, i->second); d.act == decision::action::stop)
        out[m.trainer] = std::move(d);
    }
    return out;
  }

private:
  using reports_of = std::map<trainer_id, std::vector<const metadata*>>;
  using average = std::pair<double, trainer_id>;

  decision decide_one(const metadata& me, const reports_of& reports, const std::vector<average>& averages) const {
    decision d;
    const auto mine = reports.find(me.trainer);
    if (me.step < options_.burn_in_steps || mine == reports.end() ||
        mine->second.size() < options_.min_reports)
      return d;
    const metadata* best = nullptr;
    for (const auto* m : mine->second)
      if (options_.by.healthy(*m) && (best == nullptr || options_.by.better(*m, *best)))
        best = m;
    auto own = averages.end();
    if (const auto x = average_up_to(me.step, mine->second))
      own = std::lower_bound(averages.begin(), averages.end(), average{*x, me.trainer});
    const auto others = averages.size() - (own != averages.end());
    if (others < options_.min_trainers)
      return d;
    // The n-th of the others.
    const auto nth = [&](std::size_t n) {
      const auto skip = own != averages.end() && n >= static_cast<std::size_t>(own - averages.begin());
      return averages[n + skip].first;
    };
    const auto median = others % 2 == 1 ? nth(others / 2) : (nth(others / 2 - 1) + nth(others / 2)) / 2;
    if (best != nullptr && !options_.by.better(median, best->number(options_.by.metric)))
      return d;
    d.act = decision::action::stop;
    d.reason =
        best != nullptr
            ? "stopped by policy: its best " + options_.by.text(*best) + " is worse than " +
                  shown_number(median) + ", the median of the others' averages so far"
            : "stopped by policy: none of its reports has a finite " + options_.by.metric + " and loss (" +
                  options_.by.fault(me) + ")";
    return d;
  }

  /// nullopt: it has not come so far, or has nothing finite to show.
  std::optional<double> average_up_to(std::uint64_t step, const std::vector<const metadata*>& reports) const {
    double sum = 0;
    std::size_t n = 0;
    bool came = false;
    for (const auto* m : reports) {
      came = came || m->step >= step;
      if (m->step > step || !options_.by.healthy(*m))
        continue;
      sum += m->number(options_.by.metric);
      ++n;
    }
    return came && n > 0 ? std::optional{sum / static_cast<double>(n)} : std::nullopt;
  }

  /// Of everybody who has come so far, in ascending order.
  std::vector<average> averages_up_to(std::uint64_t step, const reports_of& reports) const {
    std::vector<average> out;
    for (const auto& [t, theirs] : reports)
      if (const auto x = average_up_to(step, theirs))
        out.emplace_back(*x, t);
    std::sort(out.begin(), out.end());
    return out;
  }

  median_options options_;
};

} // namespace

std::unique_ptr<policy> make_median(const json& options, const search_space&, std::span<const std::string>,
                                    std::string_view where, std::vector<error>& faults) {
  const auto before = faults.size();
  object_reader in{options, std::string{where}, faults};
  median_options o;
  read_objective(in, o.by);
  in.whole("burn_in_steps", o.burn_in_steps, 0, UINT64_MAX);
  in.whole("min_reports", o.min_reports, 1, 1'000'000'000);
  in.whole("min_trainers", o.min_trainers, 1, 1'000'000'000);
  in.finish();
  return faults.size() == before ? std::make_unique<median_policy>(std::move(o)) : nullptr;
}

} // namespace troupe::core
