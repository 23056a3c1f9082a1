#pragma once

#include <cmath>
#include <vector>

#include "troupe/core/random.hpp"
#include "troupe/gpu/basic_workload.hpp"
#include "troupe/gpu/dataset.hpp"
#include "troupe/gpu/ops.hpp"

namespace sample {

using namespace troupe;

/// Logistic regression with an L2 penalty, by stochastic gradient descent: minimises the mean of -log softmax(x W + b)[label]
/// plus l2 / 2 |W|^2. Written with Troupe's operations, so the same source runs on a CPU and on a GPU.
class logistic final : public gpu::basic_workload {
public:
  /// What all trainers share: the data in the host's memory, and the devices' copies of it.
  struct shared_data {
    gpu::dataset_ptr host;
    std::shared_ptr<gpu::data_cache> copies = std::make_shared<gpu::data_cache>();
  };

  logistic(gpu::context& ctx, const gpu::workload_config& cfg, const shared_data& data) : basic_workload("logistic", cfg) {
    rows_ = integer_option("batch", 100, 1, data.host->train.size());
    tunable("lr", lr_, 0, 100);
    tunable("l2", l2_, 0, 100);

    // Everything that a step needs is taken here. `data_` is the device's one copy, whoever else uses it.
    data_ = data.copies->resident(ctx, data.host);
    features_ = data.host->features;
    classes_ = data.host->classes;
    w_ = ctx.allocate_of<float>(features_ * classes_);
    w_momentum_ = ctx.allocate_of<float>(features_ * classes_);
    b_ = ctx.allocate_of<float>(classes_);
    b_momentum_ = ctx.allocate_of<float>(classes_);
    for (auto* x : {&w_, &w_momentum_, &b_, &b_momentum_}) // the problem is convex: zero is as good a start as any
      ctx.zero(x->data(), x->size());
    w_gradient_ = ctx.allocate_of<float>(features_ * classes_);
    b_gradient_ = ctx.allocate_of<float>(classes_);
    x_ = ctx.allocate_of<float>(rows_ * features_);
    labels_ = ctx.allocate_of<std::int32_t>(rows_);
    logits_ = ctx.allocate_of<float>(rows_ * classes_);
    counters_ = ctx.allocate_of<gpu::member_counters>(1);
    params_ = ctx.allocate_of<gpu::member_params>(2);

    weights("w", w_, {features_, classes_});
    weights("b", b_, {classes_});
    state("w_momentum", w_momentum_, {features_, classes_});
    state("b_momentum", b_momentum_, {classes_});
    counter("steps", steps_);
  }

  double step(gpu::context& ctx) override {
    upload_parameters(ctx);
    auto* params = params_.as<gpu::member_params>();
    auto* counters = counters_.as<gpu::member_counters>();
    begin_step(ctx, 1, params, counters, nullptr);

    // The batch: which examples follows from the seed and the step.
    gather(ctx, 1, data_->train(), counters, -1, x(rows_), labels(rows_));
    // logits = x W; then the loss, and on the spot the gradient by the logits (and by the bias, its column sums).
    gemm(ctx, 1, false, false, 1, x(rows_), w(), 0, logits(rows_));
    softmax_cross_entropy(ctx, 1, logits(rows_), flat(b_), labels(rows_), params, logits(rows_), flat(b_gradient_), counters,
                          nullptr);
    // The gradient by W is x^T times that. The penalty is the optimizer's weight decay; the bias has none.
    gemm(ctx, 1, true, false, 1, x(rows_), logits(rows_), 0, mat(w_gradient_, features_, classes_));
    sgd(ctx, 1, flat(w_), flat(w_momentum_), flat(w_gradient_), params, counters, {}, nullptr);
    sgd(ctx, 1, flat(b_), flat(b_momentum_), flat(b_gradient_), params + 1, counters, {}, nullptr);

    ++steps_;
    return read_counters(ctx).loss_sum;
  }

  gpu::evaluation evaluate(gpu::context& ctx) override {
    upload_parameters(ctx); // also clears the sums
    const auto& test = data_->test();
    for (std::int64_t i = 0; i < test.examples; i += rows_) {
      const auto n = std::min(rows_, test.examples - i);
      gather(ctx, 1, test, nullptr, i, x(n), labels(n));
      gemm(ctx, 1, false, false, 1, x(n), w(), 0, logits(n));
      softmax_cross_entropy(ctx, 1, logits(n), flat(b_), labels(n), params_.as<gpu::member_params>(), gpu::mat<float>{}, {},
                            counters_.as<gpu::member_counters>(), nullptr);
    }
    std::vector<float> w(static_cast<std::size_t>(features_ * classes_));
    ctx.download(w.data(), w_.data(), w_.size());
    double squares = 0;
    for (const double v : w)
      squares += v * v;

    gpu::evaluation out;
    out.accuracy = static_cast<double>(read_counters(ctx).correct) / static_cast<double>(test.examples);
    out.samples = steps_ * static_cast<std::uint64_t>(rows_);
    out.epoch = static_cast<double>(out.samples) / static_cast<double>(data_->train().examples);
    out.numbers["w_norm"] = std::sqrt(squares);
    return out;
  }

private:
  /// Hyperparameters and place in the data, as the operations read them. 64 bytes each: nothing beside a step.
  void upload_parameters(gpu::context& ctx) {
    gpu::member_params p[2];
    p[0].lr = p[1].lr = static_cast<float>(lr_);
    p[0].momentum = p[1].momentum = 0.9F;
    p[0].weight_decay = static_cast<float>(l2_);
    ctx.upload(params_.data(), p, sizeof p);
    gpu::member_counters c;
    c.seed = seed();
    c.step = c.batch = steps_;
    ctx.upload(counters_.data(), &c, sizeof c);
  }
  /// Waits for the device.
  gpu::member_counters read_counters(gpu::context& ctx) {
    gpu::member_counters c;
    ctx.download(&c, counters_.data(), sizeof c);
    return c;
  }

  // Views of the buffers, as matrices and vectors.
  static gpu::mat<float> mat(const gpu::buffer& b, std::int64_t rows, std::int64_t cols) {
    return gpu::mat<float>::dense(b.as<float>(), rows, cols);
  }
  static gpu::vec<float> flat(const gpu::buffer& b) {
    const auto n = static_cast<std::int64_t>(b.size() / sizeof(float));
    return {b.as<float>(), n, n};
  }
  gpu::mat<float> x(std::int64_t rows) const { return mat(x_, rows, features_); }
  gpu::mat<float> w() const { return mat(w_, features_, classes_); }
  gpu::mat<float> logits(std::int64_t rows) const { return mat(logits_, rows, classes_); }
  gpu::vec<std::int32_t> labels(std::int64_t rows) const { return {labels_.as<std::int32_t>(), rows, rows}; }

  std::shared_ptr<const gpu::resident_data> data_;
  std::int64_t rows_, features_, classes_;
  double lr_ = 0.01, l2_ = 0;
  std::uint64_t steps_ = 0;
  gpu::buffer w_, w_momentum_, w_gradient_, b_, b_momentum_, b_gradient_, x_, labels_, logits_, counters_, params_;
};

} // namespace sample
