#include "troupe/net/cluster.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "child_processes.hpp"
#include "cluster_messages.hpp"
#include "fetch_states.hpp"
#include "gatekeeper.hpp"
#include "proof.hpp"
#include "slot_orders.hpp"
#include "troupe/actors/blob_store.hpp"
#include "troupe/actors/caf_io.hpp"
#include "troupe/actors/run_access.hpp"
#include "troupe/net/tensor_transport.hpp"

namespace troupe::net {

std::string_view to_string(worker_state x) noexcept {
  switch (x) {
  case worker_state::starting: return "starting";
  case worker_state::admitted: return "admitted";
  case worker_state::present: return "present";
  case worker_state::left: return "left";
  case worker_state::lost: return "lost";
  }
  return "unknown";
}

std::vector<std::vector<gpu::slot_options>> deal_slots(const std::vector<gpu::slot_options>& slots, unsigned workers) {
  std::vector<std::vector<gpu::slot_options>> dealt(workers);
  for (std::size_t i = 0; i < slots.size() && workers > 0; ++i) {
    auto& hand = dealt[i % workers];
    hand.push_back(slots[i]);
    hand.back().index = static_cast<unsigned>(hand.size() - 1);
  }
  return dealt;
}

struct cluster_head::impl {
  cluster_options options;
  token secret = token::random();
  std::shared_ptr<actors::blob_store> blobs = std::make_shared<actors::blob_store>();
  std::unique_ptr<tensor_server> server;
  std::shared_ptr<tensor_client> client;
  cluster_config config;
  std::unique_ptr<caf::actor_system> system;
  caf::actor gatekeeper;
  std::uint16_t port = 0;
  std::unique_ptr<child_processes> children;
  std::atomic<bool> stopping{false};

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::vector<worker_info> workers; // guarded by mutex

  void log(const std::string& line) const {
    if (options.log)
      options.log(line);
  }
  void on_change(std::uint32_t number, worker_state now, const std::string& note);
  core::result<void> open();
  core::result<void> start_children();
  core::result<void> wait_until_present();
};

void cluster_head::impl::on_change(std::uint32_t number, worker_state now, const std::string& note) {
  {
    std::lock_guard lock{mutex};
    auto& w = workers.at(number - 1);
    if (w.state == worker_state::lost || w.state == worker_state::left)
      return; // what comes first says most
    w.state = now;
    w.note = note;
    changed.notify_all();
    if (now == worker_state::present && children)
      children->watch(number - 1);
    if (now != worker_state::lost || !children)
      return;
  }
  log("worker " + std::to_string(number) + " is lost: " + note);
  children->kill(number - 1); // it may be frozen and wake up later: its trainers will live elsewhere by then
}

core::result<void> cluster_head::impl::open() {
  tensor_server_settings s;
  s.address = options.address;
  s.secret = tensor_token(secret);
  auto up = tensor_server::start(s, [b = blobs](std::uint64_t id) { return b->get(id); });
  if (!up)
    return up.error();
  server = std::move(*up);
  blobs->set_address(server->address(), server->port());
  tensor_client_settings c;
  c.secret = s.secret;
  client = std::make_shared<tensor_client>(c);

  actors::enable_network(config, no_heartbeats);
  system = std::make_unique<caf::actor_system>(config);
  std::vector<gate::worker> expected;
  for (std::size_t i = 0; i < options.slots.size(); ++i) {
    gate::worker w;
    w.terms.node = static_cast<std::uint32_t>(i + 1);
    w.terms.plan = options.plan;
    w.terms.slice_us = static_cast<std::uint64_t>(options.slice.count());
    for (const auto& slot : options.slots[i])
      w.terms.slots.push_back(order_of(slot));
    expected.push_back(std::move(w));
  }
  gatekeeper_events events;
  events.changed = [this](std::uint32_t n, worker_state now, const std::string& note) {
    if (now == worker_state::lost && stopping)
      return; // connections go as they were told to; how its process ends says what became of the worker
    on_change(n, now, note);
  };
  events.log = [this](const std::string& line) { log("gatekeeper: " + line); };
  events.stopping = [this] { return stopping.load(); };
  gatekeeper = spawn_gatekeeper(*system, gate{secret, std::move(expected)}, std::move(events));
  const auto published = system->middleman().publish(gatekeeper, 0, options.address.c_str());
  if (!published)
    return core::error{core::errc::io, "cannot listen for workers on " + options.address + ": "
                                         + actors::error_text(published.error())};
  port = *published;
  return {};
}

core::result<void> cluster_head::impl::start_children() {
  std::vector<child_processes::spec> specs;
  for (const auto& w : workers) {
    const nlohmann::json handed_over{{"head", options.address},
                                     {"port", port},
                                     {"token", secret.to_hex()},
                                     {"worker", w.node},
                                     {"head_process", ::getpid()},
                                     {"heartbeat_ms", options.heartbeat_interval.count()}};
    specs.push_back({options.command, handed_over.dump() + "\n"});
  }
  // Also one that died before it was told to leave, whoever hears first that the run is over because of that.
  auto started = child_processes::start(std::move(specs), [this](std::size_t i, const std::string& how, bool told) {
    on_change(static_cast<std::uint32_t>(i + 1), told ? worker_state::left : worker_state::lost,
              told ? std::string{} : "its process " + how);
  }, {options.heartbeat_interval, options.connection_timeout, [this](std::size_t i) {
    on_change(static_cast<std::uint32_t>(i + 1), worker_state::lost,
              "its process was silent for more than " + std::to_string(options.connection_timeout.count()) + " ms");
  }});
  if (!started)
    return started.error();
  std::lock_guard lock{mutex};
  children = std::move(*started);
  for (std::size_t i = 0; i < workers.size(); ++i) {
    workers[i].process_id = children->pid(i);
    if (workers[i].state == worker_state::present)
      children->watch(i);
    actors::anon_mail(expect_process{workers[i].node, static_cast<std::uint64_t>(children->pid(i))}).send(gatekeeper);
  }
  return {};
}

core::result<void> cluster_head::impl::wait_until_present() {
  const auto deadline = std::chrono::steady_clock::now() + options.join_timeout;
  std::unique_lock lock{mutex};
  for (;;) {
    const worker_info* missing = nullptr;
    for (const auto& w : workers) {
      if (w.state == worker_state::lost || w.state == worker_state::left)
        return core::error{core::errc::failed, "worker " + std::to_string(w.node) + " (process "
                                                 + std::to_string(w.process_id) + ") did not join: "
                                                 + (w.note.empty() ? "it ended" : w.note)};
      if (w.state != worker_state::present)
        missing = &w;
    }
    if (!missing)
      return {};
    if (changed.wait_until(lock, deadline) == std::cv_status::timeout)
      return core::error{core::errc::timeout, "worker " + std::to_string(missing->node) + " (process "
                                                + std::to_string(missing->process_id) + ") did not join within "
                                                + std::to_string(options.join_timeout.count()) + " ms: it is "
                                                + std::string{to_string(missing->state)}};
  }
}

cluster_head::cluster_head(std::unique_ptr<impl> x) : impl_(std::move(x)) {}

core::result<std::unique_ptr<cluster_head>> cluster_head::start(cluster_options options) {
  const auto invalid = [](std::string text) { return core::error{core::errc::invalid_argument, std::move(text)}; };
  if (options.command.empty())
    return invalid("a cluster needs the command of its worker processes");
  if (options.slots.empty())
    return invalid("a cluster needs at least one worker");
  for (std::size_t i = 0; i < options.slots.size(); ++i)
    if (options.slots[i].empty())
      return invalid("worker " + std::to_string(i + 1) + " has no slot: ask for at least as many slots as workers");
  if (const auto fits = actors::fits_control_plane(options.plan.size() + 1024, "the choice of matrix libraries"); !fits)
    return fits.error();
  auto x = std::make_unique<impl>();
  x->options = std::move(options);
  for (std::size_t i = 0; i < x->options.slots.size(); ++i)
    x->workers.push_back({static_cast<std::uint32_t>(i + 1), 0, worker_state::starting, {}});
  std::unique_ptr<cluster_head> head{new cluster_head{std::move(x)}}; // from here on, leaving early stops what was started
  if (const auto ok = head->impl_->open(); !ok)
    return ok.error();
  if (const auto ok = head->impl_->start_children(); !ok)
    return ok.error();
  if (const auto ok = head->impl_->wait_until_present(); !ok)
    return ok.error();
  return head;
}

cluster_head::~cluster_head() {
  stop();
}

void cluster_head::prepare(actors::run_options& into) {
  into.system = impl_->system.get();
  into.other_nodes = static_cast<unsigned>(impl_->options.slots.size());
  into.blobs = impl_->blobs;
  into.host = impl_->server->address();
  into.port = impl_->server->port();
  into.fetch = [fetch = fetch_states(impl_->client)](const actors::remote_state& x, auto done) {
    fetch({x.blob, 0, x.bytes, x.hash, x.host, x.port}, std::move(done));
  };
}

void cluster_head::attach(const actors::run_session& run) {
  actors::anon_mail(watch_nodes{actors::run_access::nodes(run)}).send(impl_->gatekeeper);
}

std::vector<worker_info> cluster_head::workers() const {
  std::lock_guard lock{impl_->mutex};
  return impl_->workers;
}

void cluster_head::suspend() {
  impl_->children->suspend();
}

void cluster_head::resume() {
  impl_->children->resume();
}

cluster_head::traffic cluster_head::snapshot() const {
  const auto out = impl_->server->snapshot();
  const auto in = impl_->client->snapshot();
  return {out.blobs_sent, out.bytes_sent, in.blobs_received, in.bytes_received};
}

std::uint16_t cluster_head::port() const noexcept {
  return impl_->port;
}

void cluster_head::stop() {
  auto& x = *impl_;
  if (x.stopping.exchange(true))
    return;
  if (x.children)
    x.children->stop(x.options.leave_timeout);
  if (x.client)
    x.client->stop();
  if (x.gatekeeper) {
    x.system->middleman().unpublish(x.gatekeeper);
    caf::anon_send_exit(x.gatekeeper, caf::exit_reason::user_shutdown);
    x.gatekeeper = nullptr;
  }
  x.system.reset();
  if (x.server)
    x.server->stop();
}

} // namespace troupe::net
