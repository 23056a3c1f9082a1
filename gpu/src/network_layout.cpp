#include "network_layout.hpp"

#include <stdexcept>

namespace troupe::gpu {

std::string_view to_string(norm_kind x) noexcept {
  switch (x) {
  case norm_kind::none: return "none";
  case norm_kind::layer: return "layer";
  case norm_kind::batch: return "batch";
  }
  return "?";
}

std::string_view to_string(activation x) noexcept {
  switch (x) {
  case activation::none: return "none";
  case activation::relu: return "relu";
  case activation::gelu: return "gelu";
  }
  return "?";
}

std::string network_spec::describe() const {
  std::string out = conv.empty() ? std::to_string(features)
                                 : std::to_string(height) + "x" + std::to_string(width) + "x" + std::to_string(channels);
  for (const auto& c : conv) {
    out += "-c" + std::to_string(c.filters) + "k" + std::to_string(c.kernel) + "s" + std::to_string(c.stride) + "p"
           + std::to_string(c.pad);
    if (c.pool > 1)
      out += "m" + std::to_string(c.pool);
  }
  for (auto h : hidden)
    out += "-" + std::to_string(h);
  out += "-" + std::to_string(classes) + " " + std::string(to_string(act));
  if (norm != norm_kind::none)
    out += " " + std::string(to_string(norm)) + "-norm";
  return out;
}

namespace internal {

namespace {

[[noreturn]] void refuse(const std::string& text) {
  throw std::invalid_argument("network: " + text);
}

block conv_block(const conv_spec& c, std::int32_t h, std::int32_t w, std::int32_t channels, std::size_t index) {
  const auto name = "conv" + std::to_string(index);
  if (c.filters < 1 || c.kernel < 1 || c.stride < 1 || c.pad < 0 || c.pool < 1)
    refuse(name + " has a size below its least");
  if (c.pad >= c.kernel)
    refuse(name + " has a padding of " + std::to_string(c.pad) + ", not smaller than its kernel of "
           + std::to_string(c.kernel));
  if (h + 2 * c.pad < c.kernel || w + 2 * c.pad < c.kernel)
    refuse(name + " has a kernel of " + std::to_string(c.kernel) + ", larger than its image of " + std::to_string(h) + " x "
           + std::to_string(w));
  block b;
  b.is_conv = true;
  b.shape = {1, h, w, channels, c.kernel, c.kernel, c.stride, c.pad};
  const auto oh = b.shape.out_h(), ow = b.shape.out_w();
  b.rows = std::int64_t{oh} * ow;
  b.inner = std::int64_t{c.kernel} * c.kernel * channels;
  b.cols = c.filters;
  b.in_features = std::int64_t{h} * w * channels;
  b.pool = c.pool;
  b.pool_shape = {1, oh, ow, c.filters, c.pool, c.pool, c.pool, 0};
  if (oh < c.pool || ow < c.pool)
    refuse(name + " pools " + std::to_string(c.pool) + " x " + std::to_string(c.pool) + " pixels of an image of "
           + std::to_string(oh) + " x " + std::to_string(ow));
  b.out_features = c.pool > 1 ? std::int64_t{b.pool_shape.out_h()} * b.pool_shape.out_w() * c.filters : b.rows * c.filters;
  return b;
}

} // namespace

layout make_layout(const network_spec& spec) {
  if (spec.features < 1 || spec.classes < 2)
    refuse("needs at least 1 feature and 2 classes");
  if (!spec.conv.empty() && (spec.height < 1 || std::int64_t{spec.height} * spec.width * spec.channels != spec.features))
    refuse("convolutions need images, and this data has none");
  layout out;
  out.precision = spec.precision;
  std::int64_t width = spec.features;
  auto h = spec.height, w = spec.width, channels = spec.channels;
  for (std::size_t i = 0; i < spec.conv.size(); ++i) {
    auto b = conv_block(spec.conv[i], h, w, channels, i);
    h = b.pool > 1 ? b.pool_shape.out_h() : b.shape.out_h();
    w = b.pool > 1 ? b.pool_shape.out_w() : b.shape.out_w();
    channels = spec.conv[i].filters;
    width = b.out_features;
    if (spec.norm == norm_kind::layer)
      refuse("layer normalisation is for dense layers; convolutions take batch normalisation");
    out.blocks.push_back(b);
  }
  for (std::size_t i = 0; i <= spec.hidden.size(); ++i) {
    block b;
    b.is_head = i == spec.hidden.size();
    b.inner = b.in_features = width;
    b.cols = b.out_features = width = b.is_head ? spec.classes : spec.hidden[i];
    if (b.cols < 1)
      refuse("dense" + std::to_string(i) + " has no outputs");
    out.blocks.push_back(b);
  }

  auto name_of = [&](std::size_t i) {
    const auto& b = out.blocks[i];
    if (b.is_head)
      return std::string("output");
    return b.is_conv ? "conv" + std::to_string(i) : "dense" + std::to_string(i - spec.conv.size());
  };
  for (std::size_t i = 0; i < out.blocks.size(); ++i) {
    auto& b = out.blocks[i];
    std::vector<std::int64_t> shape = {b.inner, b.cols};
    if (b.is_conv)
      shape = {b.shape.kh, b.shape.kw, b.shape.c, b.cols};
    b.weight = out.add_matrix(name_of(i) + ".weight", shape, b.inner);
  }
  for (std::size_t i = 0; i < out.blocks.size(); ++i) {
    auto& b = out.blocks[i];
    const auto name = name_of(i);
    b.norm = b.is_head ? norm_kind::none : spec.norm;
    if (b.norm == norm_kind::none) {
      b.bias = out.add_vector(name + ".bias", b.cols, b.inner);
      continue;
    }
    // The normalisation's shift stands for the linear layer's bias.
    b.gain = out.add_vector(name + ".gain", b.cols, 0, 1);
    b.bias = out.add_vector(name + ".shift", b.cols, 0, 0);
    if (b.norm == norm_kind::batch)
      b.running = out.add_statistics({name + ".mean", name + ".variance"}, b.cols, {0, 1});
  }
  return out;
}

} // namespace internal
} // namespace troupe::gpu
