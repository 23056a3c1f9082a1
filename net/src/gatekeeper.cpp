#include "gatekeeper.hpp"

#include <map>
#include <utility>
#include <vector>

#include "complaints.hpp"

namespace troupe::net {

using namespace actors;

namespace {

struct gatekeeper_state {
  static constexpr const char* name = "gatekeeper";
  std::unique_ptr<gate> rules;
  gatekeeper_events events;
  complaints strangers;
  monitor_set monitors;
  std::map<std::uint32_t, node_up> present;
  node_observer observer;
};

using self_pointer = caf::stateful_actor<gatekeeper_state>*;

/// The process that a message came from; empty: nobody, or this one.
std::string sender_of(self_pointer self) {
  const auto sender = self->current_sender();
  return sender && sender->node() != self->node() ? to_string(sender->node()) : std::string{};
}

void log(self_pointer self, const std::string& line) {
  if (!line.empty())
    state(self).events.log(line);
}

template <class T>
caf::result<T> reply(core::result<T> x, self_pointer self, const std::string& who) {
  if (x)
    return std::move(*x);
  log(self, state(self).strangers.about(complaints::kind::refused, who, x.error().text));
  return make_error(x.error().text);
}

void on_down(self_pointer self, std::uint32_t worker, const caf::error& why) {
  auto& s = state(self);
  s.present.erase(worker);
  const bool left = why == caf::exit_reason::user_shutdown || why == caf::exit_reason::normal;
  s.events.changed(worker, left ? worker_state::left : worker_state::lost,
                   left                  ? std::string{}
                   : is_node_loss(why) ? "its connection is gone"
                                       : "its node agent ended: " + error_text(why));
}

void on_presentation(self_pointer self, presentation& x) {
  auto& s = state(self);
  const auto worker = s.rules->admitted(sender_of(self), x.session);
  if (!worker || x.what.node != *worker || !x.what.agent || s.present.contains(*worker)) {
    log(self, s.strangers.about(complaints::kind::unknown, sender_of(self), "a presentation that was not due"));
    return;
  }
  s.monitors.watch(self, x.what.agent, [self, w = *worker](const caf::error& why) { on_down(self, w, why); });
  s.events.changed(*worker, worker_state::present, {});
  if (s.observer)
    mail(self, x.what).send(s.observer);
  s.present.emplace(*worker, std::move(x.what));
}

caf::behavior gatekeeper(self_pointer self, std::shared_ptr<gate> rules, gatekeeper_events events) {
  state(self).rules = std::make_unique<gate>(std::move(*rules));
  state(self).events = std::move(events);
  return {
    [self](const knock& x) -> caf::result<challenge> {
      const auto who = sender_of(self);
      if (who.empty())
        return make_error("a worker must be a process of its own");
      state(self).monitors.watch(self, caf::actor_cast<caf::actor>(self->current_sender()), [self, who](const caf::error&) {
        state(self).rules->gone(who);
      });
      return reply(state(self).rules->on_knock(who, x), self, who);
    },
    [self](const answer& x) -> caf::result<admission> {
      const auto who = sender_of(self);
      auto in = state(self).rules->on_answer(who, x);
      if (in)
        state(self).events.changed(in->node, worker_state::admitted, {});
      return reply(std::move(in), self, who);
    },
    [self](presentation& x) { on_presentation(self, x); },
    [self](const withdrawal& x) {
      if (const auto worker = state(self).rules->admitted(sender_of(self), x.session))
        state(self).events.changed(*worker, worker_state::lost, x.reason);
    },
    [self](const slot_report& x) {
      auto& s = state(self);
      if (const auto worker = s.rules->admitted(sender_of(self), x.session); worker && x.what.node == *worker && s.observer)
        mail(self, x.what).send(s.observer);
    },
    [self](const expect_process& x) { state(self).rules->expect_process(x.worker, x.process_id); },
    [self](const watch_nodes& x) {
      auto& s = state(self);
      s.observer = x.observer;
      for (const auto& [worker, node] : s.present)
        mail(self, node).send(s.observer);
    },
    // Anyone who reaches the port can send an exit message, under any name. (CAF itself obeys exit_reason::kill.)
    on_exit_msg(self, [self](caf::exit_msg& x) {
      if (!state(self).events.stopping())
        return;
      log(self, state(self).strangers.summary());
      self->quit(x.reason);
    }),
    on_error_msg(self, [](caf::error&) {}),
    otherwise(self, [self](const std::string&) {
      log(self, state(self).strangers.about(complaints::kind::unknown, sender_of(self), "a message that it does not know"));
    }),
  };
}

} // namespace

caf::actor spawn_gatekeeper(caf::actor_system& sys, gate rules, gatekeeper_events events) {
  return sys.spawn(gatekeeper, std::make_shared<gate>(std::move(rules)), std::move(events));
}

} // namespace troupe::net
