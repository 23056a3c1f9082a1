#include "wide_deep.hpp"

#include <stdexcept>

#include <nlohmann/json.hpp>

#include "troupe/gpu/dataset.hpp"
#include "troupe/gpu/model_workload.hpp"

namespace sample {

using gpu::mat;
using gpu::vec;

// 1. What the model remembers. Matrices first; the numbers are places in a member's weights, the same for every member.
wide_deep::places wide_deep::plan(std::int64_t features, std::int64_t hidden, std::int64_t classes) {
  places out;
  out.w1 = out.layout.add_matrix("deep.weight", {features, hidden}, features); // starts uniform in ±1/sqrt(features)
  out.w2 = out.layout.add_matrix("top.weight", {hidden, classes}, hidden);
  out.w3 = out.layout.add_matrix("wide.weight", {features, classes}, 0);       // starts at 0
  out.b1 = out.layout.add_vector("deep.bias", hidden, features);
  out.b2 = out.layout.add_vector("top.bias", classes, 0);
  return out;
}

wide_deep::wide_deep(gpu::context& ctx, std::int64_t features, std::int64_t hidden, std::int64_t classes, std::int64_t lanes,
                     std::int64_t rows)
  : wide_deep(ctx, plan(features, hidden, classes), features, hidden, classes, lanes, rows) {}

// 2. Its workspace: for one batch of each of `lanes` members. Nothing in it outlives a pass.
wide_deep::wide_deep(gpu::context& ctx, places at, std::int64_t features, std::int64_t hidden, std::int64_t classes,
                     std::int64_t lanes, std::int64_t rows)
  : model(ctx, std::move(at.layout), lanes, rows), features_(features), hidden_(hidden), classes_(classes), w1_(at.w1), w2_(at.w2),
    w3_(at.w3), b1_(at.b1), b2_(at.b2), input_(take<float>(rows * features)), deep_(take<float>(rows * hidden)),
    logits_(take<float>(rows * classes)), logit_error_(take<float>(rows * classes)), deep_error_(take<float>(rows * hidden)),
    labels_(take<std::int32_t>(rows)) {}

mat<const float> wide_deep::matrix(std::int64_t at, std::int64_t rows, std::int64_t cols) const {
  return {state().weights + at, rows, cols, cols, state().stride};
}

vec<const float> wide_deep::vector(std::int64_t at, std::int64_t n) const { return {state().weights + at, n, state().stride}; }

// 3. A batch of each member, drawn by its own seed and counters.
void wide_deep::load_input(const gpu::data_source& data, const gpu::member_counters* counters, std::int64_t offset,
                           std::int64_t rows) {
  gather(ctx(), members(), data, counters, offset, input_.view(rows, features_), labels_.flat(rows));
}

// 4. The way there. Every operation takes the number of members and does all of them.
void wide_deep::forward(const pass& p) {
  const auto x = input_.view(p.rows, features_);
  const auto h = deep_.view(p.rows, hidden_);
  const auto y = logits_.view(p.rows, classes_);
  gemm(ctx(), members(), false, false, 1, x, matrix(w1_, features_, hidden_), 0, h);
  bias_act(ctx(), members(), gpu::activation::relu, h, vector(b1_, hidden_), h);
  if (p.training && p.dropout) // without this line the hyperparameter "dropout" would do nothing
    dropout(ctx(), members(), h, p.params, p.counters, 0, h);
  gemm(ctx(), members(), false, false, 1, h, matrix(w2_, hidden_, classes_), 0, y);
  gemm(ctx(), members(), false, false, 1, x, matrix(w3_, features_, classes_), 1, y);
}

// 5. How good it is; used on held-out data.
void wide_deep::loss(const pass& p) {
  softmax_cross_entropy<float>(ctx(), members(), logits_.view(p.rows, classes_), vector(b2_, classes_), labels_.flat(p.rows),
                               p.params, {}, {}, p.counters, p.active);
}

// 6. The way back. The gradient of a matrix is one product that is added to product_scale times what is there; a vector's is
// written. The optimizer is not the model's affair.
void wide_deep::backward(const pass& p, const gpu::gradient_target& to) {
  const auto matrix_gradient = [&](std::int64_t at, std::int64_t rows, std::int64_t cols) {
    return mat<float>{to.products + at, rows, cols, cols, to.product_stride};
  };
  const auto vector_gradient = [&](std::int64_t at, std::int64_t n) { return vec<float>{to.vectors + at, n, to.vector_stride}; };
  const auto x = input_.view(p.rows, features_);
  const auto h = deep_.view(p.rows, hidden_);
  const auto dy = logit_error_.view(p.rows, classes_);
  const auto dh = deep_error_.view(p.rows, hidden_);
  softmax_cross_entropy(ctx(), members(), logits_.view(p.rows, classes_), vector(b2_, classes_), labels_.flat(p.rows), p.params, dy,
                        vector_gradient(b2_, classes_), p.counters, p.active);
  gemm(ctx(), members(), true, false, 1, x, dy, to.product_scale, matrix_gradient(w3_, features_, classes_));
  gemm(ctx(), members(), true, false, 1, h, dy, to.product_scale, matrix_gradient(w2_, hidden_, classes_));
  gemm(ctx(), members(), false, true, 1, dy, matrix(w2_, hidden_, classes_), 0, dh);
  if (p.training && p.dropout) // the same call, and so the same places, as on the way there
    dropout(ctx(), members(), dh, p.params, p.counters, 0, dh);
  act_backward(ctx(), members(), gpu::activation::relu, dh, mat<const float>(h), dh, vector_gradient(b1_, hidden_));
  gemm(ctx(), members(), true, false, 1, x, dh, to.product_scale, matrix_gradient(w1_, features_, hidden_));
}

namespace {

// 7. What an experiment file may say of it. Every fault begins with its place in the file.
struct options {
  std::int64_t hidden = 64, batch = 64;
  gpu::data_spec data;
};

options read(const nlohmann::json& j, const std::string& where, std::vector<core::error>& faults) {
  options out;
  out.data.type = "synthetic";
  for (const auto& [key, x] : j.items()) {
    if (key == "data") {
      out.data = gpu::data_spec::from_json(x, where + "/data", faults);
    } else if (key != "hidden" && key != "batch") {
      faults.push_back({core::errc::invalid_argument, where + "/" + key + ": is no option; known are batch, data, hidden"});
    } else if (!x.is_number_unsigned() || x < 1 || x > 65536) {
      faults.push_back({core::errc::invalid_argument, where + "/" + key + ": must be a whole number from 1 to 65536"});
    } else {
      (key == "hidden" ? out.hidden : out.batch) = x.get<std::int64_t>();
    }
  }
  if (out.data.is_text())
    faults.push_back({core::errc::invalid_argument, where + "/data: has texts, and this model reads numbers or images"});
  else if (out.batch > out.data.most_examples())
    faults.push_back({core::errc::invalid_argument, where + "/batch: is more than the data's examples"});
  return out;
}

} // namespace

// 8. A name for experiments. Trainers of equal `trained_model`s on a slot run as one.
void add_wide_deep(gpu::workload_registry& to) {
  auto data = std::make_shared<gpu::data_cache>(); // loads each data set once, and copies it to a device once
  const auto make = [data](gpu::context& ctx, const gpu::workload_config& cfg) {
    std::vector<core::error> faults;
    const auto o = read(*cfg.options, "/workload", faults);
    if (!faults.empty())
      throw std::invalid_argument(faults.front().text);
    auto host = data->get(o.data);
    if (!host)
      throw std::invalid_argument(host.error().text);
    const auto features = (*host)->features, classes = (*host)->classes;
    gpu::trained_model what;
    what.kind = "wide_deep";
    what.architecture = std::to_string(features) + "-" + std::to_string(o.hidden) + "-" + std::to_string(classes);
    what.how.make = [=](gpu::context& c, std::int64_t lanes, std::int64_t rows) {
      return std::make_unique<wide_deep>(c, features, o.hidden, classes, lanes, rows);
    };
    what.how.batch = o.batch;
    what.how.data = data->resident(ctx, *host, gpu::data_place::where_it_fits);
    return gpu::make_model_workload(ctx, cfg, std::move(what));
  };
  const auto check = [](const nlohmann::json& options, const core::hyperparameters& hp, std::string_view where,
                        std::vector<core::error>& faults) {
    read(options, std::string(where) + "/workload", faults);
    gpu::check_model_hyperparameters(gpu::optimizer_kind::sgd, hp, where, faults);
  };
  to.add("wide_deep", make, check);
}

} // namespace sample
