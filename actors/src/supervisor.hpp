#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "control_messages.hpp"
#include "troupe/actors/messages.hpp"
#include "troupe/core/placement.hpp"

namespace troupe::actors::internal {

/// Knows the nodes and their slots, places trainers on them, and watches everything that can end.
///
/// What it learns it tells the coordinator, which decides what follows (it knows budgets and checkpoints); a
/// new life of a trainer is placed like the first one, on what slots are left. One actor; all calls come in
/// its turns.
class supervisor {
public:
  struct settings {
    caf::actor coordinator;
    trainer_observer observer; ///< whom trainers report to: the coordinator
  };

  supervisor(caf::event_based_actor* self, settings s);
  caf::behavior behavior();

  /// A trainer to place; `pin` as in core::placement.
  struct order {
    host_trainer what; ///< less slot and observer
    std::string pin;
  };
  /// Where there is no room for it (`crowded`), it waits until others have left.
  void start(order x);
  /// It is up: its end will be told.
  void watch(const trainer_ref& who, const trainer_actor& hdl);
  /// It is over: its place is free. `drop`: its actor is to be ended first.
  void forget(const trainer_ref& who, bool drop);
  /// It is over for want of memory: its next lives are placed beside fewer others.
  void crowded(const trainer_ref& who);
  void forget_crowding(core::trainer_id t);
  /// It lives on another slot of its node now.
  void moved(const trainer_ref& who, std::uint32_t to_slot);
  void drop_state(std::uint32_t node, std::uint64_t blob);
  /// Ends the agents, and itself with them.
  void shut_down();

private:
  struct node {
    node_agent_actor agent;
    std::uint64_t process = 0;
  };
  struct life {
    trainer_ref ref;
    trainer_actor hdl;
  };

  void on_node(const node_up& x);
  void on_slot_lost(const slot_lost& x);
  void on_node_down(std::uint32_t number, const std::string& why);
  void on_trainer_down(const trainer_ref& who, const caf::error& why);
  void unwatch(life& x);
  void place_waiting();
  void tell(std::function<void(coordinator&)> what);

  caf::event_based_actor* self_;
  settings settings_;
  core::placement places_{{}};
  std::map<std::uint32_t, node> nodes_;
  std::map<core::trainer_id, life> lives_;
  /// Numbers and incarnations of those that are over; their memory is held until their actors have ended.
  std::set<std::pair<core::trainer_id, std::uint32_t>> leaving_;
  std::vector<order> waiting_;       ///< for room, in the order in which they came
  monitor_set monitors_;
};

/// Hidden: made together with the coordinator by the session.
caf::actor spawn_supervisor(caf::actor_system& sys, supervisor::settings s);

} // namespace troupe::actors::internal
