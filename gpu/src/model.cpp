#include "troupe/gpu/model.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>


namespace troupe::gpu {

namespace {

/// The next multiple of 32 elements: 64 bytes of bf16, 128 of fp32.
constexpr std::int64_t padded(std::int64_t elements) {
  return (elements + 31) / 32 * 32;
}

} // namespace

std::string_view to_string(precision_kind x) noexcept {
  return x == precision_kind::fp32 ? "fp32" : "bf16";
}

std::int64_t model_layout::add_weight(std::string_view name, std::vector<std::int64_t> shape, std::int64_t fan_in, float initial) {
  parameter p{"weights." + std::string(name), std::move(shape), size, 1, fan_in, initial};
  for (auto n : p.shape)
    p.size *= n;
  size += padded(p.size);
  weights.push_back(std::move(p));
  return weights.back().offset;
}

std::int64_t model_layout::add_matrix(std::string_view name, std::vector<std::int64_t> shape, std::int64_t fan_in, float initial) {
  if (matrix_size != size)
    throw std::logic_error("model_layout: matrix " + std::string(name) + " comes after a vector");
  const auto at = add_weight(name, std::move(shape), fan_in, initial);
  matrix_size = size;
  return at;
}

std::int64_t model_layout::add_vector(std::string_view name, std::int64_t n, std::int64_t fan_in, float initial) {
  return add_weight(name, {n}, fan_in, initial);
}

std::int64_t model_layout::add_table(std::string_view name, std::vector<std::int64_t> shape, std::int64_t fan_in, float initial) {
  return add_weight(name, std::move(shape), fan_in, initial);
}

std::int64_t model_layout::add_statistics(const std::vector<std::string>& names, std::int64_t n, const std::vector<float>& initial) {
  const auto first = statistics_size;
  for (std::size_t i = 0; i < names.size(); ++i)
    statistics.push_back({"statistics." + names[i], {n}, first + static_cast<std::int64_t>(i) * n, n, 0, initial.at(i)});
  statistics_size += padded(static_cast<std::int64_t>(names.size()) * n);
  return first;
}

model::model(context& ctx, model_layout layout, std::int64_t lanes, std::int64_t rows)
  : ctx_(ctx), layout_(std::move(layout)), lanes_(lanes), rows_(rows) {
  if (lanes < 1 || rows < 1)
    throw std::invalid_argument("a model needs at least 1 lane and 1 row");
}

void* model::take_bytes(std::size_t n) {
  buffers_.push_back(ctx_.allocate(n));
  return buffers_.back().data();
}

std::uint64_t model::memory_bytes() const noexcept {
  std::uint64_t sum = 0;
  for (const auto& b : buffers_)
    sum += b.size();
  return sum;
}

void model::select(const member_state& where, std::int64_t members) {
  if (members < 1 || members > lanes_)
    throw std::invalid_argument("a pass of " + std::to_string(members) + " members does not fit the model's "
                                + std::to_string(lanes_) + " lanes");
  state_ = where;
  members_ = members;
}

void model::initialise(float* weights, float* statistics, std::uint64_t seed) const {
  for (const auto& p : layout_.weights) {
    const vec<float> to{weights + p.offset, p.size, p.size};
    const double bound = p.fan_in == 0 ? 0 : 1 / std::sqrt(static_cast<double>(p.fan_in));
    if (p.fan_in != 0)
      draw_uniform(ctx_, seed, "init." + p.name, 0, -bound, bound, to);
    else if (p.initial != 0)
      fill(ctx_, 1, to, p.initial);
  }
  for (const auto& p : layout_.statistics)
    if (p.initial != 0)
      fill(ctx_, 1, {statistics + p.offset, p.size, p.size}, p.initial);
}

} // namespace troupe::gpu
