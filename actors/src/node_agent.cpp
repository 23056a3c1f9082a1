#include "troupe/actors/node_agent.hpp"

#include <map>
#include <unistd.h>
#include <utility>

#include "trainer.hpp"
#include "trainer_messages.hpp"

namespace troupe::actors {
namespace {

using namespace internal;
using agent_self = extend<node_agent_actor, result<void>(agent_call)>;

class node_agent;

struct agent_state {
  std::unique_ptr<node_agent> impl;
  static constexpr const char* name = "node_agent";
};

using self_pointer = agent_self::stateful_pointer<agent_state>;

class node_agent {
public:
  node_agent(self_pointer self, node_setup setup) : self_(self), setup_(std::move(setup)) {
    if (!setup_.blobs)
      setup_.blobs = std::make_shared<blob_store>(setup_.node);
  }

  void start() {
    node_up hello{setup_.node, static_cast<std::uint64_t>(::getpid()), setup_.host, setup_.port, {}, node_agent_actor{self_}};
    for (std::size_t i = 0; i < setup_.slots.size(); ++i) {
      const auto& o = setup_.slots[i]->options();
      slots_.push_back({spawn_slot(self_->home_system(), setup_.slots[i],
                                   [me = agent_self{self_}, this, i](const std::string& why) {
                                     anon_mail(agent_call{[this, i, why] { on_slot_lost(i, why); }}).send(me);
                                   }),
                        true});
      hello.slots.push_back({static_cast<std::uint32_t>(i), o.device.id, std::string{gpu::to_string(o.device.kind)},
                             o.device.name, o.memory_budget, true});
    }
    if (setup_.observer)
      mail(self_, std::move(hello)).send(setup_.observer);
  }

  agent_self::behavior_type behavior() {
    return make_behavior(self_,
        [this](const host_trainer& x) { host(x); },
        [this](const drop_trainer& x) {
          if (const auto i = trainers_.find(key(x.who)); i != trainers_.end() && i->second.who == x.who)
            end(i);
        },
        [this](const drop_state& x) { setup_.blobs->drop(x.blob); },
        [this](const query_node&) -> result<node_status> { return status(); },
        [](const agent_call& x) { x.what(); },
        on_exit_msg(self_,
                    [this](caf::exit_msg& x) {
                      while (!trainers_.empty())
                        end(trainers_.begin());
                      self_->quit(std::move(x.reason));
                    }),
        on_error_msg(self_, [](caf::error&) {}));
  }

private:
  struct slot_entry {
    slot_actor actor;
    bool alive = true;
  };
  struct life {
    trainer_ref who;
    std::uint32_t slot = 0;
    trainer_observer observer;
    trainer_actor actor;
  };
  using trainer_key = std::pair<std::uint64_t, std::uint32_t>;
  using table = std::map<trainer_key, life>;

  static trainer_key key(const trainer_ref& x) { return {x.experiment, x.trainer}; }

  void host(const host_trainer& x) {
    if (const auto i = trainers_.find(key(x.who)); i != trainers_.end()) {
      if (i->second.who.incarnation >= x.who.incarnation)
        return; // told twice, or an older life
      end(i);
    }
    if (x.slot >= slots_.size())
      return refuse(x, {core::errc::not_found, "node " + std::to_string(setup_.node) + " has no slot " +
                                                   std::to_string(x.slot) + ", but " + std::to_string(slots_.size())},
                    false);
    if (!slots_[x.slot].alive)
      return refuse(x, {core::errc::device, "slot " + std::to_string(x.slot) + " of node " + std::to_string(setup_.node) +
                                                " is lost"},
                    true);
    auto actor = spawn_trainer(self_->home_system(), {x, setup_.slots[x.slot], slots_[x.slot].actor, setup_.workloads,
                                                      setup_.blobs, setup_.fetch});
    trainers_.emplace(key(x.who), life{x.who, x.slot, x.observer, actor});
    monitors_.watch(self_, actor, [this, who = x.who](const caf::error& why) { on_down(who, why); });
  }

  void refuse(const host_trainer& x, const core::error& why, bool device_lost) {
    mail(self_, trainer_failed{x.who, 0, to_wire(why), device_lost}).send(x.observer);
  }

  void end(table::iterator i) {
    monitors_.unwatch(self_, i->second.actor);
    self_->send_exit(i->second.actor, caf::exit_reason::user_shutdown);
    trainers_.erase(i);
  }

  /// A trainer that comes to its end says so itself and leaves without an error.
  void on_down(const trainer_ref& who, const caf::error& why) {
    const auto i = trainers_.find(key(who));
    if (i == trainers_.end() || i->second.who != who)
      return;
    if (failed(why) && why != caf::exit_reason::normal)
      mail(self_, trainer_failed{who, 0, to_wire(core::error{core::errc::failed, error_text(why)}), false})
          .send(i->second.observer);
    trainers_.erase(i);
  }

  void on_slot_lost(std::size_t slot, const std::string& why) {
    slots_[slot].alive = false;
    if (setup_.observer)
      mail(self_, slot_lost{setup_.node, static_cast<std::uint32_t>(slot), why}).send(setup_.observer);
  }

  node_status status() const {
    node_status out;
    out.node = setup_.node;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      auto s = status_of(*setup_.slots[i]);
      s.index = static_cast<std::uint32_t>(i);
      s.alive = slots_[i].alive;
      for (const auto& [k, t] : trainers_)
        s.trainers += t.slot == i;
      out.slots.push_back(s);
    }
    const auto c = setup_.blobs->snapshot();
    out.blobs = c.blobs;
    out.blob_bytes = c.bytes;
    return out;
  }

  self_pointer self_;
  node_setup setup_;
  std::vector<slot_entry> slots_;
  table trainers_;
  monitor_set monitors_;
};

} // namespace

node_agent_actor spawn_node_agent(caf::actor_system& sys, node_setup setup) {
  return sys.spawn([setup = std::move(setup)](self_pointer self) -> agent_self::behavior_type {
    auto& st = state(self);
    on_exception(self);
    st.impl = std::make_unique<node_agent>(self, setup);
    st.impl->start();
    return st.impl->behavior();
  });
}

} // namespace troupe::actors
