#include "troupe/actors/node_agent.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <optional>
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
  node_agent(const node_agent&) = delete;
  ~node_agent() { forget_watches(); }

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
                             o.device.name, o.memory_budget, true, static_cast<std::uint32_t>(o.device.ordinal)});
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
                      forget_watches();
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
    hosted_trainer actor;
    std::uint64_t number = 0; ///< in what slots tell of their load
    bool movable = false;
    bool moved = false;       ///< at least once
    std::vector<std::size_t> not_to{}; ///< slots that could not take it
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
                                                      setup_.blobs, setup_.fetch, ++numbers_});
    trainers_.emplace(key(x.who), life{x.who, x.slot, x.observer, actor, numbers_, x.movable});
    by_number_.emplace(numbers_, key(x.who));
    if (x.movable)
      look_later();
    monitors_.watch(self_, actor, [this, who = x.who](const caf::error& why) { on_down(who, why); });
  }

  void refuse(const host_trainer& x, const core::error& why, bool device_lost) {
    mail(self_, trainer_failed{x.who, 0, to_wire(why), device_lost}).send(x.observer);
  }

  void end(table::iterator i) {
    monitors_.unwatch(self_, i->second.actor);
    self_->send_exit(i->second.actor, caf::exit_reason::user_shutdown);
    erase(i);
  }

  void erase(table::iterator i) {
    const auto number = i->second.number;
    by_number_.erase(number);
    trainers_.erase(i);
    if (moving_ == number) { // it will not say how that went
      moving_.reset();
      look_later();
    }
  }

  /// A trainer that comes to its end says so itself and leaves without an error.
  void on_down(const trainer_ref& who, const caf::error& why) {
    const auto i = trainers_.find(key(who));
    if (i == trainers_.end() || i->second.who != who)
      return;
    if (failed(why) && why != caf::exit_reason::normal)
      mail(self_, trainer_failed{who, 0, to_wire(core::error{core::errc::failed, error_text(why)}), false})
          .send(i->second.observer);
    erase(i);
  }

  void on_slot_lost(std::size_t slot, const std::string& why) {
    slots_[slot].alive = false;
    if (setup_.observer)
      mail(self_, slot_lost{setup_.node, static_cast<std::uint32_t>(slot), why}).send(setup_.observer);
  }

  // -- balance -------------------------------------------------------------------------------------------------------
  //
  // Slots tell once when they have become idle, or shared, whichever is missing for a move. Then the agent has a look: not at once,
  // since most such moments are over soon. Where nothing is worth a move, but both are there, it looks again from time to time,
  // because work is measured only while it is done. So there is no look without an idle slot and one that could give something.

  static constexpr std::chrono::milliseconds first_look{10}, longest_look{160};

  bool takes_part(std::size_t slot) const {
    return slots_[slot].alive && setup_.slots[slot]->options().device.kind == gpu::device_kind::cpu;
  }

  void look_later() {
    if (slots_.size() < 2 || moving_ || std::exchange(looking_, true))
      return;
    mail(self_, agent_call{[this] { look(); }}).delay(patience_).send(agent_self{self_});
  }

  void watch(std::size_t slot, gpu::slot_worker::turn what) {
    setup_.slots[slot]->when(what, [me = outside{agent_self{self_}}, this] {
      anon_mail(agent_call{[this] { look_later(); }}).send(me.get());
    });
  }

  void forget_watches() {
    for (const auto& s : setup_.slots) {
      s->when(gpu::slot_worker::turn::idle, nullptr);
      s->when(gpu::slot_worker::turn::shared, nullptr);
    }
  }

  core::slot_load load_of(std::size_t slot) const {
    core::slot_load out;
    if (!takes_part(slot))
      return out;
    out.kind = "cpu";
    const auto now = setup_.slots[slot]->current_load();
    out.idle = now.idle;
    for (const auto& r : now.runs) {
      core::run_load x;
      x.id = r.number;
      x.left_seconds = static_cast<double>(r.steps_left) * r.step_seconds;
      x.move_seconds = r.move_seconds;
      if (const auto i = by_number_.find(r.number); i != by_number_.end()) {
        const auto& t = trainers_.at(i->second);
        x.movable = t.movable;
        x.not_to = t.not_to;
        if (t.moved)
          x.settled_seconds = r.settled_seconds;
      }
      out.runs.push_back(std::move(x));
    }
    return out;
  }

  void look() {
    looking_ = false;
    if (moving_)
      return;
    std::vector<core::slot_load> loads;
    std::vector<bool> could_give(slots_.size(), false);
    for (const auto& [k, t] : trainers_)
      if (t.movable)
        could_give[t.slot] = true;
    bool idle = false, shared = false;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      loads.push_back(load_of(i));
      idle = idle || loads[i].idle;
      shared = shared || (could_give[i] && loads[i].runs.size() > 1);
    }
    if (const auto x = core::choose_move(loads, setup_.rebalance))
      return move(*x);
    if (idle && shared) {
      patience_ = std::min(2 * patience_, longest_look);
      return look_later();
    }
    patience_ = first_look;
    for (std::size_t i = 0; i < slots_.size(); ++i)
      if (takes_part(i) && !idle)
        watch(i, gpu::slot_worker::turn::idle);
      else if (takes_part(i) && could_give[i])
        watch(i, gpu::slot_worker::turn::shared);
  }

  void move(const core::slot_move& x) {
    patience_ = first_look;
    moving_ = x.id;
    move_trainer order{setup_.slots[x.to], slots_[x.to].actor, static_cast<std::uint32_t>(x.to), nullptr};
    order.done = [me = agent_self{self_}, this, id = x.id, to = x.to](const core::error& why) {
      anon_mail(agent_call{[this, id, to, why] { on_moved(id, to, why); }}).send(me);
    };
    mail(self_, std::move(order)).send(trainers_.at(by_number_.at(x.id)).actor);
  }

  void on_moved(std::uint64_t id, std::size_t to, const core::error& why) {
    if (moving_ != id)
      return; // it has ended meanwhile
    moving_.reset();
    auto& t = trainers_.at(by_number_.at(id));
    if (why.text.empty()) {
      t.slot = static_cast<std::uint32_t>(to);
      t.moved = true;
    } else if (why.code != core::errc::cancelled) {
      t.not_to.push_back(to);
    }
    look_later();
  }

  node_status status() const {
    node_status out;
    out.node = setup_.node;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      auto s = status_of(*setup_.slots[i]);
      s.index = static_cast<std::uint32_t>(i);
      s.alive = slots_[i].alive;
      out.slots.push_back(std::move(s));
    }
    for (const auto& [k, t] : trainers_)
      ++out.slots[t.slot].trainers;
    const auto c = setup_.blobs->snapshot();
    out.blobs = c.blobs;
    out.blob_bytes = c.bytes;
    return out;
  }

  self_pointer self_;
  node_setup setup_;
  std::vector<slot_entry> slots_;
  table trainers_;
  std::uint64_t numbers_ = 0;
  std::map<std::uint64_t, trainer_key> by_number_;
  std::optional<std::uint64_t> moving_; ///< number of the trainer that was told to
  bool looking_ = false;                ///< a look is to come
  std::chrono::milliseconds patience_ = first_look;
  monitor_set monitors_;
};

} // namespace

node_agent_actor spawn_node_agent(caf::actor_system& sys, node_setup setup) {
  return sys.spawn([setup = std::move(setup)](self_pointer self) -> agent_self::behavior_type {
    auto& st = state(self);
    on_exception(self);
    drop_unknown(self, agent_state::name);
    st.impl = std::make_unique<node_agent>(self, setup);
    st.impl->start();
    return st.impl->behavior();
  });
}

} // namespace troupe::actors
