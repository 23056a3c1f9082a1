#include "troupe/actors/run.hpp"

#include <algorithm>
#include <atomic>
#include <latch>
#include <mutex>
#include <utility>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "coordinator.hpp"
#include "resume.hpp"
#include "run_host.hpp"
#include "supervisor.hpp"
#include "troupe/actors/node_agent.hpp"
#include "troupe/actors/prepare.hpp"
#include "troupe/actors/run_access.hpp"
#include "troupe/core/subnormals.hpp"
#include "troupe/gpu/device.hpp"

namespace troupe::actors {

using namespace internal;

// -- words
// -------------------------------------------------------------------------------------------------------------

std::string_view to_string(trainer_state x) noexcept {
  switch (x) {
  case trainer_state::starting:
    return "starting";
  case trainer_state::running:
    return "running";
  case trainer_state::parked:
    return "parked";
  case trainer_state::held:
    return "held";
  case trainer_state::paused:
    return "paused";
  case trainer_state::restarting:
    return "restarting";
  case trainer_state::finished:
    return "finished";
  case trainer_state::stopped:
    return "stopped";
  case trainer_state::failed:
    return "failed";
  case trainer_state::interrupted:
    return "interrupted";
  }
  return "unknown";
}

bool is_live(trainer_state x) noexcept { return x < trainer_state::finished; }

std::string_view to_string(run_outcome_kind x) noexcept {
  switch (x) {
  case run_outcome_kind::done:
    return "done";
  case run_outcome_kind::failed:
    return "failed";
  case run_outcome_kind::interrupted:
    return "interrupted";
  }
  return "unknown";
}

void run_listener::on_event(std::string_view, const nlohmann::json&) {}

// -- control
// -----------------------------------------------------------------------------------------------------------

struct run_control::link {
  std::mutex mutex;
  outside<caf::actor> hdl; // null once the run is over

  /// `f` is forgotten if the run is over; what it would have answered says so by itself.
  void send(std::function<void(coordinator&)> f) {
    outside<caf::actor> to;
    {
      const std::lock_guard lock(mutex);
      to = hdl;
    }
    if (to)
      anon_mail(coordinator_call{std::move(f)}).urgent().send(to.get());
  }
  void close() {
    const std::lock_guard lock(mutex);
    hdl = {};
  }
};

namespace {

template <class T, class F>
void ask(const auto& link, answer_to<T> then, F&& f) {
  reply<T> to{std::move(then)};
  if (link)
    link->send([to, f = std::forward<F>(f)](coordinator& c) { f(c, to); });
}

/// `call` takes what is to be called back.
template <class T, class F>
std::future<core::result<T>> promised(F&& call) {
  auto promise = std::make_shared<std::promise<core::result<T>>>();
  auto answer = promise->get_future();
  call([promise](core::result<T> x) { promise->set_value(std::move(x)); });
  return answer;
}

} // namespace

void run_control::status(answer_to<run_status> then) const {
  ask<run_status>(link_, std::move(then), [](coordinator& c, auto to) { c.status(to); });
}
void run_control::pause(std::string who, answer_to<acknowledgements> then) const {
  ask<acknowledgements>(link_, std::move(then), [who = std::move(who)](coordinator& c, auto to) { c.pause(who, to); });
}
void run_control::resume(std::string who, answer_to<acknowledgements> then) const {
  ask<acknowledgements>(link_, std::move(then), [who = std::move(who)](coordinator& c, auto to) { c.resume(who, to); });
}
void run_control::push(std::string who, core::hyperparameters changes, answer_to<acknowledgements> then) const {
  ask<acknowledgements>(
      link_, std::move(then),
      [who = std::move(who), changes = std::move(changes)](coordinator& c, auto to) { c.push(who, changes, to); });
}
void run_control::stop(std::string who, std::string reason, answer_to<acknowledgements> then) const {
  ask<acknowledgements>(
      link_, std::move(then),
      [who = std::move(who), reason = std::move(reason)](coordinator& c, auto to) { c.stop(who, reason, to); });
}
void run_control::add_trainer(std::string json, answer_to<trainer_id> then) const {
  ask<trainer_id>(link_, std::move(then), [json = std::move(json)](coordinator& c, auto to) { c.add_trainer(json, to); });
}

std::future<core::result<run_status>> run_control::status() const {
  return promised<run_status>([&](auto then) { status(std::move(then)); });
}
std::future<core::result<acknowledgements>> run_control::pause(std::string who) const {
  return promised<acknowledgements>([&](auto then) { pause(std::move(who), std::move(then)); });
}
std::future<core::result<acknowledgements>> run_control::resume(std::string who) const {
  return promised<acknowledgements>([&](auto then) { resume(std::move(who), std::move(then)); });
}
std::future<core::result<acknowledgements>> run_control::push(std::string who, core::hyperparameters changes) const {
  return promised<acknowledgements>([&](auto then) { push(std::move(who), std::move(changes), std::move(then)); });
}
std::future<core::result<acknowledgements>> run_control::stop(std::string who, std::string reason) const {
  return promised<acknowledgements>([&](auto then) { stop(std::move(who), std::move(reason), std::move(then)); });
}
std::future<core::result<trainer_id>> run_control::add_trainer(std::string json) const {
  return promised<trainer_id>([&](auto then) { add_trainer(std::move(json), std::move(then)); });
}
void run_control::interrupt() const {
  if (link_)
    link_->send([](coordinator& c) { c.interrupt(); });
}

// -- the session
// -------------------------------------------------------------------------------------------------------

struct run_session::impl {
  std::shared_ptr<run_host> host;
  std::vector<std::shared_ptr<gpu::slot_worker>> workers;
  std::unique_ptr<system_config> config;
  std::unique_ptr<caf::actor_system> own_system;
  caf::actor_system* system = nullptr;
  std::shared_ptr<run_control::link> link = std::make_shared<run_control::link>();
  std::shared_ptr<std::promise<run_summary>> promise = std::make_shared<std::promise<run_summary>>();
  std::shared_future<run_summary> ended = promise->get_future().share();
  std::optional<resumption> resumed;
  caf::actor coordinator_hdl, supervisor_hdl;
  node_agent_actor agent;

  std::shared_ptr<std::latch> workers_returned; ///< by all actors

  ~impl() {
    link->close();
    if (system)
      end_actors();
    // What still answers finds the actors' system in place.
    workers.clear();
    if (host) {
      host->store.reset();
      host->listening.reset();
    }
    own_system.reset();
  }

  /// Workers as actors get them: it is known when none has one any more. `workers` keeps them alive until
  /// then.
  std::vector<std::shared_ptr<gpu::slot_worker>> lend_workers() {
    workers_returned = std::make_shared<std::latch>(static_cast<std::ptrdiff_t>(workers.size()));
    std::vector<std::shared_ptr<gpu::slot_worker>> out;
    for (const auto& w : workers)
      out.emplace_back(w.get(), [back = workers_returned](gpu::slot_worker*) { back->count_down(); });
    return out;
  }

  void end_actors() {
    if (ended.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
      host->store->abandon();
    anon_mail(supervisor_call{[](supervisor& s) { s.shut_down(); }}).urgent().send(supervisor_hdl);
    caf::anon_send_exit(coordinator_hdl, caf::exit_reason::user_shutdown);
    caf::anon_send_exit(agent, caf::exit_reason::user_shutdown);
    caf::scoped_actor self{*system};
    if (coordinator_hdl)
      self->wait_for(std::exchange(coordinator_hdl, nullptr));
    if (supervisor_hdl)
      self->wait_for(std::exchange(supervisor_hdl, nullptr));
    if (agent)
      self->wait_for(std::exchange(agent, node_agent_actor{}));
    // Trainers and slots end after their agent. Workloads must die on their own threads, before these are
    // joined.
    if (workers_returned)
      workers_returned->wait();
  }
};

run_session::run_session(std::unique_ptr<impl> x) : impl_(std::move(x)) {}
run_session::~run_session() = default;

namespace {

std::uint64_t new_experiment_id() {
  static std::atomic<std::uint64_t> counter{0};
  const auto now = static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  return core::derive_seed(now ^ (static_cast<std::uint64_t>(::getpid()) << 40), "experiment id", counter++);
}

core::error all_of(const std::string& what, const std::vector<core::error>& faults) {
  core::error out{core::errc::invalid_argument, what};
  for (const auto& f : faults)
    out.text += "\n  " + f.text;
  return out;
}

} // namespace

core::result<void> internal::resolve_pins(std::span<core::trainer_spec> trainers) {
  std::optional<gpu::device_report> devices;
  for (auto& t : trainers) {
    if (!t.slot.starts_with("cuda:"))
      continue;
    if (!devices)
      devices = gpu::find_devices();
    auto found = gpu::find_device(*devices, t.slot);
    if (!found)
      return core::error{found.error().code, "trainer \"" + t.name + "\": " + found.error().text};
    t.slot = found->id;
  }
  return {};
}

namespace {

core::result<void> check(const run_options& o) {
  if (!o.workloads || !o.policies)
    return core::error{core::errc::invalid_argument, "a run needs registries of workloads and policies"};
  if (o.exp.trainers.empty())
    return core::error{core::errc::invalid_argument, "the experiment has no trainers"};
  if (o.slots.empty() && o.other_nodes == 0)
    return core::error{core::errc::invalid_argument,
                       "there are no slots: neither here nor in other processes"};
  if (o.from_start && !o.resume)
    return core::error{core::errc::invalid_argument, "only a run that is gone on with can be told to begin at step 0"};
  if (o.resume && o.directory.empty())
    return core::error{core::errc::invalid_argument, "only a run with a directory can be gone on with"};
  return {};
}

nlohmann::json details_of(const resumption& x) {
  nlohmann::json out{{"step", x.step}};
  if (x.set)
    out["set"] = *x.set;
  for (const auto& d : x.damage)
    out["damage"].push_back(d.text);
  for (const auto& n : x.notes)
    out["notes"].push_back(n);
  return out;
}

} // namespace

core::result<std::unique_ptr<run_session>> run_session::start(run_options options) {
  if (auto ok = check(options); !ok)
    return ok.error();
  auto x = std::make_unique<impl>();
  auto host = std::make_shared<run_host>();
  host->options = std::move(options);
  auto& o = host->options;
  host->experiment_id = new_experiment_id();

  std::vector<core::error> damage;
  const auto text = o.exp; // as in the file, before trainers are added: the record must match it
  if (o.resume) {
    auto resumed = read_resumed(o.directory, o.exp, checkers_of(*o.workloads, *o.policies), o.from_start, damage);
    if (!resumed)
      return resumed.error();
    host->resumed = std::move(*resumed);
  }
  if (auto ok = resolve_pins(o.exp.trainers); !ok) // of those that were added before too
    return ok.error();

  std::vector<std::string> names;
  for (const auto& t : o.exp.trainers)
    names.push_back(t.name);
  std::vector<core::error> faults;
  const auto policy_options = nlohmann::json::parse(o.exp.policy_options, nullptr, false);
  if (policy_options.is_discarded())
    return core::error{core::errc::invalid_argument, "/policy: the options are not JSON"};
  host->policy = o.policies->make(o.exp.policy_type, policy_options, o.exp.space, names, "/policy", faults);
  if (host->policy)
    host->policy->check(o.exp, faults);
  if (!faults.empty() || !host->policy)
    return all_of("the policy cannot be made:", faults);
  const bool watched = std::any_of(o.exp.trainers.begin(), o.exp.trainers.end(),
                                   [](const core::trainer_spec& t) { return t.stop.plateau.has_value(); });
  if (host->resumed && (watched || host->policy->wants_history())) {
    auto history = read_history(o.directory, host->resumed->set);
    if (!history)
      return history.error();
    host->resumed->history = std::move(*history);
  }

  auto store = run_store::open(o.directory, text, o.resume);
  if (!store)
    return store.error();
  host->store = std::move(*store);
  if (host->resumed)
    host->store->known_sets(host->resumed->sets, host->resumed->next_set);
  host->blobs = o.blobs ? o.blobs : std::make_shared<blob_store>();
  host->listening = std::make_unique<job_thread>("troupe listener");
  x->host = host;
  if (o.resume) {
    auto& from = x->resumed.emplace();
    from.set = host->resumed->set;
    for (const auto& [t, saved] : host->resumed->saved)
      from.step = std::max(from.step, saved.step);
    from.damage = std::move(damage);
    if (host->resumed->kept_subnormals && core::can_flush_subnormals)
      from.notes.push_back("the run was begun by a version that kept subnormal numbers, and goes on with zeros for them: its weights may "
                           "differ from those of a run without an interruption");
    const auto details = details_of(from);
    host->tell_event("gone_on", details);
    host->store->event("gone_on", details);
  }

  // Devices first: the costliest and likeliest to fail.
  try {
    gpu::slot_worker::settings s;
    s.slice = std::chrono::microseconds(static_cast<std::int64_t>(o.exp.quantum_ms * 1000));
    for (const auto& slot : o.slots)
      x->workers.push_back(std::make_shared<gpu::slot_worker>(slot, s));
  } catch (const std::exception& e) {
    return core::error{core::errc::device,
                       "slot " + std::to_string(x->workers.size()) + " cannot be opened: " + e.what()};
  }

  if (o.system) {
    x->system = o.system;
  } else {
    x->config = std::make_unique<system_config>();
    x->config->scheduler_threads(2); // handlers are short
    x->own_system = std::make_unique<caf::actor_system>(*x->config);
    x->system = x->own_system.get();
  }
  coordinator::settings cs;
  cs.host = host;
  cs.on_end = [promise = x->promise, link = x->link](run_summary s) {
    link->close();
    promise->set_value(std::move(s));
  };
  x->coordinator_hdl = spawn_coordinator(*x->system, std::move(cs));
  x->link->hdl = outside{x->coordinator_hdl};
  x->supervisor_hdl = spawn_supervisor(
      *x->system, {x->coordinator_hdl, caf::actor_cast<trainer_observer>(x->coordinator_hdl)});
  // As urgent as control, which must not come before it.
  anon_mail(coordinator_call{[s = x->supervisor_hdl](coordinator& c) { c.start(s); }})
      .urgent()
      .send(x->coordinator_hdl);
  if (!x->workers.empty()) {
    node_setup n;
    n.slots = x->lend_workers();
    n.workloads = o.workloads;
    n.blobs = host->blobs;
    n.host = o.host;
    n.port = o.port;
    if (o.fetch)
      n.fetch = [fetch = o.fetch](const state_ref& ref, auto done) {
        fetch({ref.host, ref.port, ref.blob, ref.bytes, ref.hash}, std::move(done));
      };
    n.observer = caf::actor_cast<node_observer>(x->supervisor_hdl);
    x->agent = spawn_node_agent(*x->system, std::move(n));
  }
  return std::unique_ptr<run_session>(new run_session(std::move(x)));
}

run_control run_session::control() const {
  run_control c;
  c.link_ = impl_->link;
  return c;
}

const std::optional<resumption>& run_session::resumed() const noexcept { return impl_->resumed; }

run_summary run_session::wait() { return impl_->ended.get(); }

bool run_session::wait_for(std::chrono::milliseconds time) {
  return impl_->ended.wait_for(time) == std::future_status::ready;
}

node_observer run_access::nodes(const run_session& run) {
  return run.impl_->supervisor_hdl ? caf::actor_cast<node_observer>(run.impl_->supervisor_hdl)
                                   : node_observer{};
}

void run_access::on_store(const run_session& run, std::function<void()> job) { run.impl_->host->store->post(std::move(job)); }

} // namespace troupe::actors
