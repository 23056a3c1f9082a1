#pragma once

#include <cmath>

#include "troupe/core/random.hpp"
#include "troupe/gpu/basic_workload.hpp"

using namespace troupe;

/// Matrix factorisation: learns a few numbers for each user and each item whose products are the ratings that users give.
/// One rating in ten is held out. No network, no GPU: a workload is anything that takes steps.
class factors final : public gpu::basic_workload {
public:
  factors(gpu::context&, const gpu::workload_config& cfg) : basic_workload("factors", cfg) {
    // 1. Options: what the model is. They come from the experiment's "workload" object and never change.
    rank_ = integer_option("rank", 4, 1, 64);
    // 2. Hyperparameters: what a policy, or someone outside, may change while it trains.
    tunable("lr", lr_, 0, 1);
    tunable("decay", decay_, 0, 1);
    // 3. State: weights are saved, copied and averaged between trainers; a counter is only saved.
    core::random_stream start(seed(), "start");
    for (auto* table : {&users_, &items_})
      for (int n = 0; n < count * rank_; ++n)
        table->push_back(static_cast<float>(0.1 * start.normal()));
    weights("users", users_, {count, rank_});
    weights("items", items_, {count, rank_});
    counter("steps", steps_);
  }

  // 4. One step. What it draws depends on the seed and the step alone, so that a training can be repeated, and resumed.
  double step(gpu::context&) override {
    core::random_stream draw(seed(), "batch", steps_++);
    double squares = 0;
    for (int n = 0; n < batch; ++n) {
      const auto u = draw.below(count), i = (u + 1 + draw.below(9) + 10 * draw.below(count / 10)) % count;
      const double e = error(u, i);
      squares += e * e;
      for (int k = 0; k < rank_; ++k) {
        float &p = users_[u * rank_ + k], &q = items_[i * rank_ + k];
        const double p_gradient = e * q + decay_ * p, q_gradient = e * p + decay_ * q;
        p -= static_cast<float>(lr_ * p_gradient);
        q -= static_cast<float>(lr_ * q_gradient);
      }
    }
    return squares / batch;
  }

  // 5. What a trainer reports at a sync point. Numbers of one's own have names, and policies can go by them.
  gpu::evaluation evaluate(gpu::context&) override {
    gpu::evaluation out;
    double squares = 0;
    for (std::uint64_t u = 0; u < count; ++u)
      for (std::uint64_t i = u % 10; i < count; i += 10) // held out: those that step never draws
        squares += error(u, i) * error(u, i);
    out.numbers["rmse"] = std::sqrt(squares / (count * count / 10));
    return out;
  }

private:
  /// Predicted less given. The ratings come from three hidden tastes, made of sines so that nobody needs a file.
  double error(std::uint64_t u, std::uint64_t i) const {
    double sum = 0;
    for (int k = 1; k <= 3; ++k)
      sum -= std::sin(0.7 * k * static_cast<double>(u)) * std::cos(0.4 * k * static_cast<double>(i));
    for (int k = 0; k < rank_; ++k)
      sum += static_cast<double>(users_[u * rank_ + k]) * items_[i * rank_ + k];
    return sum;
  }

  static constexpr int count = 120, batch = 256; // users, items; ratings of a step
  std::int64_t rank_;
  double lr_ = 0.05, decay_ = 0.001;
  std::vector<float> users_, items_;
  std::uint64_t steps_ = 0;
};
