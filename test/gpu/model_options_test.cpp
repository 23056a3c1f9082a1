#include <cmath>

#include <doctest/doctest.h>

#include "gpu/model_support.hpp"

using namespace troupe;
using namespace troupe::gpu;
using namespace model_test;

namespace {

using nlohmann::json;

std::vector<std::string> faults_of(const char* type, const json& options, const core::hyperparameters& hp = {}) {
  std::vector<core::error> faults;
  builtin_workloads().check(type, options, hp, "/trainers/2", faults);
  std::vector<std::string> out;
  for (const auto& f : faults)
    out.push_back(f.text);
  return out;
}

/// The only fault.
std::string fault_of(const char* type, const json& options, const core::hyperparameters& hp = {}) {
  const auto all = faults_of(type, options, hp);
  REQUIRE_MESSAGE(all.size() == 1, json(all).dump());
  return all.front();
}

json with(json base, const char* key, json value) {
  base[key] = std::move(value);
  return base;
}

} // namespace

TEST_CASE("good options have no faults") {
  CHECK(faults_of("mlp", json::object()).empty());
  CHECK(faults_of("cnn", json::object()).empty());
  CHECK(faults_of("idle", json::object()).empty());
  CHECK(faults_of("transformer", {{"data", "synthetic_text"}}, {{"lr", 0.001}, {"beta2", 0.99}, {"dropout", 0.1}}).empty());
  CHECK(faults_of("transformer", with(small_transformer(), "optimizer", "sgd"), {{"momentum", 0.8}}).empty());
  CHECK(faults_of("mlp", small_mlp(), {{"lr", 0.1}, {"momentum", 0.0}, {"nesterov", true}}).empty());
  CHECK(faults_of("mlp", with(small_mlp(), "optimizer", "adamw"), {{"lr", 1e-3}, {"beta1", 0.8}, {"epsilon", 1e-6}}).empty());
  CHECK(faults_of("cnn", with(small_cnn(), "norm", "batch"), {{"schedule", std::string("cosine")}}).empty());
  CHECK(faults_of("mlp", with(small_mlp(), "hidden", json::array())).empty());
}

TEST_CASE("faulty options of a transformer are named with their places") {
  const auto base = small_transformer();
  CHECK(mentions(fault_of("transformer", with(base, "heads", 3)), "/workload/heads: 3 heads cannot share a width of 16 evenly"));
  CHECK(mentions(fault_of("transformer", with(base, "width", 0)), "/workload/width: must be a whole number from 1"));
  CHECK(mentions(fault_of("transformer", with(base, "layers", "two")), "/workload/layers: must be a whole number from 1 to 256"));
  CHECK(mentions(fault_of("transformer", with(base, "hidden", 1.5)), "/workload/hidden"));
  CHECK(mentions(fault_of("transformer", with(base, "batch", 257)), "/workload/batch: 257 is more than the data's 256"));
  CHECK(mentions(fault_of("transformer", with(base, "activation", "relu")), "/workload/activation: unknown key; known here: data, batch, width"));
  CHECK(mentions(fault_of("transformer", with(with(base, "width", 65536), "hidden", 65536)), "/workload/width: makes a network of"));
  CHECK(mentions(fault_of("transformer", with(base, "data", "synthetic")), "/workload/data: has no texts"));
  CHECK(mentions(fault_of("mlp", with(small_mlp(), "data", "synthetic_text")), "/workload/data: has texts, which the workload \"transformer\""));
  CHECK(mentions(fault_of("transformer", base, {{"momentum", 0.9}}), "/hyperparameters/momentum: belongs to another optimizer"));
  CHECK(mentions(fault_of("transformer", with(base, "data", {{"type", "languages"}, {"path", "/nowhere"}})),
                 "/workload/data: no such word list: /nowhere/american-english"));
  CHECK(mentions(fault_of("transformer", with(base, "data", {{"type", "languages"}, {"path", "/nowhere"}})),
                 "apt-get install wamerican wfrench witalian wngerman wspanish"));
}

TEST_CASE("each faulty option is named with its place and what it may be") {
  CHECK(mentions(fault_of("mlp", with(small_mlp(), "batch", 0)),
                 "/trainers/2/workload/batch: must be a whole number from 1 to 1048576, not 0"));
  CHECK(mentions(fault_of("mlp", with(small_mlp(), "batch", 257)), "/workload/batch: 257 is more than the data's 256"));
  CHECK(mentions(fault_of("mlp", with(small_mlp(), "hidden", {64, "x"})), "/workload/hidden/1: must be a whole number"));
  CHECK(mentions(fault_of("mlp", with(small_mlp(), "hidden", 64)), "/workload/hidden: must be an array"));
  CHECK(mentions(fault_of("mlp", with(small_mlp(), "hidden", {65536, 65536})), "/workload/hidden: makes a network of"));
  CHECK(mentions(fault_of("mlp", with(small_mlp(), "activation", "tanh")), "/workload/activation: must be one of \"relu\""));
  CHECK(mentions(fault_of("mlp", with(small_mlp(), "norm", "group")), "/workload/norm: must be one of"));
  CHECK(mentions(fault_of("mlp", with(small_mlp(), "precision", "fp16")), "/workload/precision: must be one of \"fp32\", \"bf16\""));
  CHECK(mentions(fault_of("mlp", with(small_mlp(), "optimizer", 3)), "/workload/optimizer: must be one of \"sgd\", \"adamw\""));
  CHECK(mentions(fault_of("mlp", with(small_mlp(), "conv", 3)), "/workload/conv: unknown key; known here: data, batch, hidden"));
  CHECK(mentions(fault_of("mlp", with(small_mlp(), "data", "imagenet")), "/workload/data/type: must be one of"));
  CHECK(mentions(fault_of("mlp", with(with(small_mlp(), "norm", "batch"), "batch", 1)), "/workload/batch: batch norm"));
  CHECK(mentions(fault_of("mlp", {{"data", {{"type", "fashion_mnist"}, {"path", "/nowhere"}}}}),
                 "/workload/data: /nowhere/train-images-idx3-ubyte.gz is not there: \"path\" must name the folder"));
  CHECK(mentions(fault_of("cnn", with(small_cnn(), "conv", json::array())), "/workload/conv: must be an array of 1 to 32"));
  CHECK(mentions(fault_of("cnn", with(small_cnn(), "conv", {{{"filter", 8}}})), "/workload/conv/0/filter: unknown key; did you mean 'filters'? Known here: filters, kernel"));
  CHECK(mentions(fault_of("cnn", with(small_cnn(), "conv", {{{"kernel", 17}, {"pad", 0}}})), "/workload/conv: network: conv0"));
  CHECK(mentions(fault_of("cnn", with(small_cnn(), "data", small_data())), "/workload/conv: network: convolutions need images"));
  CHECK(mentions(fault_of("cnn", with(small_cnn(), "norm", "layer")), "/workload/norm"));
  CHECK(mentions(fault_of("idle", {{"step_us", -1}}), "/workload/step_us: must be a number"));
  CHECK(mentions(fault_of("idle", {{"steps", 1}}), "/workload/steps: unknown key"));
}

TEST_CASE("each faulty hyperparameter is named with its place and range") {
  auto fault = [](const char* key, core::value x) { return fault_of("mlp", small_mlp(), {{key, std::move(x)}}); };
  CHECK(mentions(fault("lr", -0.1), "/trainers/2/hyperparameters/lr: must be a number from 0"));
  CHECK(mentions(fault("lr", std::string("big")), "/hyperparameters/lr"));
  CHECK(mentions(fault("lr", std::nan("")), "not nan"));
  CHECK(mentions(fault("lr", HUGE_VAL), "not inf"));
  CHECK(mentions(fault("momentum", 1.0), "to below 1"));
  CHECK(mentions(fault("momentum", 1 - 1e-12), "to below 1"));
  CHECK(mentions(fault("dropout", 1.0), "/hyperparameters/dropout"));
  CHECK(mentions(fault("label_smoothing", -1e-9), "/hyperparameters/label_smoothing"));
  CHECK(mentions(fault("nesterov", std::int64_t{1}), "must be true or false"));
  CHECK(mentions(fault("schedule", std::string("linear")), "must be one of constant, step, cosine, warmup_cosine"));
  CHECK(mentions(fault("schedule_every", 1.5), "must be a whole number"));
  CHECK(mentions(fault("schedule_steps", std::int64_t{0}), "/hyperparameters/schedule_steps"));
  CHECK(mentions(fault("batch", std::int64_t{64}), "is no hyperparameter; known are lr"));
  CHECK(mentions(fault("beta1", 0.9), "belongs to another optimizer; sgd has lr"));
  CHECK(mentions(fault_of("mlp", with(small_mlp(), "optimizer", "adamw"), {{"momentum", 0.9}}), "adamw has lr"));
  CHECK(mentions(fault_of("mlp", small_mlp(),
                          {{"schedule", std::string("warmup_cosine")}, {"schedule_warmup", std::int64_t{10}},
                           {"schedule_steps", std::int64_t{10}}}),
                 "schedule_warmup: must be below schedule_steps"));
  CHECK(mentions(fault_of("idle", json::object(), {{"momentum", 0.9}}), "/hyperparameters/momentum: is no hyperparameter of idle"));
}

TEST_CASE("all faults are reported together") {
  const json options = {{"data", {{"type", "synthetic"}, {"classes", 0}}}, {"batch", -1}, {"hidden", {0}}, {"size", 3}};
  const auto all = faults_of("mlp", options, {{"lr", -1.0}, {"rate", 1.0}});
  CHECK(all.size() == 6);
}

TEST_CASE("a workload is not made from faulty options") {
  auto refused = [](const char* type, const json& options, const core::hyperparameters& hp = {}) {
    return thrown_text([&] { bench(builtin_workloads(), type, options, hp); });
  };
  CHECK(mentions(refused("mlp", with(small_mlp(), "batch", 0)), "/workload/batch: must be"));
  CHECK(mentions(refused("cnn", with(small_cnn(), "kernel", 3)), "/workload/kernel: unknown key"));
  CHECK(mentions(refused("mlp", small_mlp(), {{"lr", -1.0}}), "/hyperparameters/lr: must be"));
  CHECK(mentions(refused("idle", {{"step_us", "x"}}), "/workload/step_us"));
  CHECK(mentions(refused("idle", json::object(), {{"rate", 1.0}}), "/hyperparameters/rate: is no hyperparameter"));
  CHECK(mentions(refused("mlp", {{"data", {{"type", "fashion_mnist"}, {"path", "/nowhere"}}}}), "dataset-fashion-mnist"));
  CHECK(mentions(refused("lstm", json::object()), "mlp"));
}
