#include <chrono>
#include <cmath>

#include "builtin_workloads.hpp"
#include "option_reader.hpp"
#include "troupe/gpu/basic_workload.hpp"

namespace troupe::gpu::internal {

namespace {

constexpr double max_lr = 1e6;

struct idle_options {
  double step_us = 0;
  std::int64_t weights = 1;
};

idle_options read_idle_options(const nlohmann::json& options, std::string_view where, std::vector<core::error>& faults) {
  idle_options out;
  option_reader in(options, std::string(where), faults);
  out.step_us = in.number("step_us", 0, 0, 60e6);
  out.weights = in.integer("weights", 1, 1, std::int64_t{1} << 32);
  in.finish();
  return out;
}

/// Steps that cost nothing (or keep the core busy for `step_us`), for measuring everything around them. It "learns" all the
/// same: the first weight grows by lr a step and the accuracy with it, so policies have something to choose between.
class idle_workload final : public basic_workload {
public:
  idle_workload(context&, const workload_config& cfg) : basic_workload("idle", cfg) {
    std::vector<core::error> faults;
    const auto options = read_idle_options(*cfg.options, "/workload", faults);
    if (!faults.empty())
      throw std::invalid_argument(faults.front().text);
    checks_options_itself();
    step_us_ = options.step_us;
    weights_.assign(static_cast<std::size_t>(options.weights), 0.0F);
    weights("w", weights_);
    counter("steps", steps_);
    tunable("lr", lr_, 0, max_lr);
  }

  double step(context&) override {
    if (step_us_ > 0) {
      const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double, std::micro>(step_us_);
      while (std::chrono::steady_clock::now() < until) {
      }
    }
    ++steps_;
    weights_.front() += static_cast<float>(lr_);
    return loss();
  }

  evaluation evaluate(context&) override {
    evaluation out;
    out.accuracy = 1 - loss();
    out.grad_norm = loss();
    out.epoch = static_cast<double>(steps_);
    out.samples = steps_;
    return out;
  }

private:
  /// A multiple of 2^-32, so that sums are exact and do not depend on how steps are grouped.
  double loss() const {
    constexpr double unit = 4294967296.0;
    return std::nearbyint(unit / (1 + static_cast<double>(weights_.front()))) / unit;
  }

  double step_us_ = 0;
  std::vector<float> weights_;
  std::uint64_t steps_ = 0;
  double lr_ = 0.01;
};

} // namespace

workload_registry::factory idle_factory() {
  return basic_workload::factory<idle_workload>();
}

workload_registry::checker idle_checker() {
  return [](const nlohmann::json& options, const core::hyperparameters& hp, std::string_view where,
            std::vector<core::error>& faults) {
    const std::string at(where);
    read_idle_options(options, at + "/workload", faults);
    for (const auto& [key, x] : hp) {
      const auto n = core::as_number(x);
      if (key != "lr")
        faults.push_back({core::errc::invalid_argument,
                          at + "/hyperparameters/" + pointer_token(key) + ": is no hyperparameter of idle; known is lr"});
      else if (!(n && *n >= 0 && *n <= max_lr))
        faults.push_back({core::errc::invalid_argument,
                          at + "/hyperparameters/lr: must be a number from 0 to 1e6, not " + core::to_string(x)});
    }
  };
}

} // namespace troupe::gpu::internal
