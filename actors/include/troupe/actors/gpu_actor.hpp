#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "troupe/actors/tensor.hpp"

/// GPU actors: actors whose handlers run on a slot's thread, with its context, on its stream.
///
///     struct square { tensor_ref x; };
///     TROUPE_INSPECT(square, x)                                     // and a type id, as for every message
///     using squarer = typed_actor<result<tensor_ref>(square)>;
///
///     squarer spawn_squarer(caf::actor_system& sys, const gpu_place& at) {
///       return spawn_gpu<squarer>(sys, at, {}, [](gpu_call& call, const square& m) -> tensor_ref {
///         auto y = call.make<float>(m.x.shape());
///         … enqueue what computes y.data() from call.data<float>(m.x) on call.stream() …
///         return y;
///       });
///     }
///
/// The actor itself is an ordinary one: it has a mailbox, can be watched and sent to from anywhere in its process, and never blocks
/// a thread of the scheduler. A request is answered when its handler returns; on a GPU its kernels may still run then,
/// which does not matter to actors of the same slot, since they share the stream. What a handler throws answers the request
/// as an error with its text: a wrong tensor, a device error, a memory budget that would be exceeded. Requests beyond
/// `max_in_flight` are refused at once with an error: that is the backpressure. Urgent mail overtakes requests that
/// wait.
namespace troupe::actors {

struct gpu_options {
  /// Requests accepted and not answered yet.
  unsigned max_in_flight = 64;
  /// Wait for the device before an answer goes out, so that errors of kernels are told to the request that caused them.
  bool synchronize = false;
  /// Told the errors of messages that were no requests, in the actor's turn; null: such errors are lost.
  std::function<void(const std::string& text)> on_error;
};

/// A completion on its way from the slot's thread to the GPU actor.
struct gpu_reply {
  std::function<void()> what;
};
TROUPE_LOCAL_MESSAGE(gpu_reply)

namespace internal {

/// The queue between a GPU actor and its slot: a few tasks are with the slot, the rest waits here, where urgent ones pass it.
class gpu_queue {
public:
  /// `self` is held while a task is with the slot, so that every request is answered, and not otherwise.
  gpu_queue(gpu_place at, gpu_options options, caf::weak_actor_ptr self)
      : at_(std::move(at)), options_(std::move(options)), self_(std::move(self)) {}

  using work = std::function<void(gpu_call&)>;
  using done = std::function<void(const task_outcome&)>;
  /// Accepts, or returns why not. `then` is called in the actor's turn.
  std::optional<std::string> add(work what, done then, bool urgent);
  /// The actor ends: everything that is not answered is, with this text. CAF 0.17.6 would leave requesters waiting.
  void abandon(const std::string& why);
  const gpu_options& options() const noexcept { return options_; }

private:
  struct item {
    work what;
    done then;
  };
  void pump();

  gpu_place at_;
  gpu_options options_;
  caf::weak_actor_ptr self_;
  std::deque<item> urgent_, waiting_;
  std::map<std::uint64_t, done> with_slot_;
  std::uint64_t last_ = 0;
};

template <class F>
struct handler_traits : handler_traits<decltype(&F::operator())> {};
template <class C, class R, class M>
struct handler_traits<R (C::*)(gpu_call&, const M&) const> {
  using result = R;
  using message = M;
};
template <class C, class R, class S, class M>
struct handler_traits<R (C::*)(S&, gpu_call&, const M&) const> {
  using result = R;
  using message = M;
};

/// The state of a GPU actor: the user's part is made, used and destroyed on the slot's thread.
template <class UserState>
struct gpu_actor_state {
  struct box {
    std::unique_ptr<UserState> value;
  };
  std::unique_ptr<gpu_queue> queue;
  std::shared_ptr<box> user;
  static constexpr const char* name = "gpu_actor";
};

struct no_state {};

/// A box whose content dies on the slot's thread, whoever lets go of it last.
template <class Box>
std::shared_ptr<Box> make_box(const gpu_place& at) {
  return {new Box, [home = std::weak_ptr<gpu::slot_worker>{at.worker()}](Box* x) {
            std::shared_ptr<Box> last{x};
            if (auto w = x->value ? home.lock() : nullptr)
              w->post([last = std::move(last)](gpu::context&) mutable { last.reset(); }, nullptr);
          }};
}

template <class UserState>
void ensure_state(std::unique_ptr<UserState>& x, gpu_call& call) {
  if (x)
    return;
  if constexpr (std::is_constructible_v<UserState, gpu_call&>)
    x = std::make_unique<UserState>(call);
  else
    x = std::make_unique<UserState>();
}

/// Runs `f` on the slot for each message and answers with what comes of it.
template <class UserState, class Self, class F>
auto gpu_handler(Self* self, F f) {
  using traits = handler_traits<F>;
  using R = typename traits::result;
  using M = typename traits::message;
  return [self, f](const M& m) -> result<R> {
    auto& st = state(self);
    const auto& element = *self->current_mailbox_element();
    // Another process cannot be given what must stay in this one.
    const bool remote = is_remote(element.sender);
    const bool urgent = element.mid.is_urgent_message();
    const promise<R> answer{self};
    using value_type = std::conditional_t<std::is_void_v<R>, char, R>;
    auto value = std::make_shared<std::optional<value_type>>();
    auto fault = st.queue->add(
        [value, user = st.user, f, m](gpu_call& call) {
          if constexpr (std::is_same_v<UserState, no_state>) {
            if constexpr (std::is_void_v<R>)
              f(call, m);
            else
              value->emplace(f(call, m));
          } else {
            ensure_state(user->value, call);
            if constexpr (std::is_void_v<R>)
              f(*user->value, call, m);
            else
              value->emplace(f(*user->value, call, m));
          }
        },
        [self, answer, value, remote](const task_outcome& o) {
          auto text = o.failure.text;
          if (local_reason<R>::value != nullptr && text.empty() && remote)
            text = local_reason<R>::value;
          if (!text.empty()) {
            if (const auto& tell = state(self).queue->options().on_error; tell && !answer.is_request())
              tell(text);
            answer.fail(std::move(text));
          } else if constexpr (std::is_void_v<R>) {
            answer.deliver();
          } else {
            answer.deliver(std::move(**value));
          }
        },
        urgent);
    if (fault) {
      if (!answer.is_request() && st.queue->options().on_error)
        st.queue->options().on_error(*fault);
      answer.fail(std::move(*fault));
    }
    return answer;
  };
}

} // namespace internal

/// Starts a GPU actor without state. `handlers`: one for each of Handle's messages, in its order, as
/// `R(gpu_call&, const Message&)`; they are called one at a time on the slot's thread.
template <class Handle, class... Handlers>
Handle spawn_gpu(caf::actor_system& sys, gpu_place at, gpu_options options, Handlers... handlers);

/// The same with a state: handlers are `R(State&, gpu_call&, const Message&)`. The state is made on the slot's thread at the first
/// message (from gpu_call& if it can be), and destroyed there.
template <class Handle, class State, class... Handlers>
Handle spawn_gpu_with(caf::actor_system& sys, gpu_place at, gpu_options options, Handlers... handlers) {
  using full = extend<Handle, result<void>(gpu_reply)>;
  using user_state = internal::gpu_actor_state<State>;
  using pointer = typename full::template stateful_pointer<user_state>;
  return sys.spawn([=](pointer self) -> typename full::behavior_type {
    on_exception(self);
    drop_unknown(self, user_state::name);
    auto& st = state(self);
    st.user = internal::make_box<typename user_state::box>(at);
    st.queue = std::make_unique<internal::gpu_queue>(at, options, caf::actor_cast<caf::weak_actor_ptr>(self->ctrl()));
    return make_behavior(self, internal::gpu_handler<State>(self, handlers)...,
                         [](const gpu_reply& x) { x.what(); }, on_exit_msg(self, [self](caf::exit_msg& x) {
                           state(self).queue->abandon("the GPU actor was ended");
                           self->quit(std::move(x.reason));
                         }));
  });
}

template <class Handle, class... Handlers>
Handle spawn_gpu(caf::actor_system& sys, gpu_place at, gpu_options options, Handlers... handlers) {
  return spawn_gpu_with<Handle, internal::no_state>(sys, std::move(at), std::move(options), std::move(handlers)...);
}

// -- ready-made ------------------------------------------------------------------------------------------------------

/// Bring a tensor to the slot of the actor that gets this.
struct move_tensor {
  tensor_ref what;
};
TROUPE_INSPECT(move_tensor, what)

using tensor_mover = typed_actor<result<tensor_ref>(move_tensor)>;

/// Copies tensors of any slot of this process to slot `to`, through the host.
tensor_mover spawn_tensor_mover(caf::actor_system& sys, gpu_place to);

/// One launch of a kernel that was given as source: kernel(in[0], in[1], …, out, scalars…). Pointers are of the tensors' element
/// types.
struct cuda_launch {
  std::string kernel;                 ///< as listed in the source's kernels
  std::vector<tensor_ref> in;
  std::uint8_t out_type = 0;          ///< core::dtype
  std::vector<std::int64_t> out_shape;
  std::vector<std::int64_t> integers; ///< passed as long long, after `out`
  std::vector<wire_real> reals;       ///< passed as float, after the integers
  std::uint32_t threads = 256;        ///< of a block; there are enough blocks for one thread per element of `out`
};
TROUPE_INSPECT(cuda_launch, kernel, in, out_type, out_shape, integers, reals, threads)

using cuda_actor = typed_actor<result<tensor_ref>(cuda_launch)>;

} // namespace troupe::actors

namespace troupe::gpu {
struct cuda_source;
}

namespace troupe::actors {

/// An actor made of CUDA C++ text, compiled on the slot at its first message; what the compiler says against it answers that and
/// every later request. Refused at once on a CPU slot.
core::result<cuda_actor> spawn_cuda(caf::actor_system& sys, gpu_place at, const gpu::cuda_source& source,
                                    gpu_options options = {});

} // namespace troupe::actors

CAF_BEGIN_TYPE_ID_BLOCK(troupe_gpu, caf::first_custom_type_id + 60)
  CAF_ADD_TYPE_ID(troupe_gpu, (troupe::actors::tensor_ref))
  CAF_ADD_TYPE_ID(troupe_gpu, (troupe::actors::gpu_reply))
  CAF_ADD_TYPE_ID(troupe_gpu, (troupe::actors::move_tensor))
  CAF_ADD_TYPE_ID(troupe_gpu, (troupe::actors::cuda_launch))
CAF_END_TYPE_ID_BLOCK(troupe_gpu)
