#include "troupe/actors/slot.hpp"

#include <utility>

namespace troupe::actors {
namespace {

struct slot_state {
  std::shared_ptr<gpu::slot_worker> worker;
  std::function<void(const std::string&)> on_lost;
  std::string lost; // why; empty: it is alive
  static constexpr const char* name = "slot";

  std::string title() const {
    const auto& o = worker->options();
    return "slot " + std::to_string(o.index) + " (" + o.device.id + ")";
  }
};

core::error lost_error(const slot_state& st) {
  return {core::errc::device, st.title() + " is lost: " + st.lost + ". Restart the process that owns it"};
}

slot_actor::behavior_type slot(slot_actor::stateful_pointer<slot_state> self, std::shared_ptr<gpu::slot_worker> worker,
                               std::function<void(const std::string&)> on_lost) {
  auto& st = state(self);
  st.worker = std::move(worker);
  st.on_lost = std::move(on_lost);
  on_exception(self);
  drop_unknown(self, slot_state::name);
  return {
      [self](const slot_run& x) {
        auto& st = state(self);
        if (!st.lost.empty()) {
          x.done(gpu::run_outcome{0, false, lost_error(st), true});
          return;
        }
        st.worker->run(x.who, x.steps, [me = outside{slot_actor{self}}, done = x.done](gpu::run_outcome o) {
          if (o.device_lost)
            anon_mail(slot_failed{o.failure.text}).urgent().send(me.get());
          done(std::move(o));
        }, x.hint);
      },
      [self](const slot_interrupt& x) { state(self).worker->interrupt(x.who); },
      [self](const slot_task& x) {
        auto& st = state(self);
        if (!st.lost.empty()) {
          x.done({lost_error(st), true});
          return;
        }
        auto out = std::make_shared<task_outcome>();
        st.worker->post(
            [out, work = x.work](gpu::context& ctx) {
              try {
                work(ctx);
              } catch (...) {
                out->failure = gpu::current_error(&out->device_lost);
                if (out->failure.text.empty())
                  out->failure.text = "host memory ran out";
              }
            },
            [me = outside{slot_actor{self}}, out, done = x.done](core::result<void> r) {
              if (!r)
                out->failure = r.error(); // never ran: the slot was closed
              if (out->device_lost)
                anon_mail(slot_failed{out->failure.text}).urgent().send(me.get());
              done(std::move(*out));
            });
      },
      [self](const query_slot&) -> result<slot_status> {
        auto& st = state(self);
        auto out = status_of(*st.worker);
        out.alive = st.lost.empty();
        return out;
      },
      [self](const slot_failed& x) {
        auto& st = state(self);
        if (!st.lost.empty())
          return;
        st.lost = x.reason;
        if (st.on_lost)
          st.on_lost(x.reason);
      },
  };
}

} // namespace

slot_actor spawn_slot(caf::actor_system& sys, std::shared_ptr<gpu::slot_worker> worker,
                      std::function<void(const std::string& reason)> on_lost) {
  return sys.spawn(slot, std::move(worker), std::move(on_lost));
}

slot_status status_of(const gpu::slot_worker& worker) {
  const auto c = worker.snapshot();
  slot_status out;
  out.index = worker.options().index;
  out.running = c.running;
  out.waiting = c.waiting;
  out.steps = c.steps;
  out.slices = c.slices;
  out.tasks = c.tasks;
  out.fused_slices = c.fused_slices;
  out.fused_members = c.fused_members;
  out.fused_steps = c.fused_steps;
  out.busy_seconds = c.busy_seconds;
  out.idle_seconds = c.idle_seconds;
  out.memory_used = c.memory_used;
  out.memory_peak = c.memory_peak;
  out.memory_budget = c.memory_budget;
  const auto& d = c.device;
  out.device = {d.memory_reserved, d.pinned_used, d.pinned_held, c.pinned_budget, d.swaps_out, d.swaps_in, d.swapped_bytes,
                d.staged_bytes, d.slot_copies, d.slot_copied_bytes, d.captures, d.launches, d.capture_fault, d.calls, d.strays};
  return out;
}

std::shared_ptr<gpu::hosted> make_hosted(const std::shared_ptr<gpu::slot_worker>& worker, std::uint64_t number) {
  std::shared_ptr<gpu::hosted> out{new gpu::hosted, [home = std::weak_ptr<gpu::slot_worker>{worker}](gpu::hosted* x) {
            std::shared_ptr<gpu::hosted> last{x};
            // Moved into the task, so that it dies where its workload must; a worker that is gone has no memory left to free.
            if (auto w = home.lock())
              w->post([last = std::move(last)](gpu::context&) mutable { last.reset(); }, nullptr);
          }};
  out->number = number;
  return out;
}

} // namespace troupe::actors
