#include "troupe/gpu/workload.hpp"

#include <cmath>

#include "troupe/gpu/context.hpp"
#include "troupe/gpu/slot_worker.hpp"

namespace troupe::gpu {

void workload::run(context& ctx, std::uint64_t max_steps, run_report& done) {
  while (done.steps < max_steps) {
    const double loss = step(ctx);
    if (!std::isfinite(loss))
      throw not_finite("the loss is " + core::to_string(core::value(loss)) +
                       "; a lower learning rate or gradient clipping may help");
    done.loss_sum += loss;
    ++done.steps;
    if (ctx.should_yield())
      break;
  }
}

void workload_registry::add(std::string type, factory make, checker check) {
  entries_.insert_or_assign(std::move(type), entry{std::move(make), std::move(check)});
}

namespace {

core::error unknown_type(std::string_view type, const std::vector<std::string>& names) {
  std::string list;
  for (const auto& n : names)
    list += (list.empty() ? "" : ", ") + n;
  return {core::errc::not_found,
          "there is no workload \"" + std::string(type) + "\"; known are: " + (list.empty() ? "none" : list)};
}

} // namespace

core::result<std::unique_ptr<workload>> workload_registry::make(context& ctx, std::string_view type,
                                                                const workload_config& cfg) const {
  const auto at = entries_.find(type);
  if (at == entries_.end())
    return unknown_type(type, names());
  try {
    auto work = at->second.make(ctx, cfg);
    if (work != nullptr)
      return work;
    return core::error{core::errc::failed, "trainer \"" + cfg.name + "\": the factory of workload \"" +
                                               at->first + "\" made nothing"};
  } catch (...) {
    auto err = current_error();
    err.text = "trainer \"" + cfg.name + "\": workload \"" + at->first + "\" cannot be built: " + err.text;
    return err;
  }
}

void workload_registry::check(std::string_view type, const nlohmann::json& options,
                              const core::hyperparameters& hp, std::string_view where,
                              std::vector<core::error>& faults) const {
  const auto at = entries_.find(type);
  if (at == entries_.end()) {
    auto err = unknown_type(type, names());
    faults.push_back({core::errc::invalid_argument, std::string(where) + "/type: " + err.text});
  } else if (at->second.check) {
    at->second.check(options, hp, where, faults);
  }
}

bool workload_registry::contains(std::string_view type) const {
  return entries_.find(type) != entries_.end();
}

std::vector<std::string> workload_registry::names() const {
  std::vector<std::string> out;
  for (const auto& [name, e] : entries_)
    out.push_back(name);
  return out;
}

} // namespace troupe::gpu
