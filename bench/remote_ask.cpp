/// What an ask costs between two processes over loopback: CAF as it comes (a ping-pong and a request), the same request through
/// Troupe's configuration and mail, and the request that Troupe really makes, the status of a trainer on a worker's slot. A bare
/// TCP socket beside them is the floor. All take turns in one run. Prints a table, or with --json one object a line.

#include <utility>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <csignal>
#include <sys/prctl.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <nlohmann/json.hpp>

#include "troupe/actors/caf_io.hpp"
#include "troupe/actors/node_agent.hpp"
#include "troupe/gpu/device.hpp"
#include "troupe/gpu/slot_worker.hpp"
#include "troupe/gpu/workload.hpp"

namespace {

using namespace troupe;
using namespace std::chrono_literals;
using clock_type = std::chrono::steady_clock;
using boost::asio::ip::tcp;
namespace asio = boost::asio;

constexpr auto loopback = "127.0.0.1";
constexpr auto patience = 30s;

[[noreturn]] void give_up(const std::string& why) {
  std::cerr << "bench_remote_ask: " << why << std::endl;
  std::_Exit(1);
}

double quantile(std::vector<double> xs, double q) {
  std::sort(xs.begin(), xs.end());
  return xs[std::min(xs.size() - 1, static_cast<std::size_t>(q * static_cast<double>(xs.size())))];
}

/// CAF without anything of ours.
struct plain_config : caf::actor_system_config {
  plain_config() { load<caf::io::middleman>(); }
};

/// As head and workers start theirs.
struct troupe_config : actors::system_config {
  troupe_config() { actors::enable_network(*this); }
};

/// Ping-pong, or the same as a request.
caf::behavior plain_echo() {
  return {[](std::uint64_t x) { return x; }};
}

using echo_actor = actors::typed_actor<actors::result<std::uint64_t>(std::uint64_t)>;
echo_actor::behavior_type troupe_echo() {
  return {[](std::uint64_t x) -> actors::result<std::uint64_t> { return x; }};
}

// -- the worker process ----------------------------------------------------------------------------------------------

struct ports {
  std::uint16_t tcp = 0, plain = 0, echo = 0, agent = 0;
};

std::uint16_t publish(caf::actor_system& sys, const caf::actor& whom) {
  const auto port = sys.middleman().publish(whom, 0, loopback);
  if (!port)
    give_up("cannot listen on " + std::string{loopback} + ": " + to_string(port.error()));
  return *port;
}

/// Answers until `input` ends.
[[noreturn]] void serve(int input, int output) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  asio::io_context io;
  tcp::acceptor acceptor{io, tcp::endpoint{asio::ip::address_v4::loopback(), 0}};
  ports p;
  p.tcp = acceptor.local_endpoint().port();
  std::thread{[&acceptor] {
    auto s = acceptor.accept();
    s.set_option(tcp::no_delay(true));
    boost::system::error_code ec;
    for (std::uint64_t x; asio::read(s, asio::buffer(&x, sizeof x), ec) == sizeof x;)
      asio::write(s, asio::buffer(&x, sizeof x), ec);
  }}.detach();

  troupe_config ours;
  plain_config plain;
  gpu::slot_options slot;
  slot.device = gpu::find_devices().devices.front();
  actors::node_setup setup;
  setup.node = 1;
  setup.slots.push_back(std::make_shared<gpu::slot_worker>(slot));
  setup.workloads = std::make_shared<gpu::workload_registry>(gpu::builtin_workloads());
  caf::actor_system plain_system{plain}, system{ours};
  p.plain = publish(plain_system, plain_system.spawn(plain_echo));
  p.echo = publish(system, caf::actor_cast<caf::actor>(system.spawn(troupe_echo)));
  p.agent = publish(system, caf::actor_cast<caf::actor>(actors::spawn_node_agent(system, setup)));
  if (::write(output, &p, sizeof p) != sizeof p)
    give_up("the worker process cannot write its ports");
  for (char c; ::read(input, &c, 1) > 0;) {
  }
  std::_Exit(0); // nothing to save
}

/// Starts the other process, before this one has any thread.
class worker_process {
public:
  worker_process() {
    int in[2], out[2];
    if (::pipe(in) != 0 || ::pipe(out) != 0)
      give_up("no pipe");
    const auto pid = ::fork();
    if (pid < 0)
      give_up("no process");
    if (pid == 0) {
      ::close(in[1]);
      ::close(out[0]);
      serve(in[0], out[1]);
    }
    ::close(in[0]);
    ::close(out[1]);
    if (::read(out[0], &where_, sizeof where_) != sizeof where_)
      give_up("the worker process did not start");
  }
  const ports& where() const noexcept { return where_; }

private:
  ports where_;
};

// -- asking ----------------------------------------------------------------------------------------------------------

/// Asks once, and calls `answered`.
using ask_once = std::function<void(caf::event_based_actor*, std::function<void()> answered)>;

/// Asks so many times, each time after the answer to the one before.
struct asking {
  std::size_t count;
  ask_once ask;
  clock_type::time_point asked{};
  std::vector<double> us{};
  std::promise<std::vector<double>> done{};

  void next(caf::event_based_actor* self, const std::shared_ptr<asking>& me) {
    asked = clock_type::now();
    ask(self, [self, me] { me->answered(self, me); });
  }
  void answered(caf::event_based_actor* self, const std::shared_ptr<asking>& me) {
    us.push_back(std::chrono::duration<double, std::micro>(clock_type::now() - asked).count());
    if (us.size() < count)
      return next(self, me);
    done.set_value(std::move(us));
    self->quit();
  }
};

caf::behavior asker(caf::event_based_actor* self, std::shared_ptr<asking> a) {
  a->next(self, a);
  return {[self, a](std::uint64_t) { a->answered(self, a); }}; // of a ping-pong, which is no request
}

std::vector<double> ask(caf::actor_system& sys, std::size_t count, const ask_once& once) {
  auto a = std::make_shared<asking>(asking{count, once});
  auto answers = a->done.get_future();
  const auto hdl = sys.spawn(asker, a);
  if (answers.wait_for(patience) != std::future_status::ready)
    give_up("no answer");
  return answers.get();
}

void ping(caf::event_based_actor* self, const caf::actor& whom) {
#if TROUPE_CAF_MODERN
  self->mail(std::uint64_t{7}).send(whom);
#else
  self->send(whom, std::uint64_t{7});
#endif
}

void plain_request(caf::event_based_actor* self, const caf::actor& whom, const std::function<void()>& answered) {
#if TROUPE_CAF_MODERN
  self->mail(std::uint64_t{7}).request(whom, caf::infinite).then([answered](std::uint64_t) { answered(); });
#else
  self->request(whom, caf::infinite, std::uint64_t{7}).then([answered](std::uint64_t) { answered(); });
#endif
}

caf::actor dial(caf::actor_system& sys, std::uint16_t port) {
  auto x = sys.middleman().remote_actor(loopback, port);
  if (!x)
    give_up("cannot reach the worker process: " + to_string(x.error()));
  return *x;
}

/// Has the agent build a trainer, and gives it to whoever waits.
caf::behavior host(caf::event_based_actor* self, actors::node_agent_actor agent,
                   std::shared_ptr<std::promise<actors::trainer_actor>> up) {
  actors::host_trainer order;
  order.who = {1, 0, 0};
  order.name = "asked";
  order.workload_type = "idle";
  order.workload_options = R"({"step_us":0})";
  order.stop_step = 1'000'000;
  order.observer = caf::actor_cast<actors::trainer_observer>(caf::actor_cast<caf::actor>(self->address()));
  actors::mail(self, std::move(order)).send(agent);
  return {
      [up](const actors::trainer_up& x) { up->set_value(x.who); },
      [](const actors::trainer_failed& x) { give_up("no trainer: " + x.failure.text); },
  };
}

struct variant {
  const char* name;
  const char* key;
  std::function<std::vector<double>(std::size_t)> run;
  std::vector<double> all{}, medians{}, ratios{};
};

} // namespace

int main(int argc, char** argv) {
  bool quick = false, json = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) {
      json = true;
    } else if (std::strcmp(argv[i], "--quick") == 0) {
      quick = true;
    } else {
      std::cerr << "usage: bench_remote_ask [--json] [--quick]\n";
      return 2;
    }
  }
  const worker_process worker;
  const auto& where = worker.where();
  troupe_config ours;
  plain_config plain;
  caf::actor_system plain_system{plain}, system{ours};
  const auto pong = dial(plain_system, where.plain);
  const auto echo = caf::actor_cast<echo_actor>(dial(system, where.echo));
  const auto agent = caf::actor_cast<actors::node_agent_actor>(dial(system, where.agent));
  auto up = std::make_shared<std::promise<actors::trainer_actor>>();
  auto coming = up->get_future();
  const auto hosting = system.spawn(host, agent, up);
  if (coming.wait_for(patience) != std::future_status::ready)
    give_up("no trainer came up");
  const auto trainer = coming.get();

  asio::io_context io;
  tcp::socket socket{io};
  socket.connect({asio::ip::address_v4::loopback(), where.tcp});
  socket.set_option(tcp::no_delay(true));

  std::vector<variant> all;
  all.push_back({"bare TCP, 8 bytes", "tcp", [&](std::size_t n) {
                   std::vector<double> us;
                   for (std::uint64_t x = 0; us.size() < n; ++x) {
                     const auto asked = clock_type::now();
                     asio::write(socket, asio::buffer(&x, sizeof x));
                     asio::read(socket, asio::buffer(&x, sizeof x));
                     us.push_back(std::chrono::duration<double, std::micro>(clock_type::now() - asked).count());
                   }
                   return us;
                 }});
  all.push_back({"CAF as it comes, ping-pong", "caf_ping_pong", [&](std::size_t n) {
                   return ask(plain_system, n, [&](caf::event_based_actor* self, auto) { ping(self, pong); });
                 }});
  all.push_back({"CAF as it comes, request", "caf_request", [&](std::size_t n) {
                   return ask(plain_system, n, [&](caf::event_based_actor* self, auto answered) {
                     plain_request(self, pong, answered);
                   });
                 }});
  all.push_back({"Troupe, the same request", "troupe_request", [&](std::size_t n) {
                   return ask(system, n, [&](caf::event_based_actor* self, auto answered) {
                     actors::mail(self, std::uint64_t{7})
                         .request(echo, patience)
                         .then([answered](std::uint64_t) { answered(); },
                               [](caf::error& e) { give_up(actors::error_text(e)); });
                   });
                 }});
  all.push_back({"Troupe, status of a trainer", "troupe_status", [&](std::size_t n) {
                   return ask(system, n, [&](caf::event_based_actor* self, auto answered) {
                     actors::mail(self, actors::query_status{{1, 0, 0}})
                         .request(trainer, patience)
                         .then([answered](const actors::trainer_status&) { answered(); },
                               [](caf::error& e) { give_up(actors::error_text(e)); });
                   });
                 }});
  constexpr std::size_t base = 1;

  const int rounds = quick ? 3 : 15;
  const std::size_t asks = quick ? 100 : 300;
  for (int r = -1; r < rounds; ++r) { // one to warm up
    std::vector<double> medians(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto k = (i + static_cast<std::size_t>(r + 1)) % all.size(); // nobody always comes after the same one
      const auto us = all[k].run(asks);
      medians[k] = quantile(us, 0.5);
      if (r >= 0)
        all[k].all.insert(all[k].all.end(), us.begin(), us.end());
    }
    if (r >= 0)
      for (std::size_t i = 0; i < all.size(); ++i) {
        all[i].medians.push_back(medians[i]);
        all[i].ratios.push_back(medians[i] / medians[base]);
      }
  }
  if (!json)
    std::printf("%d rounds of %zu asks each over loopback, us; the ratio is to CAF's ping-pong in the same round\n", rounds, asks);
  for (const auto& v : all) {
    const auto median = quantile(v.medians, 0.5), p99 = quantile(v.all, 0.99), ratio = quantile(v.ratios, 0.5);
    if (json) {
      std::cout << nlohmann::json{{"measure", "remote_ask"}, {"variant", v.key}, {"median_us", median}, {"p99_us", p99},
                                  {"ratio_to_caf_ping_pong", ratio}, {"medians_us", v.medians}}
                << std::endl;
    } else {
      std::printf("%-28s median %8.1f, p99 %8.1f, ratio %5.2f (spread %.2f … %.2f)\n", v.name, median, p99, ratio,
                  quantile(v.ratios, 0), quantile(v.ratios, 1));
    }
  }
  std::cout.flush();
  std::fflush(stdout);
  std::_Exit(0); // the worker process ends with its input
}
