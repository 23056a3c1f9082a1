#include "model_options.hpp"

#include <algorithm>
#include <stdexcept>

#include "network_layout.hpp"
#include "option_reader.hpp"
#include "transformer_layout.hpp"

namespace troupe::gpu::internal {

namespace {

constexpr std::int64_t most_units = 1 << 16;
constexpr std::int64_t most_parameters = std::int64_t{1} << 31;

std::vector<conv_spec> read_convolutions(option_reader& in) {
  std::vector<conv_spec> out = {{16, 3, 1, 1, 2}, {32, 3, 1, 1, 2}};
  const auto* list = in.raw("conv");
  if (list == nullptr)
    return out;
  if (!list->is_array() || list->empty() || list->size() > 32) {
    in.fault("conv", "must be an array of 1 to 32 objects such as {\"filters\": 16, \"kernel\": 3, \"pool\": 2}");
    return out;
  }
  out.clear();
  for (std::size_t i = 0; i < list->size(); ++i) {
    option_reader c((*list)[i], in.pointer("conv") + "/" + std::to_string(i), in.faults());
    conv_spec s;
    s.filters = static_cast<std::int32_t>(c.integer("filters", 16, 1, 4096));
    s.kernel = static_cast<std::int32_t>(c.integer("kernel", 3, 1, 31));
    s.stride = static_cast<std::int32_t>(c.integer("stride", 1, 1, 31));
    s.pad = static_cast<std::int32_t>(c.integer("pad", s.kernel / 2, 0, 30));
    s.pool = static_cast<std::int32_t>(c.integer("pool", 1, 1, 16));
    c.finish();
    out.push_back(s);
  }
  return out;
}

} // namespace

transformer_options read_transformer_options(const nlohmann::json& options, std::string_view where,
                                             std::vector<core::error>& faults) {
  const auto before = faults.size();
  transformer_options out;
  option_reader in(options, std::string(where), faults);
  out.data.type = "languages";
  if (const auto* data = in.raw("data"); data != nullptr)
    out.data = data_spec::from_json(*data, in.pointer("data"), faults);
  out.batch = in.integer("batch", out.batch, 1, 1 << 20);
  auto& net = out.network;
  net.width = in.integer("width", net.width, 1, most_units);
  net.heads = in.integer("heads", net.heads, 1, most_units);
  net.layers = in.integer("layers", net.layers, 1, 256);
  net.hidden = in.integer("hidden", std::min(4 * net.width, most_units), 1, most_units);
  net.precision = in.choice("precision", "fp32", {"fp32", "bf16"}) == "bf16" ? precision_kind::bf16 : precision_kind::fp32;
  out.optimizer = in.choice("optimizer", "adamw", {"adamw", "sgd"}) == "adamw" ? optimizer_kind::adamw : optimizer_kind::sgd;
  in.finish();
  if (faults.size() != before)
    return out;
  if (!out.data.is_text()) {
    in.fault("data", "has no texts: \"transformer\" reads \"languages\" or \"synthetic_text\"");
    return out;
  }
  net.vocabulary = out.data.token_count();
  net.length = out.data.feature_count();
  net.classes = out.data.class_count();
  if (out.batch > out.data.most_examples())
    in.fault("batch", std::to_string(out.batch) + " is more than the data's " + std::to_string(out.data.most_examples())
                        + " training examples");
  if (net.width % net.heads != 0)
    in.fault("heads", std::to_string(net.heads) + " heads cannot share a width of " + std::to_string(net.width) + " evenly");
  else if (const auto n = make_layout(net).size; n > most_parameters)
    in.fault("width", "makes a network of " + std::to_string(n) + " weights, more than " + std::to_string(most_parameters));
  return out;
}

model_options read_model_options(model_kind kind, const nlohmann::json& options, std::string_view where,
                                 std::vector<core::error>& faults) {
  const auto before = faults.size();
  model_options out;
  option_reader in(options, std::string(where), faults);
  if (const auto* data = in.raw("data"); data != nullptr)
    out.data = data_spec::from_json(*data, in.pointer("data"), faults);
  out.batch = in.integer("batch", 128, 1, 1 << 20);
  auto& net = out.network;
  if (kind == model_kind::cnn) {
    net.conv = read_convolutions(in);
    net.hidden = in.integers("dense", {128}, 1, most_units, 0, 64);
  } else {
    net.hidden = in.integers("hidden", {256, 256}, 1, most_units, 0, 64);
  }
  const auto act = in.choice("activation", "relu", {"relu", "gelu", "none"});
  net.act = act == "relu" ? activation::relu : act == "gelu" ? activation::gelu : activation::none;
  const auto norm = kind == model_kind::cnn ? in.choice("norm", "none", {"none", "batch"})
                                            : in.choice("norm", "none", {"none", "layer", "batch"});
  net.norm = norm == "none" ? norm_kind::none : norm == "layer" ? norm_kind::layer : norm_kind::batch;
  net.precision = in.choice("precision", "fp32", {"fp32", "bf16"}) == "bf16" ? precision_kind::bf16 : precision_kind::fp32;
  out.optimizer = in.choice("optimizer", "sgd", {"sgd", "adamw"}) == "adamw" ? optimizer_kind::adamw : optimizer_kind::sgd;
  in.finish();
  if (faults.size() != before)
    return out;

  // What depends on several options at once.
  if (out.data.is_text()) {
    in.fault("data", "has texts, which the workload \"transformer\" reads; this one needs numbers or images");
    return out;
  }
  net.features = out.data.feature_count();
  net.classes = out.data.class_count();
  if (out.data.type == "fashion_mnist") {
    net.height = net.width = 28;
    net.channels = 1;
  } else if (out.data.is_image()) {
    net.height = out.data.height;
    net.width = out.data.width;
    net.channels = out.data.channels;
  }
  const auto examples = out.data.most_examples();
  if (out.batch > examples)
    in.fault("batch", std::to_string(out.batch) + " is more than the data's " + std::to_string(examples)
                        + " training examples");
  if (net.norm == norm_kind::batch && out.batch < 2)
    in.fault("batch", "batch normalisation needs at least 2 examples in a batch");
  const std::string_view shape_key = kind == model_kind::cnn ? "conv" : "hidden";
  try {
    if (const auto n = make_layout(net).size; n > most_parameters)
      in.fault(shape_key, "makes a network of " + std::to_string(n) + " weights, more than " + std::to_string(most_parameters));
  } catch (const std::invalid_argument& e) {
    in.fault(shape_key, e.what());
  }
  return out;
}

} // namespace troupe::gpu::internal
