#include "averaging.hpp"

#include <cstring>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <utility>

#include "troupe/core/subnormals.hpp"

namespace troupe::actors::internal {

namespace {

template <class T>
std::vector<std::byte> mean(const std::vector<const core::checkpoint::tensor*>& xs) {
  const auto n = xs.front()->bytes.size() / sizeof(T);
  std::vector<double> sum(n, 0.0);
  for (const auto* x : xs) {
    const auto v = x->as<T>();
    for (std::size_t i = 0; i < n; ++i)
      sum[i] += static_cast<double>(v[i]);
  }
  std::vector<std::byte> out(xs.front()->bytes.size());
  auto* to = reinterpret_cast<T*>(out.data());
  for (std::size_t i = 0; i < n; ++i)
    to[i] = static_cast<T>(sum[i] / static_cast<double>(xs.size()));
  return out;
}

} // namespace

core::result<core::checkpoint_ptr> average(const std::vector<core::checkpoint_ptr>& states) {
  if (states.empty())
    return core::error{core::errc::invalid_argument, "there is nothing to average"};
  const core::subnormals_scope flush; // as on the slots, where this could be computed too
  const auto& first = *states.front();
  std::set<std::string, std::less<>> listed;
  const auto* list = first.text("troupe.weights");
  if (list) {
    std::istringstream in(*list);
    for (std::string name; in >> name;)
      listed.insert(name);
  }
  core::checkpoint out;
  for (const auto& [key, text] : first.texts())
    out.set_text(key, text);
  for (const auto& t : first.tensors()) {
    const bool is_weight = list ? listed.contains(t.name) : t.name.starts_with("weights.");
    if (!is_weight) {
      out.add(t);
      continue;
    }
    std::vector<const core::checkpoint::tensor*> xs;
    for (const auto& s : states) {
      const auto x = s->expect(t.name, t.type, t.shape);
      if (!x)
        return x.error();
      xs.push_back(*x);
    }
    auto mixed = t;
    if (t.type == core::dtype::f32)
      mixed.bytes = mean<float>(xs);
    else if (t.type == core::dtype::f64)
      mixed.bytes = mean<double>(xs);
    else
      return core::error{core::errc::invalid_argument,
                         "weights of type " + std::string(core::to_string(t.type)) + " (" + t.name +
                             ") cannot be averaged: only F32 and F64 can"};
    out.add(std::move(mixed));
  }
  return core::checkpoint_ptr(std::make_shared<const core::checkpoint>(std::move(out)));
}

} // namespace troupe::actors::internal
