#pragma once

#include <functional>
#include <memory>

#include "troupe/actors/messages.hpp"
#include "troupe/gpu/slot_worker.hpp"

/// The actor in front of a slot's worker thread.
///
/// It decides nothing: it hands runs and tasks on, notices when the device is lost and from then on answers everything with
/// that error, so that no work waits for a device that will not do it. What it is given runs on the slot's thread, and so do
/// completions, which must only post.
namespace troupe::actors {

/// How a task ended.
struct task_outcome {
  core::error failure;      ///< empty text: none
  bool device_lost = false; ///< the slot is unusable
};

/// Train `who` for up to `steps`; `done` is called once.
struct slot_run {
  std::shared_ptr<gpu::hosted> who;
  std::uint64_t steps = 0;
  std::function<void(gpu::run_outcome)> done;
  gpu::run_hint hint{};
};
TROUPE_LOCAL_MESSAGE(slot_run)

/// End the run of `who` after its current step.
struct slot_interrupt {
  std::shared_ptr<gpu::hosted> who;
};
TROUPE_LOCAL_MESSAGE(slot_interrupt)

/// Do `work` with the slot's context, before the next slice of any run; an exception arrives at `done`, which is called once.
struct slot_task {
  std::function<void(gpu::context&)> work;
  std::function<void(task_outcome)> done;
};
TROUPE_LOCAL_MESSAGE(slot_task)

struct query_slot {
  std::uint32_t slot = 0;
};
TROUPE_INSPECT(query_slot, slot)

/// From the slot's thread to its actor.
struct slot_failed {
  std::string reason;
};
TROUPE_LOCAL_MESSAGE(slot_failed)

using slot_actor = typed_actor<result<void>(slot_run), result<void>(slot_interrupt), result<void>(slot_task),
                               result<slot_status>(query_slot), result<void>(slot_failed)>;

/// `on_lost` is called once, in the actor's turn, when the device is lost. The actor ends with its last handle or on exit; the
/// worker belongs to the caller too and must outlive the actor system, so that workloads can die on their own thread.
slot_actor spawn_slot(caf::actor_system& sys, std::shared_ptr<gpu::slot_worker> worker,
                      std::function<void(const std::string& reason)> on_lost = nullptr);

/// What the worker counts, as messages carry it. Thread-safe.
slot_status status_of(const gpu::slot_worker& worker);

/// A place for a workload on a slot, known to its maker by `number`. Whoever holds it last, the workload dies on the slot's thread.
std::shared_ptr<gpu::hosted> make_hosted(const std::shared_ptr<gpu::slot_worker>& worker, std::uint64_t number = 0);

} // namespace troupe::actors

CAF_BEGIN_TYPE_ID_BLOCK(troupe_slot, caf::id_block::troupe_messages::end)
  CAF_ADD_TYPE_ID(troupe_slot, (troupe::actors::slot_run))
  CAF_ADD_TYPE_ID(troupe_slot, (troupe::actors::slot_interrupt))
  CAF_ADD_TYPE_ID(troupe_slot, (troupe::actors::slot_task))
  CAF_ADD_TYPE_ID(troupe_slot, (troupe::actors::query_slot))
  CAF_ADD_TYPE_ID(troupe_slot, (troupe::actors::slot_status))
  CAF_ADD_TYPE_ID(troupe_slot, (troupe::actors::slot_failed))
CAF_END_TYPE_ID_BLOCK(troupe_slot)
