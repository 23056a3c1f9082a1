#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/actors/caf.hpp"
#include "troupe/actors/wire.hpp"

/// Every message of the control plane that may cross processes.
///
/// Commands are in the imperative, facts are nouns. All commands to trainers are one-way (an answer that nobody awaits would end
/// its sender); what they lead to comes back as a fact, addressed by (experiment, trainer, incarnation) and, where it belongs to
/// a sync point, its number. Who receives one of an older incarnation or sync point drops and counts it.
///
///   command                      fact it leads to
///   host_trainer                 trainer_up, or trainer_failed
///   begin_training               sync_report at each sync point, trainer_finished at the stop step
///   pause_training               trainer_paused (once parked or between steps)
///   resume_training              trainer_resumed
///   push_hyperparameters         push_ack
///   call_sync                    sync_report, from the next step boundary
///   export_state                 state_exported
///   apply_decision               decision_applied; trainer_finished after a decision to stop
///   resume_sync, release_trainer (goes on)
///   report_taken                 (goes on, if it waited for that)
///   stop_training                trainer_finished
///   (its node moves it)          trainer_moved
///   anything                     trainer_failed
namespace troupe::actors {

// -- names -----------------------------------------------------------------------------------------------------------

/// A trainer at one of its lives.
struct trainer_ref {
  std::uint64_t experiment = 0;
  std::uint32_t trainer = 0;
  std::uint32_t incarnation = 0;
  bool operator==(const trainer_ref&) const = default;
};
TROUPE_INSPECT(trainer_ref, experiment, trainer, incarnation)

/// A trainer's exported state, and where its bytes can be had. Whoever got one tells the node to drop it when it is not needed
/// any more (drop_state).
struct state_ref {
  std::uint64_t blob = 0;  ///< its number in the blob store of `node`; 0: no state
  std::uint32_t node = 0;  ///< 0: the head's process
  std::uint64_t bytes = 0; ///< of tensors
  std::uint64_t hash = 0;  ///< core::content_hash
  std::string host;        ///< of the node's tensor transport; empty: reachable within its process only
  std::uint16_t port = 0;
  bool operator==(const state_ref&) const = default;
  explicit operator bool() const noexcept { return blob != 0; }
};
TROUPE_INSPECT(state_ref, blob, node, bytes, hash, host, port)

/// The sync point that a trainer reaches next by its schedule; it reaches none before its stop step, or not by steps.
struct next_sync {
  bool any = false;
  std::uint32_t index = 0;
  bool operator==(const next_sync&) const = default;
};
TROUPE_INSPECT(next_sync, any, index)

// -- commands to a trainer -------------------------------------------------------------------------------------------

struct begin_training { trainer_ref to; };
TROUPE_INSPECT(begin_training, to)

struct pause_training { trainer_ref to; };
TROUPE_INSPECT(pause_training, to)

struct resume_training { trainer_ref to; };
TROUPE_INSPECT(resume_training, to)

/// Takes effect whole at the next step boundary, or is refused whole. `check_only`: nothing takes effect, the push_ack says
/// whether it would (so that a push to many is refused for all if it is wrong for one).
struct push_hyperparameters {
  trainer_ref to;
  std::uint64_t request = 0; ///< comes back in push_ack
  wire_hyperparameters changes;
  bool check_only = false;
};
TROUPE_INSPECT(push_hyperparameters, to, request, changes, check_only)

/// Meet at sync point `sync` at the next step boundary (sync points by the clock).
struct call_sync { trainer_ref to; std::uint32_t sync = 0; };
TROUPE_INSPECT(call_sync, to, sync)

/// Put the state, as parked at `sync`, into the blob store. A trainer that is not at a sync point can be asked too (a copy for a
/// checkpoint outside the barrier, or in an asynchronous experiment): `sync` then comes back as given. `copied`: another trainer takes
/// it, so a copy in device memory is worth its room.
struct export_state { trainer_ref to; std::uint32_t sync = 0; bool copied = false; };
TROUPE_INSPECT(export_state, to, sync, copied)

/// `sources` has the state of `what.copy_from`, if any; a mean is made before and comes as a copy. `save`: give back the state as it is after
/// the decision, for a checkpoint. In asynchronous experiments it arrives while the trainer runs.
struct apply_decision {
  trainer_ref to;
  std::uint32_t sync = 0;
  wire_decision what;
  std::vector<state_ref> sources;
  bool save = false;
};
TROUPE_INSPECT(apply_decision, to, sync, what, sources, save)

/// Sync point `sync` is over.
struct resume_sync { trainer_ref to; std::uint32_t sync = 0; };
TROUPE_INSPECT(resume_sync, to, sync)

/// Sync point `sync` is over and was without this trainer: it goes on unchanged.
struct release_trainer { trainer_ref to; std::uint32_t sync = 0; };
TROUPE_INSPECT(release_trainer, to, sync)

/// One of its reports is written, or will be soon: of an asynchronous trainer, which may be only so many ahead of the store
/// (core::reports_ahead).
struct report_taken { trainer_ref to; std::uint32_t sync = 0; };
TROUPE_INSPECT(report_taken, to, sync)

/// Finish after the step at hand.
struct stop_training { trainer_ref to; bool save = false; std::string reason; };
TROUPE_INSPECT(stop_training, to, save, reason)

/// A request: the answer is a trainer_status, at once.
struct query_status { trainer_ref to; };
TROUPE_INSPECT(query_status, to)

/// core::trainer_phase, as messages carry it; its diagram is at core::trainer_machine.
enum class trainer_phase : std::uint8_t { building, ready, running, parking, parked, applying, stopping, finished, failed };
std::string to_string(trainer_phase x);
TROUPE_ENUM(trainer_phase, trainer_phase::failed)

struct trainer_status {
  trainer_ref from;
  std::string name;
  trainer_phase phase = trainer_phase::building;
  bool paused = false;
  std::uint64_t step = 0; ///< counted by the slot, between reports too
  std::uint64_t stop_step = 0;
  std::uint32_t sync = 0; ///< when parked
  wire_hyperparameters hp;
};
TROUPE_INSPECT(trainer_status, from, name, phase, paused, step, stop_step, sync, hp)

/// A trainer as others see it.
using trainer_actor =
    typed_actor<result<void>(begin_training), result<void>(pause_training), result<void>(resume_training),
                result<void>(push_hyperparameters), result<void>(call_sync), result<void>(export_state),
                result<void>(apply_decision), result<void>(resume_sync), result<void>(release_trainer),
                result<void>(report_taken), result<void>(stop_training), result<trainer_status>(query_status)>;

// -- facts from a trainer --------------------------------------------------------------------------------------------

/// Built, loaded if it was to be, and waiting for begin_training.
struct trainer_up {
  trainer_ref from;
  std::string name;
  std::uint64_t step = 0;   ///< 0, or where the checkpoint left it
  next_sync next;
  std::string signature;    ///< weights go only between equals
  wire_hyperparameters hp;  ///< in effect: the checkpoint's where there was one
  trainer_actor who;
};
TROUPE_INSPECT(trainer_up, from, name, step, next, signature, hp, who)

/// Parked at `sync` (in asynchronous experiments: passed it).
struct sync_report {
  trainer_ref from;
  std::uint32_t sync = 0;
  wire_metadata what;
  next_sync next; ///< after this one
};
TROUPE_INSPECT(sync_report, from, sync, what, next)

struct state_exported {
  trainer_ref from;
  std::uint32_t sync = 0;
  wire_error failure; ///< empty text: none
  state_ref state;
};
TROUPE_INSPECT(state_exported, from, sync, failure, state)

/// A decision that failed left the trainer as it was.
struct decision_applied {
  trainer_ref from;
  std::uint32_t sync = 0;
  wire_error failure;  ///< empty text: none
  std::uint64_t step = 0;
  wire_hyperparameters hp; ///< in effect from here on
  state_ref state;     ///< where the decision said save
};
TROUPE_INSPECT(decision_applied, from, sync, failure, step, hp, state)

struct trainer_paused { trainer_ref from; std::uint64_t step = 0; };
TROUPE_INSPECT(trainer_paused, from, step)

struct trainer_resumed { trainer_ref from; std::uint64_t step = 0; };
TROUPE_INSPECT(trainer_resumed, from, step)

/// The changes hold from the step after `step` on; or they were refused.
struct push_ack {
  trainer_ref from;
  std::uint64_t request = 0;
  wire_error failure; ///< empty text: none
  std::uint64_t step = 0;
  wire_hyperparameters hp; ///< in effect from here on
};
TROUPE_INSPECT(push_ack, from, request, failure, step, hp)

/// Reached its stop step, was stopped, or a decision said so. Its actor is gone when this arrives or soon after.
struct trainer_finished {
  trainer_ref from;
  wire_metadata what;
  bool stopped = false; ///< before its stop step
  std::string reason;
  state_ref state;      ///< final
};
TROUPE_INSPECT(trainer_finished, from, what, stopped, reason, state)

/// It went on, after `step`, on another slot of its node; or, with a failure, it could not and stayed where it was.
struct trainer_moved {
  trainer_ref from;
  std::uint64_t step = 0;
  std::uint32_t from_slot = 0, to_slot = 0; ///< of the node
  wire_error failure;                       ///< empty text: none
};
TROUPE_INSPECT(trainer_moved, from, step, from_slot, to_slot, failure)

/// Its actor is gone when this arrives or soon after.
struct trainer_failed {
  trainer_ref from;
  std::uint64_t step = 0;
  wire_error failure;
  bool device_lost = false; ///< the slot is unusable: a restart must go elsewhere
};
TROUPE_INSPECT(trainer_failed, from, step, failure, device_lost)

/// To whom trainers report: the coordinator's side for them.
using trainer_observer =
    typed_actor<result<void>(trainer_up), result<void>(sync_report), result<void>(state_exported),
                result<void>(decision_applied), result<void>(trainer_paused), result<void>(trainer_resumed),
                result<void>(push_ack), result<void>(trainer_moved), result<void>(trainer_finished),
                result<void>(trainer_failed)>;

// -- nodes -----------------------------------------------------------------------------------------------------------

/// Build a trainer on a slot of this node.
struct host_trainer {
  trainer_ref who;
  std::string name;
  std::string workload_type;
  std::string workload_options; ///< JSON text
  wire_hyperparameters hp;
  std::uint64_t seed = 0;
  std::uint64_t stop_step = 0;
  wire_schedule schedule;
  bool asynchronous = false;    ///< reports at sync points without parking; each is answered by report_taken
  bool fusion = true;           ///< its steps may run as one with those of its kind
  std::int32_t priority = 0;    ///< on its slot: higher ones go first
  bool barrier = false;         ///< others wait for it at sync points
  std::uint32_t slot = 0;       ///< of the node
  bool movable = false;         ///< to other slots of the node
  state_ref state;              ///< resume from this; none: from the beginning
  trainer_observer observer;
};
TROUPE_INSPECT(host_trainer, who, name, workload_type, workload_options, hp, seed, stop_step, schedule, asynchronous,
               fusion, priority, barrier, slot, movable, state, observer)

/// End a trainer at once; nothing of it is reported afterwards.
struct drop_trainer { trainer_ref who; };
TROUPE_INSPECT(drop_trainer, who)

/// Take a state out of the node's blob store.
struct drop_state { std::uint64_t blob = 0; };
TROUPE_INSPECT(drop_state, blob)

struct query_node { std::uint32_t node = 0; };
TROUPE_INSPECT(query_node, node)

/// One slot as its node presents it.
struct slot_description {
  std::uint32_t index = 0;
  std::string device;   ///< id, for pins
  std::string kind;     ///< "cpu" or "cuda"
  std::string name;     ///< the device's model
  std::uint64_t memory_budget = 0; ///< bytes; 0: no limit but the device's
  bool alive = true;
  std::uint32_t ordinal = 0; ///< CUDA's number of the device in the node's process
};
TROUPE_INSPECT(slot_description, index, device, kind, name, memory_budget, alive, ordinal)

/// What a slot's device holds beside living buffers, and what was done to make do with it. In bytes where nothing else is said.
struct device_use {
  std::uint64_t reserved = 0;                                        ///< taken from the device, memory kept for reuse too
  std::uint64_t pinned_used = 0, pinned_held = 0, pinned_budget = 0; ///< pinned host memory; with what is kept for reuse
  std::uint64_t swaps_out = 0, swaps_in = 0, swapped_bytes = 0;      ///< states that went to pinned memory and came back: times, bytes
  std::uint64_t staged_bytes = 0;                                    ///< examples sent batch by batch
  std::uint64_t slot_copies = 0, slot_copied_bytes = 0;              ///< states taken from device memory, of this or another slot
  std::uint64_t captures = 0, launches = 0;                          ///< how often a step was captured, and launched whole
  std::string capture_fault;                                         ///< why steps are not captured; empty: no fault
  std::uint64_t calls = 0, stray_calls = 0; ///< how many; stray: another device was current, which was put right
};
TROUPE_INSPECT(device_use, reserved, pinned_used, pinned_held, pinned_budget, swaps_out, swaps_in, swapped_bytes, staged_bytes,
               slot_copies, slot_copied_bytes, captures, launches, capture_fault, calls, stray_calls)

struct slot_status {
  std::uint32_t index = 0;
  bool alive = true;
  std::uint32_t trainers = 0; ///< that live there, at work or not
  std::uint64_t running = 0; ///< runs that have the device, several only as one
  std::uint64_t waiting = 0; ///< runs in the queue
  std::uint64_t steps = 0, slices = 0, tasks = 0;
  /// Slices in which several trainers ran as one, how many (summed over these slices), and their steps.
  std::uint64_t fused_slices = 0, fused_members = 0, fused_steps = 0;
  wire_real busy_seconds, idle_seconds;
  std::uint64_t memory_used = 0, memory_peak = 0, memory_budget = 0; ///< bytes
  device_use device;
};
TROUPE_INSPECT(slot_status, index, alive, trainers, running, waiting, steps, slices, tasks, fused_slices, fused_members,
               fused_steps, busy_seconds, idle_seconds, memory_used, memory_peak, memory_budget, device)

struct node_status {
  std::uint32_t node = 0;
  std::vector<slot_status> slots;
  std::uint64_t blobs = 0, blob_bytes = 0; ///< states held for others
};
TROUPE_INSPECT(node_status, node, slots, blobs, blob_bytes)

/// The agent of a process with slots.
using node_agent_actor = typed_actor<result<void>(host_trainer), result<void>(drop_trainer), result<void>(drop_state),
                                     result<node_status>(query_node)>;

/// A node presents itself. Its number was given to it beforehand (0: the head's own process).
struct node_up {
  std::uint32_t node = 0;
  std::uint64_t process_id = 0;
  std::string host;       ///< of its tensor transport; empty: none
  std::uint16_t port = 0;
  std::vector<slot_description> slots;
  node_agent_actor agent;
};
TROUPE_INSPECT(node_up, node, process_id, host, port, slots, agent)

/// A slot's device failed: its trainers failed with it, and it takes no more.
struct slot_lost { std::uint32_t node = 0; std::uint32_t slot = 0; std::string reason; };
TROUPE_INSPECT(slot_lost, node, slot, reason)

/// To whom node agents report: the supervisor's side for them. It watches the agents to learn of a node's end.
using node_observer = typed_actor<result<void>(node_up), result<void>(slot_lost)>;

/// Makes Troupe's message types known to `cfg`; system_config does it.
void register_messages(caf::actor_system_config& cfg);

} // namespace troupe::actors

CAF_BEGIN_TYPE_ID_BLOCK(troupe_messages, caf::first_custom_type_id)
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::wire_real))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::trainer_ref))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::state_ref))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::begin_training))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::pause_training))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::resume_training))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::push_hyperparameters))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::call_sync))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::export_state))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::apply_decision))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::resume_sync))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::release_trainer))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::stop_training))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::query_status))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::trainer_status))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::trainer_up))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::sync_report))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::state_exported))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::decision_applied))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::trainer_paused))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::trainer_resumed))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::push_ack))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::trainer_finished))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::trainer_failed))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::host_trainer))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::drop_trainer))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::drop_state))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::query_node))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::node_status))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::node_up))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::slot_lost))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::trainer_moved))
  CAF_ADD_TYPE_ID(troupe_messages, (troupe::actors::report_taken))
CAF_END_TYPE_ID_BLOCK(troupe_messages)
