#include "supervisor.hpp"

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
  tell([number = x.node, slots = x.slots.size()](coordinator& c) { c.on_node(number, slots); });
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
}

void supervisor::on_slot_lost(const slot_lost& x) {
  // Its trainers tell that they failed. Nothing new goes there.
  places_.lose_slot(x.node, x.slot);
  tell([x](coordinator& c) { c.on_slot_lost(x.node, x.slot, x.reason); });
}

void supervisor::start(order x) {
  const auto ref = x.what.who;
  const auto place = places_.place(ref.trainer, x.what.name, x.pin);
  if (!place) {
    tell([ref, why = place.error()](coordinator& c) { c.on_not_placed(ref, why); });
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

void supervisor::on_trainer_down(const trainer_ref& who, const caf::error& why) {
  const auto i = lives_.find(who.trainer);
  if (i == lives_.end() || !(i->second.ref == who))
    return;
  const bool node_lost = is_node_loss(why);
  // Its last words, if it had any, were sent before it ended and are ahead of this one.
  tell([who, node_lost, text = error_text(why)](coordinator& c) {
    c.on_lost(who, {core::errc::failed, "its actor ended without a word (" + text + ")"}, node_lost);
  });
}

void supervisor::unwatch(life& x) {
  if (x.hdl)
    monitors_.unwatch(self_, x.hdl);
}

void supervisor::forget(const trainer_ref& who, bool drop) {
  const auto i = lives_.find(who.trainer);
  if (i == lives_.end() || !(i->second.ref == who))
    return;
  if (drop)
    if (const auto place = places_.where(who.trainer))
      if (auto n = nodes_.find(places_.slots()[*place].node); n != nodes_.end())
        mail(self_, drop_trainer{who}).send(n->second.agent);
  unwatch(i->second);
  lives_.erase(i);
  places_.remove(who.trainer);
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
