#pragma once

#include "troupe/gpu/model.hpp"
#include "troupe/gpu/workload.hpp"

namespace sample {

using namespace troupe;

/// A network with a short cut: logits = relu(x W1 + b1) W2 + x W3 + b2. What is easy goes through W3 alone. Written in Troupe's
/// operations for `members()` networks at once, so that networks of several trainers step as one, on a CPU and on a GPU.
class wide_deep final : public gpu::model {
public:
  wide_deep(gpu::context& ctx, std::int64_t features, std::int64_t hidden, std::int64_t classes, std::int64_t lanes,
            std::int64_t rows);

  void load_input(const gpu::data_source& data, const gpu::member_counters* counters, std::int64_t offset,
                  std::int64_t rows) override;
  void forward(const pass& p) override;
  void loss(const pass& p) override;
  void backward(const pass& p, const gpu::gradient_target& to) override;

private:
  /// Where a matrix or a vector begins in a member's weights.
  struct places {
    gpu::model_layout layout;
    std::int64_t w1, w2, w3, b1, b2;
  };
  static places plan(std::int64_t features, std::int64_t hidden, std::int64_t classes);
  wide_deep(gpu::context& ctx, places at, std::int64_t features, std::int64_t hidden, std::int64_t classes, std::int64_t lanes,
            std::int64_t rows);

  gpu::mat<const float> matrix(std::int64_t at, std::int64_t rows, std::int64_t cols) const;
  gpu::vec<const float> vector(std::int64_t at, std::int64_t n) const;

  std::int64_t features_, hidden_, classes_, w1_, w2_, w3_, b1_, b2_;
  gpu::lane_memory<float> input_, deep_, logits_, logit_error_, deep_error_;
  gpu::lane_memory<std::int32_t> labels_;
};

/// Workload "wide_deep" for experiments: options `hidden` (64), `batch` (64) and `data` ("synthetic" with its keys), and the
/// hyperparameters of Troupe's own networks.
void add_wide_deep(gpu::workload_registry& to);

} // namespace sample
