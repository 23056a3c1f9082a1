#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <csignal>
#include <exception>
#include <optional>
#include <set>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "cluster_messages.hpp"
#include "fetch_states.hpp"
#include "gate.hpp"
#include "head_signals.hpp"
#include "proof.hpp"
#include "slot_orders.hpp"
#include "troupe/actors/blob_store.hpp"
#include "troupe/actors/caf_io.hpp"
#include "troupe/actors/node_agent.hpp"
#include "troupe/gpu/device.hpp"
#include "troupe/gpu/gemm_plan.hpp"
#include "troupe/gpu/slot_worker.hpp"
#include "troupe/net/cluster.hpp"
#include "troupe/net/tensor_transport.hpp"
#include "unique_fd.hpp"

namespace troupe::net {

using namespace actors;

namespace {

/// What the head writes into a worker's standard input.
struct handed_over {
  std::string head;
  std::uint16_t port = 0;
  token secret;
  std::uint32_t worker = 0;
  std::int64_t head_process = 0;
  std::chrono::milliseconds heartbeat{1000};
};

core::error io_error(std::string text) {
  return {core::errc::io, std::move(text)};
}

core::result<std::string> read_line(int fd, std::chrono::milliseconds timeout) {
  std::string line;
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (line.size() < 4096) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    pollfd p{fd, POLLIN, 0};
    if (left <= 0 || ::poll(&p, 1, static_cast<int>(left)) == 0)
      return io_error("nothing came on its standard input");
    char c;
    const auto n = ::read(fd, &c, 1);
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0)
      return io_error("its standard input ended early");
    if (c == '\n')
      return line;
    line += c;
  }
  return io_error("the line on its standard input is too long");
}

core::result<handed_over> read_handed_over(int fd, std::chrono::milliseconds timeout) {
  const auto line = read_line(fd, timeout);
  if (!line)
    return core::error{core::errc::io, line.error().text + " (a worker is started by `troupe run --workers`, not by hand)"};
  handed_over x;
  try {
    const auto j = nlohmann::json::parse(*line);
    x.head = j.at("head").get<std::string>();
    x.port = j.at("port").get<std::uint16_t>();
    x.worker = j.at("worker").get<std::uint32_t>();
    x.head_process = j.at("head_process").get<std::int64_t>();
    x.heartbeat = std::chrono::milliseconds{j.at("heartbeat_ms").get<std::int64_t>()};
    const auto secret = token::from_hex(j.at("token").get<std::string>());
    if (!secret)
      return secret.error();
    x.secret = *secret;
  } catch (const nlohmann::json::exception&) { // its text could repeat the line, which holds a secret
    return io_error("the line on its standard input is not what a head writes");
  }
  return x;
}

/// Says that the process should end; may be signalled from any thread.
class bell {
public:
  bell() : fd_(::eventfd(0, EFD_CLOEXEC)) {}
  void ring() const {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto n = ::write(fd_.get(), &one, sizeof one);
  }
  int fd() const { return fd_.get(); }

private:
  unique_fd fd_;
};

struct link_state {
  static constexpr const char* name = "head_link";
  monitor_set monitors;
};

/// Between this process's agent and the gatekeeper: passes on what the agent reports, and rings when either is gone. An agent that
/// the run has let go is no reason to leave: the head closes our input when it is done.
caf::behavior head_link(caf::stateful_actor<link_state>* self, caf::actor gatekeeper, std::uint64_t session,
                        std::shared_ptr<bell> over) {
  state(self).monitors.watch(self, gatekeeper, [over](const caf::error&) { over->ring(); });
  return {
    [self, gatekeeper, session, over](const node_up& x) {
      state(self).monitors.watch(self, x.agent, [over](const caf::error& why) {
        if (why != caf::exit_reason::user_shutdown)
          over->ring();
      });
      mail(self, presentation{session, x}).send(gatekeeper);
    },
    [self, gatekeeper, session](const slot_lost& x) { mail(self, slot_report{session, x}).send(gatekeeper); },
    on_error_msg(self, [](caf::error&) {}),
    otherwise(self, [](const std::string&) {}),
  };
}

/// One worker process while it is a member of a run.
class member {
public:
  member(const worker_options& options, handed_over x) : options_(options), given_(std::move(x)) {}
  ~member() { close(); }

  core::result<void> join();
  core::result<void> open();
  /// Until the head closes our input, or is gone; gives signs of life. A head that is silent may be stopped for a while (Ctrl-Z):
  /// its end closes the input.
  void stay();

private:
  core::result<caf::actor> dial(caf::scoped_actor& self);
  core::result<void> introduce(caf::scoped_actor& self);
  core::result<std::vector<std::shared_ptr<gpu::slot_worker>>> open_slots();
  void close();

  worker_options options_;
  handed_over given_;
  cluster_config config_;
  std::shared_ptr<bell> over_ = std::make_shared<bell>();
  std::vector<std::shared_ptr<gpu::slot_worker>> slots_; // outlive the system
  std::shared_ptr<blob_store> blobs_ = std::make_shared<blob_store>();
  std::unique_ptr<tensor_server> server_;
  std::shared_ptr<tensor_client> client_;
  std::unique_ptr<caf::actor_system> system_;
  caf::actor gatekeeper_;
  caf::actor link_;
  node_agent_actor agent_;
  std::uint64_t session_ = 0;
  admission terms_;
};

/// A request's answer, or its error as ours.
template <class T, class Handle, class Message>
core::result<T> ask(caf::scoped_actor& self, const Handle& whom, Message what, std::chrono::milliseconds timeout,
                    const std::string& doing) {
  core::result<T> x = core::error{core::errc::internal, doing + ": no answer"};
  mail(self, std::move(what)).request(whom, timeout).receive([&](const T& y) { x = y; },
                                                             [&](const caf::error& e) {
                                                               x = core::error{core::errc::refused, doing + ": " + error_text(e)};
                                                             });
  return x;
}

core::result<caf::actor> member::dial(caf::scoped_actor& self) {
  core::result<caf::actor> x = io_error("no answer");
  const auto where = given_.head + ":" + std::to_string(given_.port);
  // Not remote_actor: that has no time limit, and a frozen head would hold this process for ever.
  mail(self, caf::connect_atom_v, given_.head, given_.port)
    .request(system_->middleman().actor_handle(), options_.join_timeout)
    .receive(
      [&](const caf::node_id&, const caf::strong_actor_ptr& whom, const std::set<std::string>&) {
        if (whom)
          x = caf::actor_cast<caf::actor>(whom);
        else
          x = io_error("whoever listens at " + where + " is no head");
      },
      [&](const caf::error& e) {
        x = io_error("cannot reach the head at " + where + ": " + error_text(e) + " (the same CAF version on both sides?)");
      });
  return x;
}

core::result<void> member::join() {
  enable_network(config_, no_heartbeats);
  system_ = std::make_unique<caf::actor_system>(config_);
  caf::scoped_actor self{*system_};
  const auto whom = dial(self);
  if (!whom)
    return whom.error();
  gatekeeper_ = *whom;
  return introduce(self);
}

core::result<void> member::introduce(caf::scoped_actor& self) {
  const auto versions = build_versions::current();
  const auto nonce = token::random().to_hex();
  const auto heard = ask<challenge>(self, gatekeeper_,
                                    knock{versions.format, versions.caf, versions.troupe, given_.worker,
                                          static_cast<std::uint64_t>(::getpid()), nonce},
                                    options_.join_timeout, "the head refuses");
  if (!heard)
    return heard.error();
  const auto proof = token::from_hex(heard->proof);
  if (!proof || !proof_of(given_.secret, "head", given_.worker, heard->nonce, nonce).matches(*proof))
    return core::error{core::errc::refused, "the head does not know this run's token: it is another's"};
  session_ = heard->session;
  const auto in = ask<admission>(
    self, gatekeeper_,
    answer{session_, proof_of(given_.secret, "worker", given_.worker, heard->nonce, nonce).to_hex()},
    options_.join_timeout, "the head refuses");
  if (!in)
    return in.error();
  terms_ = *in;
  return {};
}

core::result<std::vector<std::shared_ptr<gpu::slot_worker>>> member::open_slots() {
  const auto found = gpu::find_devices();
  auto plan = std::make_shared<gpu::gemm_plan>(gpu::gemm_plan::mode::frozen);
  if (!terms_.plan.empty())
    if (const auto merged = plan->merge_json(terms_.plan, "the head's choice of matrix libraries"); !merged)
      return merged.error();
  std::vector<std::shared_ptr<gpu::slot_worker>> slots;
  for (const auto& order : terms_.slots) {
    const auto device = gpu::find_device(found, order.device);
    if (!device)
      return device.error();
    auto s = options_of(order);
    s.device = *device;
    s.index = static_cast<unsigned>(slots.size());
    s.plan = plan;
    gpu::slot_worker::settings settings;
    settings.slice = std::chrono::microseconds{terms_.slice_us};
    slots.push_back(std::make_shared<gpu::slot_worker>(std::move(s), settings));
  }
  return slots;
}

core::result<void> member::open() {
  const auto withdraw = [this](core::error why) {
    caf::scoped_actor self{*system_};
    // Waits until it is there: the head should know this before it sees the process end.
    mail(self, withdrawal{session_, why.text}).request(gatekeeper_, options_.join_timeout).receive([] {}, [](const caf::error&) {});
    return why;
  };
  try {
    auto slots = open_slots();
    if (!slots)
      return withdraw(slots.error());
    slots_ = std::move(*slots);
  } catch (const std::exception& e) {
    return withdraw({core::errc::device, std::string{"cannot open its slots: "} + e.what()});
  }
  tensor_server_settings s;
  s.address = given_.head; // loopback, like the head's
  s.secret = tensor_token(given_.secret);
  auto up = tensor_server::start(s, [b = blobs_](std::uint64_t id) { return b->get(id); });
  if (!up)
    return withdraw(up.error());
  server_ = std::move(*up);
  blobs_->set_node(terms_.node);
  blobs_->set_address(server_->address(), server_->port());
  tensor_client_settings c;
  c.secret = s.secret;
  client_ = std::make_shared<tensor_client>(c);

  link_ = system_->spawn(head_link, gatekeeper_, session_, over_);
  node_setup setup;
  setup.node = terms_.node;
  setup.slots = slots_;
  setup.workloads = options_.workloads;
  setup.blobs = blobs_;
  setup.fetch = fetch_states(client_);
  setup.host = server_->address();
  setup.port = server_->port();
  setup.observer = caf::actor_cast<node_observer>(link_);
  agent_ = spawn_node_agent(*system_, std::move(setup));
  return {};
}

void member::stay() {
  for (;;) {
    // A head that does not read has enough of them.
    [[maybe_unused]] const auto sent = ::send(options_.input, ".", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    pollfd fds[2] = {{options_.input, POLLIN, 0}, {over_->fd(), POLLIN, 0}};
    if (::poll(fds, 2, static_cast<int>(given_.heartbeat.count())) <= 0)
      continue;
    if (fds[1].revents != 0)
      return;
    if (fds[0].revents != 0) {
      char ignored[256];
      if (::read(options_.input, ignored, sizeof ignored) <= 0)
        return; // the head closed it, or is gone
    }
  }
}

void member::close() {
  if (client_)
    client_->stop();
  if (agent_)
    caf::anon_send_exit(agent_, caf::exit_reason::user_shutdown);
  if (link_)
    caf::anon_send_exit(link_, caf::exit_reason::user_shutdown);
  agent_ = nullptr;
  link_ = nullptr;
  gatekeeper_ = nullptr;
  system_.reset();
  if (server_)
    server_->stop();
}

/// Since they came blocked, none was lost and none has done anything until now.
void leave_signals_to_head() {
  const auto set = head_signals();
  for (int s = 1; s < NSIG; ++s)
    if (::sigismember(&set, s) == 1)
      ::signal(s, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN); // standard error may end in a pipe that nobody reads
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

} // namespace

int run_worker(const worker_options& options) {
  leave_signals_to_head();
  const auto given = read_handed_over(options.input, options.join_timeout);
  const auto complain = [&](const std::string& text) {
    std::fprintf(stderr, "troupe worker%s: %s\n", given ? (" " + std::to_string(given->worker)).c_str() : "", text.c_str());
    return 1;
  };
  if (!given)
    return complain(given.error().text);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != given->head_process)
    return complain("the head that started it is gone");
  try {
    member m{options, *given};
    if (const auto in = m.join(); !in)
      return complain(in.error().text);
    if (const auto open = m.open(); !open)
      return complain(open.error().text);
    m.stay();
  } catch (const std::exception& e) {
    return complain(e.what());
  }
  return 0;
}

} // namespace troupe::net
