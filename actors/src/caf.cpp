#include "troupe/actors/caf.hpp"

#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "caf/actor_proxy.hpp"
#include "caf/thread_hook.hpp"

#include "troupe/actors/messages.hpp"

namespace troupe::actors {

bool is_node_loss(const caf::error& why) {
  return why == caf::exit_reason::remote_link_unreachable || why == caf::sec::connection_timeout
#if TROUPE_CAF_MODERN
         || why == caf::sec::connection_closed
#endif
      ;
}

// Not by comparing node ids: on 0.17.6 two containers may have the same.
bool is_remote(const caf::strong_actor_ptr& x) {
  return x != nullptr && dynamic_cast<caf::actor_proxy*>(x->get()) != nullptr;
}

caf::error make_error(std::string text) { return caf::make_error(caf::sec::runtime_error, std::move(text)); }

std::string error_text(const caf::error& x) {
  if (x == caf::sec::runtime_error) {
    const auto& context = x.context();
    if (context.match_elements<std::string>())
      return context.get_as<std::string>(0);
  }
  for (const auto& [code, text] : {std::pair{caf::sec::request_receiver_down, "the actor that was asked has ended"},
                                   std::pair{caf::sec::request_timeout, "the actor that was asked did not answer in time"},
                                   std::pair{caf::sec::unexpected_message, "the actor that was asked does not know this message"}})
    if (x == code)
      return text + (" (" + to_string(code)) + ")";
  return to_string(x);
}

std::string exception_text(const std::exception_ptr& x) {
  try {
    if (x)
      std::rethrow_exception(x);
    return "no exception";
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

internal::unknown_messages::unknown_messages(std::string who, sink say) : who_(std::move(who)), say_(std::move(say)) {
  if (!say_)
    say_ = [](const std::string& line) { std::fprintf(stderr, "troupe: %s\n", line.c_str()); };
}

internal::unknown_messages::~unknown_messages() {
  if (count_ > told_)
    say_(who_ + " dropped " + std::to_string(count_) + " messages that it does not know");
}

void internal::unknown_messages::note(const caf::strong_actor_ptr& sender) {
  constexpr std::size_t max_lines = 8;
  ++count_;
  if (senders_.size() >= max_lines)
    return;
  const auto from = is_remote(sender) ? to_string(sender->node()) : std::string{"this process"};
  if (!senders_.insert(from).second)
    return;
  ++told_;
  say_(who_ + " dropped a message that it does not know, of " + from + "; more of them are only counted");
}

std::string caf_key(std::string_view x) {
#if TROUPE_CAF_MODERN
  return "caf." + std::string{x};
#else
  return std::string{x};
#endif
}

namespace {

/// Holds back the end of a system's threads, and so the system's own, until nothing outside holds an actor of it.
class wait_for_outside final : public caf::thread_hook {
public:
  explicit wait_for_outside(std::shared_ptr<internal::outside_count> x) : held_(std::move(x)) {}
  void init(caf::actor_system& x) override { system_ = &x; }
#if TROUPE_CAF_MODERN
  void thread_started(caf::thread_owner) override {}
#else
  void thread_started() override {}
#endif
  void thread_terminates() override {
    if (system_ != nullptr && system_->registry().running() == 0) // or the thread of a blocking actor that is done
      held_->wait_until_none();
  }

private:
  std::shared_ptr<internal::outside_count> held_;
  caf::actor_system* system_ = nullptr;
};

} // namespace

std::shared_ptr<internal::outside_count> internal::outside_count_of(const caf::strong_actor_ptr& x) {
  if (!x)
    return nullptr;
  const auto* config = dynamic_cast<const system_config*>(&x->home_system->config());
  return config != nullptr ? config->held_outside() : nullptr;
}

system_config::system_config() {
  add_thread_hook<wait_for_outside>(outside_);
#if TROUPE_CAF_MODERN
  [[maybe_unused]] static const bool core = (caf::core::init_global_meta_objects(), true);
#endif
  register_messages(*this);
  // Without it an actor that keeps mailing itself holds its thread for ever, and a pause is never heard.
  set(caf_key("scheduler.max-throughput"), std::size_t{1});
  // Threads that steal sleep and look again when there is nothing to do, which costs an ask a third of its time and a quiet process
  // some of a core; those that share one queue are woken.
#if TROUPE_CAF_MODERN
  set(caf_key("scheduler.policy"), "sharing");
#else
  set(caf_key("scheduler.policy"), caf::atom("sharing"));
#endif
}

void system_config::scheduler_threads(std::size_t n) {
  if (n > 0)
    set(caf_key("scheduler.max-threads"), n);
}

void registry_put(caf::actor_system& sys, const std::string& name, const caf::strong_actor_ptr& hdl) {
  if (name.empty() || name.size() > 10)
    throw std::invalid_argument{"the actor name \"" + name + "\" must have 1 to 10 characters"};
#if TROUPE_CAF_MODERN
  sys.registry().put(name, hdl);
#else
  sys.registry().put(caf::atom_from_string(name), hdl);
#endif
}

void registry_erase(caf::actor_system& sys, const std::string& name) {
#if TROUPE_CAF_MODERN
  sys.registry().erase(name);
#else
  sys.registry().erase(caf::atom_from_string(name));
#endif
}

wire_real::wire_real(double x) noexcept { std::memcpy(&bits, &x, sizeof(bits)); }

wire_real::operator double() const noexcept {
  double x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

} // namespace troupe::actors
