#include "supervisor.hpp"

#include <algorithm>
#include <utility>

#include "coordinator.hpp"

namespace troupe::actors::internal {

supervisor::supervisor(caf::event_based_actor* self, settings s) : self_(self), settings_(std::move(s)) {}

caf::behavior supervisor::behavior() {
  on_exception(self_, [this](const std::string& text) {
    tell([text](coordinator& c) { c.fail_run({core::errc::internal, "the supervisor failed: " + text}); });
  });
  return {
      [this](const node_up& x) { on_node(x); },
      [this](const slot_lost& x) { on_slot_lost(x); },
      [this](supervisor_call& x) { x.what(*this); },
      on_error_msg(self_, [](caf::error&) {}), // an agent refused a message: what matters is told as a fact
      otherwise(self_, [](const std::string&) {}),
  };
}

void supervisor::tell(std::function<void(coordinator&)> what) {
  mail(self_, coordinator_call{std::move(what)}).send(settings_.coordinator);
}

void supervisor::on_node(const node_up& x) {
  if (nodes_.contains(x.node))
    return; // it presents itself again
  nodes_[x.node] = {x.agent, x.process_id};
  for (const auto& s : x.slots)
    if (s.alive)
      places_.add_slot({x.node, s.index, s.device, true});
  monitors_.watch(self_, x.agent, [this, number = x.node](const caf::error& why) {
    on_node_down(number, is_node_loss(why) ? "the connection to its process is lost"
                                           : "its agent ended: " + error_text(why));
  });
  tell([x](coordinator& c) { c.on_node(x); });
  place_waiting();
}

void supervisor::on_node_down(std::uint32_t number, const std::string& why) {
  nodes_.erase(number);
  const auto lost = places_.lose_node(number);
  const auto reason = "node " + std::to_string(number) + " is gone: " + why;
  tell([number, reason](coordinator& c) { c.on_node_lost(number, reason); });
  for (const auto t : lost)
    if (auto i = lives_.find(t); i != lives_.end()) {
      const auto ref = i->second.ref;
      unwatch(i->second);
      lives_.erase(i);
      tell([ref, reason](coordinator& c) { c.on_lost(ref, {core::errc::failed, reason}, true); });
    }
  place_waiting();
}

void supervisor::on_slot_lost(const slot_lost& x) {
  // Its trainers tell that they failed. Nothing new goes there.
  places_.lose_slot(x.node, x.slot);
  tell([x](coordinator& c) { c.on_slot_lost(x.node, x.slot, x.reason); });
  place_waiting();
}

void supervisor::start(order x) {
  const auto ref = x.what.who;
  const auto place = places_.place(ref.trainer, x.what.name, x.pin);
  if (!place) {
    const auto& why = place.error();
    if (why.code != core::errc::out_of_memory) {
      tell([ref, why](coordinator& c) { c.on_not_placed(ref, why); });
    } else if (places_.room_for(ref.trainer, x.pin) == core::placement::room::later) {
      waiting_.push_back(std::move(x));
      tell([ref, why](coordinator& c) { c.on_waiting(ref, why); });
    } else {
      tell([ref, why](coordinator& c) { c.on_no_room(ref, why); });
    }
    return;
  }
  const auto& slot = places_.slots()[*place];
  x.what.slot = slot.slot;
  x.what.observer = settings_.observer;
  lives_[ref.trainer] = {ref, trainer_actor{}};
  const auto where = std::to_string(slot.node) + "/" + std::to_string(slot.slot);
  tell([ref, where](coordinator& c) { c.on_placed(ref, where); });
  mail(self_, std::move(x.what)).send(nodes_.at(slot.node).agent);
}

void supervisor::watch(const trainer_ref& who, const trainer_actor& hdl) {
  const auto i = lives_.find(who.trainer);
  if (i == lives_.end() || !(i->second.ref == who))
    return;
  i->second.hdl = hdl;
  monitors_.watch(self_, hdl, [this, who](const caf::error& why) { on_trainer_down(who, why); });
}

/// Someone has left, or there are other slots than before.
void supervisor::place_waiting() {
  for (auto& x : std::exchange(waiting_, {}))
    start(std::move(x));
}

void supervisor::on_trainer_down(const trainer_ref& who, const caf::error& why) {
  if (leaving_.erase({who.trainer, who.incarnation}) > 0) {
    place_waiting();
    return;
  }
  const auto i = lives_.find(who.trainer);
  if (i == lives_.end() || !(i->second.ref == who))
    return;
  i->second.hdl = trainer_actor{};
  // Its agent ends a trainer in this way when its process leaves.
  const bool node_lost = is_node_loss(why) || why == caf::exit_reason::user_shutdown;
  // Its last words, if it had any, were sent before it ended and are ahead of this one.
  tell([who, node_lost, text = error_text(why)](coordinator& c) {
    c.on_lost(who, {core::errc::failed, "its actor ended without a word (" + text + ")"}, node_lost);
  });
}

void supervisor::unwatch(life& x) {
  if (x.hdl)
    monitors_.unwatch(self_, x.hdl);
}

void supervisor::crowded(const trainer_ref& who) {
  if (const auto i = lives_.find(who.trainer); i != lives_.end() && i->second.ref == who)
    places_.crowded(who.trainer);
  forget(who, false);
}

void supervisor::forget_crowding(core::trainer_id t) { places_.forget_crowding(t); }

void supervisor::moved(const trainer_ref& who, std::uint32_t to_slot) {
  const auto i = lives_.find(who.trainer);
  if (i != lives_.end() && i->second.ref == who && places_.moved(who.trainer, to_slot))
    place_waiting(); // there is more room where it was
}

void supervisor::forget(const trainer_ref& who, bool drop) {
  std::erase_if(waiting_, [&](const order& x) { return x.what.who == who; });
  const auto i = lives_.find(who.trainer);
  if (i == lives_.end() || !(i->second.ref == who))
    return;
  if (drop)
    if (const auto place = places_.where(who.trainer))
      if (auto n = nodes_.find(places_.slots()[*place].node); n != nodes_.end())
        mail(self_, drop_trainer{who}).send(n->second.agent);
  const bool up = static_cast<bool>(i->second.hdl);
  if (up) // still watched: what it holds is free when its actor has ended
    leaving_.emplace(who.trainer, who.incarnation);
  lives_.erase(i);
  places_.remove(who.trainer);
  if (!up)
    place_waiting();
}

void supervisor::drop_state(std::uint32_t node, std::uint64_t blob) {
  if (auto i = nodes_.find(node); i != nodes_.end())
    mail(self_, actors::drop_state{blob}).send(i->second.agent);
}

void supervisor::shut_down() {
  for (auto& [number, n] : nodes_) {
    monitors_.unwatch(self_, n.agent);
    self_->send_exit(n.agent, caf::exit_reason::user_shutdown);
  }
  nodes_.clear();
  self_->quit();
}

namespace {
struct supervisor_state {
  static constexpr const char* name = "supervisor";
  std::unique_ptr<supervisor> rules;
};
} // namespace

caf::actor spawn_supervisor(caf::actor_system& sys, supervisor::settings s) {
  return sys.spawn([s](caf::stateful_actor<supervisor_state>* self) -> caf::behavior {
    state(self).rules = std::make_unique<supervisor>(self, s);
    return state(self).rules->behavior();
  });
}

} // namespace troupe::actors::internal
