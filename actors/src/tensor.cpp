#include "troupe/actors/tensor.hpp"

#include <limits>
#include <stdexcept>
#include <utility>

namespace troupe::actors {
namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string out = "[";
  for (const auto n : shape)
    out += (out.size() > 1 ? ", " : "") + std::to_string(n);
  return out + "]";
}

std::size_t elements(const std::vector<std::int64_t>& shape, std::size_t each) {
  std::size_t out = 1;
  for (const auto n : shape) {
    if (n < 0)
      throw std::invalid_argument("a tensor's shape " + shape_text(shape) + " has a negative extent");
    const auto m = static_cast<std::size_t>(n);
    if (m != 0 && out > std::numeric_limits<std::size_t>::max() / each / m)
      throw std::invalid_argument("a tensor of shape " + shape_text(shape) + " is too large to address");
    out *= m;
  }
  return out;
}

} // namespace

gpu_place::gpu_place(caf::actor_system& sys, std::shared_ptr<gpu::slot_worker> worker, std::uint64_t generation)
    : slot_(spawn_slot(sys, worker)) {
  const auto& o = worker->options();
  auto h = std::make_shared<home>();
  h->name = "slot " + std::to_string(o.index) + " (" + o.device.id + ")";
  h->index = o.index;
  h->generation = generation;
  h->worker = std::move(worker);
  home_ = std::move(h);
}

gpu::device_kind gpu_place::kind() const noexcept { return home_->worker->options().device.kind; }

const tensor_ref::storage& tensor_ref::get() const {
  if (data_ == nullptr)
    throw std::logic_error("a tensor_ref names no tensor");
  return *data_;
}

core::dtype tensor_ref::type() const { return get().type; }
const std::vector<std::int64_t>& tensor_ref::shape() const { return get().shape; }
std::size_t tensor_ref::size() const { return get().size; }
std::size_t tensor_ref::bytes() const { return get().size * core::size_of(get().type); }
std::uint32_t tensor_ref::slot() const { return get().home->index; }
std::uint64_t tensor_ref::generation() const { return get().home->generation; }

const std::shared_ptr<gpu::slot_worker>& tensor_ref::owner() const { return get().home->worker; }

std::string tensor_ref::describe() const {
  if (data_ == nullptr)
    return "no tensor";
  return std::string{core::to_string(data_->type)} + " " + shape_text(data_->shape) + " on " + data_->home->name;
}

tensor_ref gpu_call::allocate(core::dtype type, std::vector<std::int64_t> shape) {
  auto out = std::make_shared<tensor_ref::storage>();
  out->type = type;
  out->size = elements(shape, core::size_of(type));
  out->shape = std::move(shape);
  out->memory = ctx_.allocate(out->size * core::size_of(type));
  out->home = home_;
  return tensor_ref{std::move(out)};
}

const void* gpu_call::data(const tensor_ref& x) const {
  const auto& s = x.get();
  if (s.home != home_)
    throw std::invalid_argument("the tensor " + x.describe() + " cannot be read on " + home_->name +
                                (s.home->index == home_->index ? ", which was opened again since" : "") +
                                ": move it there (move_tensor)");
  return s.memory.data();
}

void* gpu_call::writable(const tensor_ref& x) const {
  if (x.data_.use_count() != 1)
    throw std::logic_error("the tensor " + x.describe() + " was handed out and can be written no more");
  data(x); // checks the slot
  return x.data_->memory.data();
}

const void* gpu_call::checked(const tensor_ref& x, core::dtype type) const {
  const auto* out = data(x);
  if (x.type() != type)
    throw std::invalid_argument("the tensor " + x.describe() + " was to be of type " + std::string{core::to_string(type)});
  return out;
}

tensor_ref gpu_call::upload_bytes(core::dtype type, std::vector<std::int64_t> shape, std::span<const std::byte> bytes) {
  const auto wanted = elements(shape, core::size_of(type)) * core::size_of(type);
  if (wanted != bytes.size())
    throw std::invalid_argument("a tensor of type " + std::string{core::to_string(type)} + " and shape " + shape_text(shape) +
                                " has " + std::to_string(wanted) + " bytes, not " + std::to_string(bytes.size()));
  auto out = allocate(type, std::move(shape));
  if (!bytes.empty())
    ctx_.upload(out.data_->memory.data(), bytes.data(), bytes.size());
  return out;
}

core::checkpoint::tensor gpu_call::download(const tensor_ref& x, std::string name) {
  core::checkpoint::tensor out;
  const auto* from = data(x);
  out.name = std::move(name);
  out.type = x.type();
  out.shape = x.shape();
  out.bytes.resize(x.bytes());
  if (!out.bytes.empty())
    ctx_.download(out.bytes.data(), from, out.bytes.size());
  return out;
}

} // namespace troupe::actors
