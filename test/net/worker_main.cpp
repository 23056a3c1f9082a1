// A worker process of the cluster tests, and its evil twins: test_net_worker worker | signalled | wrong-token | wrong-version |
// wrong-number | exit-message | chatter | silent | head PROGRAM | run PROGRAM EXPERIMENT.

#include <csignal>
#include <cstdio>
#include <iostream>
#include <string>
#include <string_view>
#include <thread>

#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "cluster_messages.hpp"
#include "gate.hpp"
#include "tiny_workload.hpp"
#include "troupe/actors/caf_io.hpp"
#include "troupe/actors/prepare.hpp"
#include "troupe/gpu/device.hpp"
#include "troupe/net/cluster.hpp"

using namespace troupe;

namespace {

int worker(int input = 0) {
  net::worker_options o;
  o.workloads = tiny_workloads();
  o.input = input;
  return net::run_worker(o);
}

nlohmann::json read_input() {
  std::string line;
  for (char c; ::read(0, &c, 1) == 1 && c != '\n';)
    line += c;
  return nlohmann::json::parse(line);
}

/// Brings on what comes; its end too.
void relay(int from, int to) {
  std::thread([from, to] {
    char block[256];
    for (ssize_t n; (n = ::read(from, block, sizeof block)) > 0;)
      if (::send(to, block, static_cast<std::size_t>(n), MSG_NOSIGNAL) != n)
        break;
    ::shutdown(to, SHUT_WR);
  }).detach();
}

int join_as(const nlohmann::json& given) {
  const auto line = given.dump() + "\n";
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0
      || ::send(ends[1], line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size()))
    return 9;
  relay(0, ends[1]);
  relay(ends[1], 0);
  return worker(ends[0]);
}

/// Joins with something else than what it was given.
int changed(std::string_view key, const nlohmann::json& value) {
  auto j = read_input();
  j[std::string{key}] = value;
  return join_as(j);
}

/// Knocks as another version would, and prints the answer.
int other_version() {
  const auto j = read_input();
  net::cluster_config config;
  actors::enable_network(config);
  caf::actor_system system{config};
  auto head = system.middleman().remote_actor(j["head"].get<std::string>(), j["port"].get<std::uint16_t>());
  if (!head)
    return 8;
  caf::scoped_actor self{system};
  int status = 7;
  actors::mail(self, net::knock{999, 0, "9.9.9", 1, static_cast<std::uint64_t>(::getpid()), "n"})
    .request(*head, std::chrono::seconds{10})
    .receive([](const net::challenge&) {},
             [&](const caf::error& e) { status = actors::error_text(e).find("999") != std::string::npos ? 42 : 6; });
  return status;
}

/// Reaches the gatekeeper as anyone can, does there what `first` says, which gives 0 if it went well, and joins.
template <class First>
int join_after(First first) {
  const auto j = read_input();
  {
    net::cluster_config config;
    actors::enable_network(config, net::no_heartbeats); // as the head, which would seem dead to others
    caf::actor_system system{config};
    auto head = system.middleman().remote_actor(j["head"].get<std::string>(), j["port"].get<std::uint16_t>());
    if (!head)
      return 8;
    caf::scoped_actor self{system};
    if (const int status = first(self, *head); status != 0)
      return status;
  }
  return join_as(j);
}

net::knock wrong_knock() { return {999, 0, "9.9.9", 1, static_cast<std::uint64_t>(::getpid()), "n"}; }

/// Tells the gatekeeper to exit, and joins.
int exit_message() {
  return join_after([](caf::scoped_actor& self, const caf::actor& head) {
    self->send_exit(head, caf::exit_reason::user_shutdown);
    // What comes after them was heard: they did nothing, or there is no answer.
    int status = 7;
    actors::mail(self, wrong_knock())
      .request(head, std::chrono::seconds{10})
      .receive([](const net::challenge&) {},
               [&](const caf::error& e) { status = actors::error_text(e).find("999") != std::string::npos ? 0 : 6; });
    return status;
  });
}

/// Says to the gatekeeper what it does not know, very often, and joins.
int chatter() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL); // it waits longer than whoever started it may live
  return join_after([](caf::scoped_actor& self, const caf::actor& head) {
    for (int i = 0; i < 20'000; ++i)
      actors::mail(self, std::string{"hello"}).send(head);
    // Whoever is refused again and again is no better.
    int status = 7;
    for (int i = 0; i < 50; ++i)
      actors::mail(self, wrong_knock())
        .request(head, std::chrono::minutes{5})
        .receive([](const net::challenge&) {}, [&](const caf::error&) { status = 0; });
    return status;
  });
}

/// A head of its own, which prints its workers' numbers and then waits for a signal.
int head(const char* program) {
  net::cluster_options c;
  c.command = {program, "worker"};
  gpu::slot_options slot;
  slot.device = gpu::find_devices().devices.front();
  c.slots = net::deal_slots({slot, slot}, 2);
  auto h = net::cluster_head::start(std::move(c));
  if (!h) {
    std::cerr << h.error().text << std::endl;
    return 1;
  }
  for (const auto& w : (*h)->workers())
    std::cout << w.process_id << std::endl;
  ::pause();
  return 0;
}

/// A head of its own with two workers and a whole run, which stops itself at sync point 1 and prints at its end the trainers'
/// weights and lives.
int run(const char* program, const char* experiment) {
  struct listener : actors::run_listener {
    void on_sync_point(const actors::sync_point_event& x) override {
      if (x.index == 1)
        ::raise(SIGSTOP);
    }
  };
  actors::program mine;
  mine.workloads = *tiny_workloads();
  mine.slots.assign(2, {});
  auto o = actors::prepare_run(experiment, mine);
  if (!o)
    return 3;
  for (auto& s : o->slots)
    s.plan = nullptr;
  net::cluster_options c;
  c.command = {program, "worker"};
  c.slots = net::deal_slots(o->slots, 2);
  c.heartbeat_interval = std::chrono::milliseconds{10};
  c.connection_timeout = std::chrono::milliseconds{2000};
  auto head = net::cluster_head::start(std::move(c));
  if (!head)
    return 4;
  o->slots.clear();
  o->listener = std::make_shared<listener>();
  (*head)->prepare(*o);
  auto run = actors::run_session::start(std::move(*o));
  if (!run)
    return 5;
  (*head)->attach(**run);
  for (const auto& t : (*run)->wait().trainers)
    std::cout << t.name << " " << t.final_hash << " " << t.incarnation << std::endl;
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "";
  if (mode == "worker")
    return worker();
  if (mode == "signalled") {
    for (const int s : {SIGTERM, SIGINT, SIGHUP, SIGTSTP})
      ::raise(s); // before it has said what to do with them
    return worker();
  }
  if (mode == "chatter")
    return chatter();
  if (mode == "run" && argc > 3)
    return run(argv[2], argv[3]);
  if (mode == "wrong-token")
    return changed("token", std::string(64, 'a'));
  if (mode == "wrong-number")
    return changed("worker", 7);
  if (mode == "wrong-version")
    return other_version();
  if (mode == "exit-message")
    return exit_message();
  if (mode == "silent") {
    while (::read(0, argv[0], 1) > 0)
      ;
    return 0;
  }
  if (mode == "head" && argc > 2)
    return head(argv[2]);
  std::fprintf(stderr, "unknown mode\n");
  return 2;
}
