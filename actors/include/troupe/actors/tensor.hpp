#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "troupe/actors/slot.hpp"
#include "troupe/core/checkpoint.hpp"
#include "troupe/gpu/context.hpp"

/// Tensors that stay on a device while their names travel between actors.
namespace troupe::actors {

/// Where GPU actors live: a slot of this process. Cheap to copy; the worker must outlive the actor system.
class gpu_place {
public:
  gpu_place() = default;
  /// `generation` tells apart the places of a slot that is opened again.
  gpu_place(caf::actor_system& sys, std::shared_ptr<gpu::slot_worker> worker, std::uint64_t generation = 0);

  const slot_actor& slot() const noexcept { return slot_; }
  const std::shared_ptr<gpu::slot_worker>& worker() const noexcept { return home_->worker; }
  gpu::device_kind kind() const noexcept;
  /// "slot 1 (GPU-…)", for texts.
  const std::string& name() const noexcept { return home_->name; }

private:
  friend class gpu_call;
  friend class tensor_ref;
  struct home {
    std::shared_ptr<gpu::slot_worker> worker;
    std::string name;
    std::uint32_t index = 0;
    std::uint64_t generation = 0;
  };
  slot_actor slot_;
  std::shared_ptr<const home> home_;
};

/// Names an immutable tensor on a slot's device: what GPU actors send each other. The memory is shared by all copies and goes
/// back to its slot with the last one, on whatever thread that is, in the order of the slot's stream. Passing it on
/// copies nothing. Only actors of the same slot may read it; `move_tensor` (gpu_actor.hpp) brings it to another slot, and
/// `gpu_call::download` to the host, which is also the way to other processes (blob_store, tensor transport).
class tensor_ref {
public:
  tensor_ref() = default; ///< names nothing

  explicit operator bool() const noexcept { return data_ != nullptr; }
  core::dtype type() const; ///< throws std::logic_error if it names nothing, as all below
  const std::vector<std::int64_t>& shape() const;
  std::size_t size() const;  ///< elements
  std::size_t bytes() const;
  std::uint32_t slot() const;
  std::uint64_t generation() const;
  /// "F32 [2, 3] on slot 0 (cpu)", or "no tensor".
  std::string describe() const;
  const std::shared_ptr<gpu::slot_worker>& owner() const; ///< the worker of its slot
  bool operator==(const tensor_ref&) const = default; ///< the same memory

private:
  friend class gpu_call;
  struct storage {
    gpu::buffer memory;
    core::dtype type = core::dtype::f32;
    std::vector<std::int64_t> shape;
    std::size_t size = 0;
    std::shared_ptr<const gpu_place::home> home;
  };
  explicit tensor_ref(std::shared_ptr<storage> x) : data_(std::move(x)) {}
  const storage& get() const;
  std::shared_ptr<storage> data_;
};
TROUPE_LOCAL_MESSAGE_BECAUSE(tensor_ref, "a tensor_ref cannot leave its process: download it, put the state into the "
                                         "blob store and send the state_ref")

template <class T>
struct dtype_of;
template <> struct dtype_of<float> { static constexpr auto value = core::dtype::f32; };
template <> struct dtype_of<double> { static constexpr auto value = core::dtype::f64; };
template <> struct dtype_of<std::uint16_t> { static constexpr auto value = core::dtype::bf16; };
template <> struct dtype_of<std::int32_t> { static constexpr auto value = core::dtype::i32; };
template <> struct dtype_of<std::int64_t> { static constexpr auto value = core::dtype::i64; };
template <> struct dtype_of<std::uint8_t> { static constexpr auto value = core::dtype::u8; };
template <> struct dtype_of<std::uint32_t> { static constexpr auto value = core::dtype::u32; };
template <> struct dtype_of<std::uint64_t> { static constexpr auto value = core::dtype::u64; };

/// A tensor being made by a handler: `data()` may be written (by kernels) until it is handed out as a tensor_ref.
template <class T>
class tensor {
public:
  T* data() const noexcept { return data_; } ///< device memory
  std::size_t size() const { return ref_.size(); }
  const std::vector<std::int64_t>& shape() const { return ref_.shape(); }
  operator tensor_ref() const { return ref_; }

private:
  friend class gpu_call;
  tensor(tensor_ref ref, T* data) : ref_(std::move(ref)), data_(data) {}
  tensor_ref ref_;
  T* data_;
};

/// What a handler of a GPU actor works with: the slot's context and its tensors. Lives as long as the handler runs. All of it
/// throws what goes back to the requester as an error message: gpu::out_of_memory, gpu::device_error, std::invalid_argument.
class gpu_call {
public:
  gpu_call(gpu::context& ctx, const gpu_place& at) : ctx_(ctx), home_(at.home_) {}
  /// On the slot of `owner`.
  gpu_call(gpu::context& ctx, const tensor_ref& owner) : ctx_(ctx), home_(owner.get().home) {}

  gpu::context& context() noexcept { return ctx_; }
  void* stream() const noexcept { return ctx_.stream(); } ///< cudaStream_t, or null on the CPU

  /// Uninitialised. Throws gpu::out_of_memory beyond the slot's budget.
  template <class T>
  tensor<T> make(std::vector<std::int64_t> shape) {
    auto ref = allocate(dtype_of<T>::value, std::move(shape));
    auto* data = ref.data_->memory.template as<T>();
    return {std::move(ref), data};
  }
  tensor_ref allocate(core::dtype type, std::vector<std::int64_t> shape);

  /// Device memory to read. Refuses a tensor of another type or another slot with a text that names both.
  template <class T>
  const T* data(const tensor_ref& x) const {
    return static_cast<const T*>(checked(x, dtype_of<T>::value));
  }
  const void* data(const tensor_ref& x) const; ///< of any type
  void* writable(const tensor_ref& x) const;   ///< of one that `allocate` just made

  template <class T>
  tensor_ref upload(std::span<const T> xs, std::vector<std::int64_t> shape) {
    return upload_bytes(dtype_of<T>::value, std::move(shape), std::as_bytes(xs));
  }
  tensor_ref upload(const core::checkpoint::tensor& x) { return upload_bytes(x.type, x.shape, x.bytes); }
  /// To the host, under `name`; waits for the device.
  core::checkpoint::tensor download(const tensor_ref& x, std::string name = {});
  template <class T>
  std::vector<T> read(const tensor_ref& x) {
    std::vector<T> out(x.size());
    ctx_.download(out.data(), data<T>(x), out.size() * sizeof(T));
    return out;
  }

private:
  const void* checked(const tensor_ref& x, core::dtype type) const;
  tensor_ref upload_bytes(core::dtype type, std::vector<std::int64_t> shape, std::span<const std::byte> bytes);
  gpu::context& ctx_;
  std::shared_ptr<const gpu_place::home> home_;
};

} // namespace troupe::actors
