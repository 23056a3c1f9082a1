#include "transformer_layout.hpp"

#include <stdexcept>

namespace troupe::gpu {

std::string transformer_spec::describe() const {
  const auto n = [](std::int64_t x) { return std::to_string(x); };
  return "text " + n(vocabulary) + "x" + n(length) + " width " + n(width) + " heads " + n(heads) + " layers " + n(layers) + " hidden "
         + n(hidden) + " classes " + n(classes);
}

namespace internal {

transformer_layout make_layout(const transformer_spec& s) {
  const auto refuse = [](const std::string& text) { throw std::invalid_argument("transformer: " + text); };
  if (s.vocabulary < 2 || s.length < 1 || s.classes < 2)
    refuse("needs at least 2 tokens, texts of at least 1, and 2 classes");
  if (s.width < 1 || s.heads < 1 || s.layers < 1 || s.hidden < 1)
    refuse("needs a width, heads, layers and a hidden width of at least 1");
  if (s.width % s.heads != 0)
    refuse("a width of " + std::to_string(s.width) + " cannot be shared evenly by " + std::to_string(s.heads) + " heads");
  transformer_layout out;
  out.precision = s.precision;
  const auto name_of = [](std::int64_t i) { return "layer" + std::to_string(i); };
  for (std::int64_t i = 0; i < s.layers; ++i) {
    auto& l = out.layers.emplace_back();
    l.qkv = out.add_matrix(name_of(i) + ".qkv.weight", {s.width, 3 * s.width}, s.width);
    l.projection = out.add_matrix(name_of(i) + ".projection.weight", {s.width, s.width}, s.width);
    l.up = out.add_matrix(name_of(i) + ".up.weight", {s.width, s.hidden}, s.width);
    l.down = out.add_matrix(name_of(i) + ".down.weight", {s.hidden, s.width}, s.hidden);
  }
  out.output = out.add_matrix("output.weight", {s.width, s.classes}, s.width);
  out.tokens = out.add_table("tokens.weight", {s.vocabulary, s.width}, s.width);
  out.positions = out.add_table("positions.weight", {s.length, s.width}, s.width);
  const auto norm = [&](const std::string& name, std::int64_t& gain, std::int64_t& shift) {
    gain = out.add_vector(name + ".gain", s.width, 0, 1);
    shift = out.add_vector(name + ".shift", s.width, 0, 0);
  };
  for (std::int64_t i = 0; i < s.layers; ++i) {
    auto& l = out.layers[static_cast<std::size_t>(i)];
    norm(name_of(i) + ".norm1", l.gain1, l.shift1);
    l.qkv_bias = out.add_vector(name_of(i) + ".qkv.bias", 3 * s.width, 0, 0);
    l.projection_bias = out.add_vector(name_of(i) + ".projection.bias", s.width, 0, 0);
    norm(name_of(i) + ".norm2", l.gain2, l.shift2);
    l.up_bias = out.add_vector(name_of(i) + ".up.bias", s.hidden, s.width);
    l.down_bias = out.add_vector(name_of(i) + ".down.bias", s.width, s.hidden);
  }
  norm("norm", out.gain, out.shift);
  out.output_bias = out.add_vector("output.bias", s.classes, s.width);
  return out;
}

} // namespace internal
} // namespace troupe::gpu
