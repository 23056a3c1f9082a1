#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "gaussian_process.hpp"
#include "json_path.hpp"
#include "object_reader.hpp"
#include "policy_pbt.hpp"

namespace troupe::core {

namespace {

using internal::fault_at;
using internal::json;
using internal::object_reader;

struct pb2_options {
  std::uint64_t max_points = 100; ///< newest observations that are used: a fit costs their third power
  std::uint64_t candidates = 500; ///< drawn afresh for each exploration, and a fifth as many near the best
};

/// One domain's place among the model's inputs. A list without an order has no place there.
bool is_modelled(const domain& d) {
  const auto* list = std::get_if<choice_domain>(&d);
  return list == nullptr || list->ordered;
}

/// What happened to one trainer between two sync points.
struct interval {
  gaussian_process::point at;
  double gain = 0; ///< of the metric per step, more is better
};

/// How much trainers of one signature gained under which hyperparameters, as a model.
class gain_model {
public:
  gain_model(const policy_input& in, const pbt_options& options, const search_space& space,
             std::string_view signature, std::size_t max_points)
      : by_(options.by) {
    for (const auto& [name, d] : space.domains())
      if (is_modelled(d))
        domains_.emplace_back(name, &d);
    std::vector<const metadata*> mine;
    std::map<sync_index, std::vector<const metadata*>> populations;
    for (const auto& m : in.history)
      if (signature_in(in, m.trainer) == signature) {
        mine.push_back(&m);
        if (m.step >= options.burn_in_steps)
          populations[m.sync].push_back(&m);
      }
    for (auto& [k, ranked] : populations)
      exchanges_.emplace(k, exchange_at(k, std::move(ranked), options));
    std::map<trainer_id, const metadata*> before;
    for (const auto* m : mine)
      if (const auto* m0 = std::exchange(before[m->trainer], m); m0 != nullptr)
        observe(*m0, *m, !in.only);
    if (intervals_.size() > max_points)
      intervals_.erase(intervals_.begin(), intervals_.end() - static_cast<std::ptrdiff_t>(max_points));
    fit();
  }

  bool is_fitted() const { return model_.has_value(); }

  /// Where the model's upper confidence bound is highest, by draws: GP-UCB (Srinivas et al. 2010) with the
  /// exploration of Kandasamy et al. 2015, "High dimensional Bayesian optimisation and bandits via additive
  /// models".
  hyperparameters best_from(const metadata& donor, sync_index now, std::uint64_t candidates,
                            random_stream& rng) {
    const auto d = static_cast<double>(domains_.size());
    const auto kappa = std::sqrt(0.2 * d * std::log(2.0 * (now + 2.0)));
    auto best = drawn(donor, now, rng);
    auto best_bound = bound(best, kappa);
    const auto consider = [&](gaussian_process::point p) {
      if (const auto b = bound(p, kappa); b > best_bound) {
        best = std::move(p);
        best_bound = b;
      }
    };
    for (std::uint64_t i = 1; i < candidates; ++i)
      consider(drawn(donor, now, rng));
    for (std::uint64_t i = 0; i < candidates / 5; ++i) {
      auto near = best;
      for (std::size_t k = 0; k < domains_.size(); ++k)
        near.x[k] = std::clamp(near.x[k] + 0.1 * rng.normal(), 0.0, 1.0);
      consider(std::move(near));
    }
    hyperparameters out;
    for (std::size_t k = 0; k < domains_.size(); ++k) {
      out.set(domains_[k].first, value_at(*domains_[k].second, best.x[k]));
      best.x[k] =
          unit_of(*domains_[k].second, *out.find(domains_[k].first)).value_or(best.x[k]); // on its grid
    }
    model_->add_pending(std::move(best)); // so that the next one looks elsewhere
    return out;
  }

private:
  /// What the population did at one sync point.
  struct exchange {
    double best = NAN;             ///< mean metric of those that could be copied
    std::set<trainer_id> replaced; ///< who took the weights of one of them
  };

  exchange exchange_at(sync_index k, std::vector<const metadata*> ranked, const pbt_options& options) const {
    exchange out;
    std::sort(ranked.begin(), ranked.end(), [this](auto* a, auto* b) { return by_.ranks_before(*a, *b); });
    const auto healthy = static_cast<std::size_t>(
        std::count_if(ranked.begin(), ranked.end(), [this](auto* m) { return by_.healthy(*m); }));
    const auto n = ranked.size();
    const auto ends = n < 2 ? n : quantile_size(n, options.quantile);
    double sum = 0;
    for (std::size_t i = 0; i < std::min(ends, healthy); ++i)
      sum += ranked[i]->number(by_.metric);
    if (healthy > 0 && ends > 0)
      out.best = sum / static_cast<double>(std::min(ends, healthy));
    if (n < 2 || healthy < 2 || !is_due(k, options.every))
      return out;
    for (std::size_t i = n - ends; i < n; ++i)
      if (!options.recipients || options.recipients->contains(ranked[i]->trainer))
        out.replaced.insert(ranked[i]->trainer);
    return out;
  }

  void observe(const metadata& from, const metadata& to, bool together) {
    if (!by_.healthy(from) || !by_.healthy(to) || to.step <= from.step)
      return;
    interval x;
    bool moved = false;
    for (const auto& [name, d] : domains_) {
      const auto *was = from.hp.find(name), *is = to.hp.find(name);
      const auto at = is != nullptr ? unit_of(*d, *is) : std::nullopt;
      if (!at)
        return;
      moved = moved || was == nullptr || *was != *is;
      x.at.x.push_back(*at);
    }
    // Who took over weights began about as well as the best did then. Where all meet, the rule says who did; else only new
    // hyperparameters tell.
    const auto then = exchanges_.find(from.sync);
    const bool replaced =
        then != exchanges_.end() && (together ? then->second.replaced.contains(from.trainer) : moved);
    const auto start = replaced ? then->second.best : from.number(by_.metric);
    const auto gain = (to.number(by_.metric) - start) / static_cast<double>(to.step - from.step);
    if (!std::isfinite(gain))
      return;
    x.at.x.push_back(start);
    x.at.t = from.sync;
    x.gain = by_.maximise ? gain : -gain;
    intervals_.push_back(std::move(x));
  }

  /// The start's metric is scaled to 0 … 1, gains to mean 0 and deviation 1.
  void fit() {
    if (intervals_.size() < 2 * (domains_.size() + 1))
      return;
    const auto n = static_cast<double>(intervals_.size());
    double mean = 0, square = 0;
    low_ = high_ = intervals_.front().at.x.back();
    for (const auto& x : intervals_) {
      mean += x.gain / n;
      low_ = std::min(low_, x.at.x.back());
      high_ = std::max(high_, x.at.x.back());
    }
    for (const auto& x : intervals_)
      square += (x.gain - mean) * (x.gain - mean) / n;
    const auto deviation = square > 0 ? std::sqrt(square) : 1.0;
    std::vector<gaussian_process::point> at;
    std::vector<double> gains;
    for (auto& x : intervals_) {
      x.at.x.back() = scaled(x.at.x.back());
      at.push_back(std::move(x.at));
      gains.push_back((x.gain - mean) / deviation);
    }
    model_ = gaussian_process::fitted(at, gains);
  }

  double scaled(double start) const { return high_ > low_ ? (start - low_) / (high_ - low_) : 0.5; }

  gaussian_process::point drawn(const metadata& donor, sync_index now, random_stream& rng) const {
    gaussian_process::point p;
    for (std::size_t k = 0; k < domains_.size(); ++k)
      p.x.push_back(rng.uniform());
    p.x.push_back(scaled(donor.number(by_.metric)));
    p.t = now;
    return p;
  }

  double bound(const gaussian_process::point& p, double kappa) const {
    const auto x = model_->predict(p);
    return x.mean + kappa * x.deviation;
  }

  const objective& by_;
  std::vector<std::pair<std::string, const domain*>> domains_;
  std::vector<interval> intervals_;
  std::map<sync_index, exchange> exchanges_;
  double low_ = 0, high_ = 1;
  std::optional<gaussian_process> model_;
};

/// Population based bandits (Parker-Holder et al. 2020, "Provably efficient online hyperparameter
/// optimization with population-based bandits"): as population based training, but new hyperparameters come
/// from a model of how much was gained with which ones so far, the newest counting most. Lists without an
/// order, and everything until there are observations enough, move as in population based training.
class pb2_policy final : public pbt_policy {
public:
  pb2_policy(pbt_options options, pb2_options more, search_space space)
      : pbt_policy(std::move(options), std::move(space)), more_(more) {}

  bool wants_history() const override { return true; }

private:
  class modelling final : public explorer {
  public:
    modelling(const pb2_policy& of, const policy_input& in) : of_(of), in_(in) {}

    hyperparameters explore(const metadata& me, const metadata& donor, random_stream& rng) override {
      const auto signature = signature_in(in_, me.trainer);
      const auto [i, unused] =
          models_.try_emplace(signature, in_, of_.options(), of_.space(), signature, of_.more_.max_points);
      auto out = of_.space().perturb(donor.hp, of_.options().how, rng);
      if (i->second.is_fitted())
        out.update(i->second.best_from(donor, in_.index, of_.more_.candidates, rng));
      return out;
    }

  private:
    const pb2_policy& of_;
    const policy_input& in_;
    std::map<std::string_view, gain_model> models_;
  };

  std::unique_ptr<explorer> explore_at(const policy_input& in) const override {
    return std::make_unique<modelling>(*this, in);
  }

  pb2_options more_;
};

} // namespace

std::unique_ptr<policy> make_pb2(const json& options, const search_space& space,
                                 std::span<const std::string> trainer_names, std::string_view where,
                                 std::vector<error>& faults) {
  const auto before = faults.size();
  object_reader in{options, std::string{where}, faults};
  pbt_options o;
  pb2_options more;
  read_pbt(in, o, trainer_names, faults);
  in.whole("max_points", more.max_points, 10, 1000);
  in.whole("candidates", more.candidates, 10, 1'000'000);
  in.finish();
  const auto& domains = space.domains();
  if (std::none_of(domains.begin(), domains.end(), [](const auto& d) { return is_modelled(d.second); }))
    faults.push_back(fault_at(
        where, "population based bandits need a \"search_space\" with at least one number or ordered "
               "choice to model"));
  return faults.size() == before ? std::make_unique<pb2_policy>(std::move(o), more, space) : nullptr;
}

} // namespace troupe::core
