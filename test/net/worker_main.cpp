// A worker process of the cluster tests, and its evil twins: test_net_worker worker | wrong-token | wrong-version | wrong-number |
// exit-message | silent | head PROGRAM.

#include <cstdio>
#include <iostream>
#include <string>
#include <string_view>
#include <thread>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "cluster_messages.hpp"
#include "gate.hpp"
#include "tiny_workload.hpp"
#include "troupe/actors/caf_io.hpp"
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

int join_as(const nlohmann::json& given) {
  const auto line = given.dump() + "\n";
  int ends[2];
  if (::pipe(ends) != 0 || ::write(ends[1], line.data(), line.size()) != static_cast<ssize_t>(line.size()))
    return 9;
  // What the head's closing of the input says, the worker must hear.
  std::thread([end = ends[1]] {
    for (char c; ::read(0, &c, 1) > 0;)
      ;
    ::close(end);
  }).detach();
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

/// Tells the gatekeeper to exit, as anyone who reaches its port can, and joins.
int exit_message() {
  const auto j = read_input();
  {
    net::cluster_config config;
    actors::enable_network(config);
    caf::actor_system system{config};
    auto head = system.middleman().remote_actor(j["head"].get<std::string>(), j["port"].get<std::uint16_t>());
    if (!head)
      return 8;
    caf::scoped_actor self{system};
    self->send_exit(*head, caf::exit_reason::user_shutdown);
    // What comes after them was heard: they did nothing, or there is no answer.
    int status = 7;
    actors::mail(self, net::knock{999, 0, "9.9.9", 1, static_cast<std::uint64_t>(::getpid()), "n"})
      .request(*head, std::chrono::seconds{10})
      .receive([](const net::challenge&) {},
               [&](const caf::error& e) { status = actors::error_text(e).find("999") != std::string::npos ? 0 : 6; });
    if (status != 0)
      return status;
  }
  return join_as(j);
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

} // namespace

int main(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "";
  if (mode == "worker")
    return worker();
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
