#include "troupe/actors/gpu_actor.hpp"

namespace troupe::actors {
namespace internal {

namespace {
// One runs and one is ready, so that the slot need not wait for the actor; more would keep urgent ones waiting.
constexpr unsigned slot_depth = 2;
} // namespace

std::optional<std::string> gpu_queue::add(work what, done then, bool urgent) {
  const auto in_flight = with_slot_.size() + urgent_.size() + waiting_.size();
  if (in_flight >= options_.max_in_flight)
    return "the GPU actor on " + at_.name() + " is busy: " + std::to_string(in_flight) +
           " requests are in flight, its limit. Wait for answers before sending more";
  (urgent ? urgent_ : waiting_).push_back({std::move(what), std::move(then)});
  pump();
  return std::nullopt;
}

void gpu_queue::pump() {
  while (with_slot_.size() < slot_depth && !(urgent_.empty() && waiting_.empty())) {
    auto& from = urgent_.empty() ? waiting_ : urgent_;
    auto x = std::move(from.front());
    from.pop_front();
    const auto number = ++last_;
    with_slot_.emplace(number, std::move(x.then));
    slot_task task;
    // The message that brings the task to the slot may outlive the answer. The tensors in it must not: who has the answer and
    // lets go of them gets their memory back.
    auto once = std::make_shared<work>(std::move(x.what));
    task.work = [once, at = at_, wait = options_.synchronize](gpu::context& ctx) {
      const auto what = std::exchange(*once, nullptr);
      gpu_call call{ctx, at};
      what(call);
      if (wait)
        ctx.synchronize();
    };
    task.done = [this, number, me = outside{caf::actor_cast<caf::actor>(self_.lock())}](task_outcome o) {
      anon_mail(gpu_reply{[this, number, o = std::move(o)] {
        const auto i = with_slot_.find(number);
        if (i == with_slot_.end())
          return;
        const auto then = std::move(i->second);
        with_slot_.erase(i);
        then(o);
        pump();
      }})
          .urgent()
          .send(me.get());
    };
    anon_mail(std::move(task)).send(at_.slot());
  }
}

void gpu_queue::abandon(const std::string& why) {
  const task_outcome o{{core::errc::cancelled, why}, false};
  for (const auto& [number, then] : std::exchange(with_slot_, {}))
    then(o);
  for (auto* queue : {&urgent_, &waiting_})
    for (const auto& x : std::exchange(*queue, {}))
      x.then(o);
}

} // namespace internal

namespace {

using mover_self = extend<tensor_mover, result<void>(gpu_reply)>;

struct mover_state {
  gpu_place to;
  static constexpr const char* name = "tensor_mover";
};

/// A tensor on its way, and what kept it from arriving.
struct transfer {
  tensor_ref from, to;
  core::checkpoint::tensor host;
  core::error failure;
};

mover_self::behavior_type mover(mover_self::stateful_pointer<mover_state> self, const gpu_place& to) {
  on_exception(self);
  drop_unknown(self, mover_state::name);
  state(self).to = to;
  return {
      [self](const move_tensor& m) -> result<tensor_ref> {
        if (!m.what)
          return make_error("move_tensor names no tensor");
        const auto& to = state(self).to;
        const promise<tensor_ref> answer{self};
        if (m.what.owner() == to.worker()) {
          answer.deliver(m.what);
          return answer;
        }
        auto x = std::make_shared<transfer>();
        x->from = m.what;
        const auto finish = [self = outside{mover_self{self}}, answer, x](core::result<void> r) {
          if (!r)
            x->failure = r.error();
          x->from = {}; // what brings the answer may outlive it
          anon_mail(gpu_reply{[answer, x] {
            if (x->failure.text.empty())
              answer.deliver(std::exchange(x->to, {}));
            else
              answer.fail(x->failure.text);
          }}).send(self.get());
        };
        // The two slots hand the bytes over between themselves; nobody waits.
        x->from.owner()->post([x](gpu::context& ctx) { x->host = gpu_call{ctx, x->from}.download(x->from); },
                              [x, to, finish](core::result<void> r) {
                                if (!r)
                                  return finish(r);
                                to.worker()->post([x, to](gpu::context& ctx) { x->to = gpu_call{ctx, to}.upload(x->host); },
                                                  finish);
                              });
        return answer;
      },
      [](const gpu_reply& x) { x.what(); },
  };
}

} // namespace

tensor_mover spawn_tensor_mover(caf::actor_system& sys, gpu_place to) {
  return sys.spawn([to = std::move(to)](mover_self::stateful_pointer<mover_state> self) { return mover(self, to); });
}

} // namespace troupe::actors
