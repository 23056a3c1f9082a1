#include "model_workload.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "model_hyperparameters.hpp"
#include "option_reader.hpp"
#include "troupe/gpu/training_group.hpp"

namespace troupe::gpu::internal {

namespace {

/// One network in training: a group of one member.
class model_workload final : public workload {
public:
  model_workload(context& ctx, model_kind kind, const model_options& options, const workload_config& cfg, data_cache& cache)
    : kind_(kind), hp_(default_hyperparameters(options.optimizer)),
      group_(ctx, options.network, options.optimizer, 1, options.batch, resident(ctx, options.data, cache)) {
    set(ctx, cfg.hp);
    group_.reset(0, cfg.seed);
  }

  double step(context& ctx) override { return run(ctx, 1).loss_sum; }

  run_report run(context& ctx, std::uint64_t max_steps) override {
    run_report out;
    // The CPU has done a step when it returns. A GPU is given as many as keep it busy for a while; that number depends on
    // the clock, results do not.
    const bool waits = ctx.kind() == device_kind::cpu;
    while (out.steps < max_steps && (out.steps == 0 || !ctx.should_yield())) {
      const auto n = waits ? 1 : std::min(chunk_, max_steps - out.steps);
      const auto start = std::chrono::steady_clock::now();
      for (std::uint64_t i = 0; i < n; ++i)
        group_.step();
      out.loss_sum += take_loss(n);
      out.steps += n;
      if (!waits)
        adapt_chunk(n, std::chrono::steady_clock::now() - start);
    }
    return out;
  }

  evaluation evaluate(context&) override {
    evaluation out;
    const auto quality = group_.evaluate().front();
    out.accuracy = quality.accuracy;
    out.numbers["eval_loss"] = quality.loss;
    out.grad_norm = group_.gradient_norms().front();
    const auto drawn = group_.counters(0).batch;
    out.epoch = static_cast<double>(drawn) / static_cast<double>(group_.batches_per_epoch());
    out.samples = drawn * static_cast<std::uint64_t>(group_.batch());
    return out;
  }

  void save(context&, core::checkpoint& out) override { group_.save(0, out); }

  void load(context&, const core::checkpoint& in, load_mode mode) override {
    group_.load(0, in, mode == load_mode::everything);
  }

  core::result<void> check(const core::hyperparameters& changes) const override {
    auto merged = hp_;
    merged.update(changes);
    std::string text;
    for (const auto& [key, fault] : hyperparameter_faults(group_.optimizer(), merged))
      text += (text.empty() ? "" : "; ") + key + ": " + fault;
    if (!text.empty())
      return core::error{core::errc::invalid_argument, std::move(text)};
    return {};
  }

  void set(context&, const core::hyperparameters& changes) override {
    if (auto ok = check(changes); !ok)
      throw std::invalid_argument(ok.error().text);
    hp_.update(changes);
    group_.set_params(0, to_params(group_.optimizer(), hp_));
  }

  bool is_weight(std::string_view tensor) const override {
    // Running statistics of batch normalisation belong to the weights around them.
    return tensor.starts_with("weights.") || tensor.starts_with("statistics.");
  }

  std::string signature() const override {
    const auto& data = group_.data().host();
    return (kind_ == model_kind::mlp ? "mlp " : "cnn ") + group_.net().spec().describe() + " on " + data.name + " with "
           + std::string(to_string(group_.optimizer()));
  }

  std::uint64_t memory_bytes() const override { return group_.memory_bytes(); }

private:
  static std::shared_ptr<const resident_data> resident(context& ctx, const data_spec& spec, data_cache& cache) {
    auto data = cache.get(spec);
    if (!data)
      throw std::runtime_error(data.error().text);
    return cache.resident(ctx, *data);
  }

  double take_loss(std::uint64_t steps) {
    const auto losses = group_.take_losses(0);
    if (losses.not_finite)
      throw not_finite("the loss is not finite at step "
                       + std::to_string(group_.counters(0).step) + (steps > 1 ? " or shortly before" : "")
                       + ": lower the learning rate or set clip_norm");
    // A multiple of 2^-32: sums of these are exact, so they do not depend on how steps are grouped.
    constexpr double unit = 4294967296.0;
    return std::nearbyint(losses.sum * unit) / unit;
  }

  void adapt_chunk(std::uint64_t done, std::chrono::steady_clock::duration took) {
    using namespace std::chrono_literals;
    if (done == chunk_ && took < 500us && chunk_ < 256)
      chunk_ *= 2;
    else if (took > 2ms && chunk_ > 1)
      chunk_ /= 2;
  }

  model_kind kind_;
  core::hyperparameters hp_; ///< complete
  training_group group_;
  std::uint64_t chunk_ = 1;
};

/// The first of Fashion-MNIST's files that is not there, else empty.
std::string missing_file(const data_spec& spec) {
  if (spec.type != "fashion_mnist")
    return {};
  const auto folder = spec.path.empty() ? fashion_mnist_folder() : spec.path;
  for (const auto* name : {"train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz",
                           "t10k-labels-idx1-ubyte.gz"}) {
    std::error_code ignored;
    if (!std::filesystem::exists(folder + "/" + name, ignored))
      return folder + "/" + name;
  }
  return {};
}

} // namespace

workload_registry::factory model_factory(model_kind kind, std::shared_ptr<data_cache> cache) {
  return [kind, cache = std::move(cache)](context& ctx, const workload_config& cfg) -> std::unique_ptr<workload> {
    std::vector<core::error> faults;
    const auto options = read_model_options(kind, *cfg.options, "/workload", faults);
    for (const auto& [key, text] : hyperparameter_faults(options.optimizer, cfg.hp))
      faults.push_back({core::errc::invalid_argument, "/hyperparameters/" + pointer_token(key) + ": " + text});
    if (!faults.empty()) {
      std::string all;
      for (const auto& f : faults)
        all += (all.empty() ? "" : "; ") + f.text;
      throw std::invalid_argument(all);
    }
    return std::make_unique<model_workload>(ctx, kind, options, cfg, *cache);
  };
}

workload_registry::checker model_checker(model_kind kind) {
  return [kind](const nlohmann::json& options, const core::hyperparameters& hp, std::string_view where,
                std::vector<core::error>& faults) {
    const std::string at(where);
    const auto before = faults.size();
    const auto read = read_model_options(kind, options, at + "/workload", faults);
    if (faults.size() == before)
      if (const auto file = missing_file(read.data); !file.empty())
        faults.push_back({core::errc::not_found,
                          at + "/workload/data: " + file + " is not there: install Debian's package dataset-fashion-mnist, or set "
                            "TROUPE_DATA_DIR to the folder that holds fashion-mnist/"});
    for (const auto& [key, text] : hyperparameter_faults(read.optimizer, hp))
      faults.push_back({core::errc::invalid_argument, at + "/hyperparameters/" + pointer_token(key) + ": " + text});
  };
}

} // namespace troupe::gpu::internal
