#include "troupe/actors/gpu_actor.hpp"

#include <condition_variable>
#include <future>
#include <mutex>
#include <numeric>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include "troupe/actors/caf_io.hpp"
#include "troupe/gpu/cuda_source.hpp"

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;

namespace gpu_actor_test {

struct iota {
  std::int64_t count = 0;
};
TROUPE_INSPECT(iota, count)

struct scale {
  tensor_ref x;
  wire_real by;
};
TROUPE_INSPECT(scale, x, by)

struct total {
  tensor_ref x;
};
TROUPE_INSPECT(total, x)

struct wait_here {
  std::uint32_t number = 0;
};
TROUPE_INSPECT(wait_here, number)

struct count_calls {
  std::uint32_t by = 0;
};
TROUPE_INSPECT(count_calls, by)

struct note {
  std::string text;
};
TROUPE_INSPECT(note, text)

using maker = typed_actor<result<tensor_ref>(iota)>;
using scaler = typed_actor<result<tensor_ref>(scale)>;
using adder = typed_actor<result<wire_real>(total)>;
using waiter = typed_actor<result<std::uint32_t>(wait_here)>;
using counter = typed_actor<result<std::uint32_t>(count_calls), result<void>(note)>;

} // namespace gpu_actor_test

CAF_BEGIN_TYPE_ID_BLOCK(gpu_actor_test, troupe::actors::first_user_type_id + 50)
  CAF_ADD_TYPE_ID(gpu_actor_test, (gpu_actor_test::iota))
  CAF_ADD_TYPE_ID(gpu_actor_test, (gpu_actor_test::scale))
  CAF_ADD_TYPE_ID(gpu_actor_test, (gpu_actor_test::total))
  CAF_ADD_TYPE_ID(gpu_actor_test, (gpu_actor_test::wait_here))
  CAF_ADD_TYPE_ID(gpu_actor_test, (gpu_actor_test::count_calls))
  CAF_ADD_TYPE_ID(gpu_actor_test, (gpu_actor_test::note))
CAF_END_TYPE_ID_BLOCK(gpu_actor_test)

namespace gpu_actor_test {
namespace {

using test_config = config<caf::id_block::gpu_actor_test>;

maker spawn_maker(caf::actor_system& sys, const gpu_place& at) {
  return spawn_gpu<maker>(sys, at, {}, [](gpu_call& call, const iota& m) -> tensor_ref {
    std::vector<float> xs(static_cast<std::size_t>(m.count));
    std::iota(xs.begin(), xs.end(), 0.0f);
    return call.upload(std::span<const float>{xs}, {m.count});
  });
}

scaler spawn_scaler(caf::actor_system& sys, const gpu_place& at) {
  return spawn_gpu<scaler>(sys, at, {}, [](gpu_call& call, const scale& m) -> tensor_ref {
    const auto* x = call.data<float>(m.x);
    auto y = call.make<float>(m.x.shape());
    for (std::size_t i = 0; i < y.size(); ++i) // the CPU's device memory is the host's
      y.data()[i] = x[i] * static_cast<float>(m.by);
    return y;
  });
}

adder spawn_adder(caf::actor_system& sys, const gpu_place& at) {
  return spawn_gpu<adder>(sys, at, {}, [](gpu_call& call, const total& m) -> wire_real {
    const auto xs = call.read<float>(m.x);
    return std::accumulate(xs.begin(), xs.end(), 0.0);
  });
}

/// A process with slots, as a program would set it up.
struct rig {
  explicit rig(unsigned slots = 1, std::uint64_t budget = 0, bool network = false) {
    for (unsigned i = 0; i < slots; ++i) {
      gpu::slot_options o;
      o.device.id = "cpu";
      o.index = i;
      o.memory_budget = budget;
      workers.push_back(std::make_shared<gpu::slot_worker>(o));
    }
    cfg.scheduler_threads(2);
    if (network)
      enable_network(cfg);
    sys.emplace(cfg);
    for (const auto& w : workers)
      places.emplace_back(*sys, w);
    self.emplace(*sys);
  }

  template <class T, class Handle, class Message>
  T ask(const Handle& dst, Message x) {
    std::optional<T> out;
    mail(*self, std::move(x))
        .request(dst, 20s)
        .receive([&](const T& y) { out = y; }, [](caf::error& e) { throw std::runtime_error{error_text(e)}; });
    return *out;
  }
  /// The error that answers.
  template <class T, class Handle, class Message>
  std::string fault(const Handle& dst, Message x) {
    try {
      ask<T>(dst, std::move(x));
    } catch (const std::runtime_error& e) {
      return e.what();
    }
    return "no error";
  }
  /// Bytes that the slot holds after everything sent to it so far.
  std::uint64_t memory(unsigned slot = 0) {
    std::promise<std::uint64_t> out;
    workers[slot]->post([&](gpu::context& ctx) { out.set_value(ctx.memory_used()); }, nullptr);
    return out.get_future().get();
  }

  std::vector<std::shared_ptr<gpu::slot_worker>> workers;
  test_config cfg;
  std::optional<caf::actor_system> sys;
  std::vector<gpu_place> places;
  std::optional<caf::scoped_actor> self;
};

} // namespace

TEST_CASE("GPU actors chain on the device and memory goes back with the last ref") {
  rig r;
  auto make = spawn_maker(*r.sys, r.places[0]);
  auto times = spawn_scaler(*r.sys, r.places[0]);
  auto sum = spawn_adder(*r.sys, r.places[0]);
  {
    auto x = r.ask<tensor_ref>(make, iota{1000});
    CHECK(x.type() == core::dtype::f32);
    CHECK(x.shape() == std::vector<std::int64_t>{1000});
    CHECK(x.bytes() == 4000);
    CHECK(x.slot() == 0);
    CHECK(x.describe() == "F32 [1000] on slot 0 (cpu)");
    auto y = r.ask<tensor_ref>(times, scale{x, 2});
    auto z = r.ask<tensor_ref>(times, scale{y, 0.5});
    CHECK(y != x);
    CHECK(r.memory() >= 3 * 4000);
    CHECK(double{r.ask<wire_real>(sum, total{y})} == 999 * 1000);
    CHECK(double{r.ask<wire_real>(sum, total{z})} == 999 * 500);
    CHECK(double{r.ask<wire_real>(sum, total{x})} == 999 * 500); // immutable
  }
  CHECK(r.memory() == 0);
}

TEST_CASE("an allocation beyond the budget is answered as an error and the actor lives on") {
  rig r{1, 1 << 20};
  auto make = spawn_maker(*r.sys, r.places[0]);
  auto text = r.fault<tensor_ref>(make, iota{1 << 20});
  CHECK(text.find("slot 0") != std::string::npos);
  CHECK(text.find("1048576") != std::string::npos); // the budget
  CHECK(r.ask<tensor_ref>(make, iota{1000}).size() == 1000);
}

TEST_CASE("what a handler throws answers the request with its text") {
  rig r;
  auto bad = spawn_gpu<maker>(*r.sys, r.places[0], {}, [](gpu_call&, const iota& m) -> tensor_ref {
    throw std::domain_error{"no tensor of " + std::to_string(m.count) + " elements today"};
  });
  CHECK(r.fault<tensor_ref>(bad, iota{3}) == "no tensor of 3 elements today");
  CHECK(r.fault<tensor_ref>(bad, iota{4}) == "no tensor of 4 elements today");
  auto times = spawn_scaler(*r.sys, r.places[0]);
  CHECK(r.fault<tensor_ref>(times, scale{{}, 1}) == "a tensor_ref names no tensor");
  auto wrong = spawn_gpu<maker>(*r.sys, r.places[0], {}, [](gpu_call& call, const iota& m) -> tensor_ref {
    return call.make<std::int32_t>({m.count});
  });
  auto x = r.ask<tensor_ref>(wrong, iota{4});
  CHECK(r.fault<tensor_ref>(times, scale{x, 1}) == "the tensor I32 [4] on slot 0 (cpu) was to be of type F32");
  CHECK(r.fault<tensor_ref>(wrong, iota{-1}) == "a tensor's shape [-1] has a negative extent");
  CHECK(r.fault<tensor_ref>(wrong, iota{INT64_MAX}).find("too large to address") != std::string::npos);
}

TEST_CASE("a tensor is read on its own slot only and can be moved to another") {
  rig r{2};
  auto make = spawn_maker(*r.sys, r.places[0]);
  auto times = spawn_scaler(*r.sys, r.places[1]);
  auto sum = spawn_adder(*r.sys, r.places[1]);
  auto x = r.ask<tensor_ref>(make, iota{10});
  CHECK(r.fault<tensor_ref>(times, scale{x, 2}) ==
        "the tensor F32 [10] on slot 0 (cpu) cannot be read on slot 1 (cpu): move it there (move_tensor)");
  auto mover = spawn_tensor_mover(*r.sys, r.places[1]);
  auto y = r.ask<tensor_ref>(mover, move_tensor{x});
  CHECK(y.slot() == 1);
  CHECK(double{r.ask<wire_real>(sum, total{y})} == 45);
  CHECK(r.ask<tensor_ref>(mover, move_tensor{y}) == y); // it is there already
  CHECK(r.fault<tensor_ref>(mover, move_tensor{}) == "move_tensor names no tensor");
  gpu_place reopened{*r.sys, r.workers[0], 1};
  auto late = spawn_scaler(*r.sys, reopened);
  CHECK(r.fault<tensor_ref>(late, scale{x, 2}).find("which was opened again since") != std::string::npos);
}

TEST_CASE("a state lives and dies on its slot and serves several messages") {
  struct record {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::thread::id> threads;
  } seen;
  std::string notes;
  rig r; // after what its slots refer to
  struct probe {
    record* seen = nullptr;
    std::uint32_t calls = 0;
    void note_thread() {
      if (!seen)
        return;
      std::lock_guard lock(seen->mutex);
      seen->threads.push_back(std::this_thread::get_id());
      seen->changed.notify_all();
    }
    ~probe() { note_thread(); }
  };
  auto a = spawn_gpu_with<counter, probe>(
      *r.sys, r.places[0], {},
      [&](probe& p, gpu_call& call, const count_calls& m) -> std::uint32_t {
        p.seen = &seen;
        call.context().check_thread();
        p.note_thread();
        return p.calls += m.by;
      },
      [&](probe&, gpu_call&, const note& m) { notes += m.text; });
  CHECK(r.ask<std::uint32_t>(a, count_calls{2}) == 2);
  mail(*r.self, note{"a"}).send(a);
  CHECK(r.ask<std::uint32_t>(a, count_calls{3}) == 5);
  CHECK(notes == "a");
  bool done = false;
  mail(*r.self, note{"b"}).request(a, 20s).receive([&] { done = true; }, [](caf::error& e) { FAIL(error_text(e)); });
  CHECK(done); // answered when it was handled
  caf::anon_send_exit(a, caf::exit_reason::user_shutdown);
  (*r.self)->wait_for(a);
  a = nullptr;
  std::promise<std::thread::id> slot;
  r.workers[0]->post([&](gpu::context&) { slot.set_value(std::this_thread::get_id()); }, nullptr);
  const auto id = slot.get_future().get();
  std::unique_lock lock(seen.mutex);
  // The actor lets go of its state after it has said that it is over.
  REQUIRE(seen.changed.wait_for(lock, 20s, [&] { return seen.threads.size() == 3; }));
  for (const auto& t : seen.threads)
    CHECK(t == id);
}

TEST_CASE("requests beyond the limit are refused and urgent ones overtake") {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false, inside = false;
  std::vector<std::uint32_t> order, answers;
  std::vector<std::string> faults;
  std::promise<void> all;
  rig r; // after what its actors and slots refer to
  gpu_options options;
  options.max_in_flight = 5;
  auto a = spawn_gpu<waiter>(*r.sys, r.places[0], options, [&](gpu_call&, const wait_here& m) -> std::uint32_t {
    std::unique_lock lock(mutex);
    inside = true;
    changed.notify_all();
    changed.wait(lock, [&] { return open; });
    order.push_back(m.number);
    return m.number;
  });
  auto asker = r.sys->spawn([&](caf::event_based_actor* s) -> caf::behavior {
    const auto ask = [&, s](std::uint32_t n, bool urgent) {
      const auto done = [&, s] {
        if (answers.size() + faults.size() == 7) {
          all.set_value();
          s->quit();
        }
      };
      const auto got = [&, done](std::uint32_t x) {
        answers.push_back(x);
        done();
      };
      const auto lost = [&, done](const caf::error& e) {
        faults.push_back(error_text(e));
        done();
      };
      if (urgent)
        mail(s, wait_here{n}).urgent().request(a, 20s).then(got, lost);
      else
        mail(s, wait_here{n}).request(a, 20s).then(got, lost);
    };
    for (std::uint32_t n = 0; n < 4; ++n)
      ask(n, false);
    return {[ask](std::uint32_t n) { ask(n, n == 9); }};
  });
  { // the first is with the slot, so all four have been accepted or will be before what follows
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return inside; });
  }
  for (std::uint32_t n : {9u, 10u, 11u})
    mail(*r.self, n).send(asker);
  // Refusals come while the slot still waits; then let it go.
  std::thread release([&] {
    std::unique_lock lock(mutex);
    open = true;
    changed.notify_all();
  });
  release.join();
  all.get_future().wait();
  CHECK(answers.size() + faults.size() == 7);
  for (const auto& f : faults)
    CHECK(f == "the GPU actor on slot 0 (cpu) is busy: 5 requests are in flight, its limit. Wait for answers before sending more");
  CHECK(order[0] == 0);
}

TEST_CASE("an ended GPU actor answers what it had accepted") {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false, inside = false;
  std::vector<std::string> faults;
  std::promise<void> all;
  rig r; // after what its actors and slots refer to
  auto a = spawn_gpu<waiter>(*r.sys, r.places[0], {}, [&](gpu_call&, const wait_here& m) -> std::uint32_t {
    std::unique_lock lock(mutex);
    inside = true;
    changed.notify_all();
    changed.wait(lock, [&] { return open; });
    return m.number;
  });
  auto asker = r.sys->spawn([&](caf::event_based_actor* s) -> caf::behavior {
    for (std::uint32_t n = 0; n < 3; ++n)
      mail(s, wait_here{n}).request(a, 20s).then([](std::uint32_t) {}, [&, s](const caf::error& e) {
        faults.push_back(error_text(e));
        if (faults.size() == 3) {
          all.set_value();
          s->quit();
        }
      });
    return {[](std::uint32_t) {}};
  });
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return inside; });
  }
  // Behind the three requests in the actor's mailbox, since urgent mail could overtake them.
  mail(*r.self, wait_here{4}).send(a);
  caf::anon_send_exit(a, caf::exit_reason::user_shutdown);
  all.get_future().wait();
  CHECK(faults.size() == 3);
  {
    std::unique_lock lock(mutex);
    open = true;
    changed.notify_all();
  }
}

TEST_CASE("errors of messages that were no requests are told to the program") {
  std::promise<std::string> told;
  rig r; // after what its actors refer to
  gpu_options options;
  options.on_error = [&](const std::string& x) { told.set_value(x); };
  auto a = spawn_gpu<counter>(
      *r.sys, r.places[0], options, [](gpu_call&, const count_calls& m) -> std::uint32_t { return m.by; },
      [](gpu_call&, const note& m) { throw std::runtime_error{"cannot note " + m.text}; });
  mail(*r.self, note{"this"}).send(a);
  CHECK(told.get_future().get() == "cannot note this");
  CHECK(r.ask<std::uint32_t>(a, count_calls{7}) == 7);
}

TEST_CASE("another process is refused a tensor and told the way") {
  // A process of its own: two systems of one process have the same node id on CAF 0.17.6.
  int to_child[2], to_parent[2];
  REQUIRE(::pipe(to_child) == 0);
  REQUIRE(::pipe(to_parent) == 0);
  const auto child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    std::uint16_t port = 0;
    std::string text = "no port came";
    if (::read(to_child[0], &port, sizeof(port)) == sizeof(port)) {
      rig there{1, 0, true};
      auto remote = there.sys->middleman().remote_actor<maker>("127.0.0.1", port);
      text = remote ? there.fault<tensor_ref>(*remote, iota{3}) : to_string(remote.error());
      if (remote) { // nor does a message with a tensor leave
        const auto mine = there.ask<tensor_ref>(spawn_maker(*there.sys, there.places[0]), iota{3});
        const auto doubler = caf::actor_cast<scaler>(*remote);
        text += " / " + there.fault<tensor_ref>(doubler, scale{mine, 2});
        mail(*there.self, scale{mine, 2}).send(doubler);
      }
    }
    const auto written = ::write(to_parent[1], text.data(), text.size());
    ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(to_parent[1]);
  std::string text;
  {
    rig here{1, 0, true};
    auto make = spawn_maker(*here.sys, here.places[0]);
    auto port = here.sys->middleman().publish(make, 0, "127.0.0.1");
    REQUIRE(port);
    const std::uint16_t number = *port;
    REQUIRE(::write(to_child[1], &number, sizeof(number)) == sizeof(number));
    char buffer[512];
    for (ssize_t n = 0; (n = ::read(to_parent[0], buffer, sizeof(buffer))) > 0;)
      text.append(buffer, static_cast<std::size_t>(n));
    CHECK(here.ask<tensor_ref>(make, iota{3}).size() == 3);
    caf::anon_send_exit(make, caf::exit_reason::user_shutdown); // a published actor has a handle in the network layer
  }
  CHECK_MESSAGE(text.find("a tensor_ref cannot leave its process: download it") != std::string::npos, text);
  CHECK_MESSAGE(text.find("invalid_") != std::string::npos, text); // at once, without a timeout
  int status = 1;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  for (const int fd : {to_child[0], to_child[1], to_parent[0]})
    ::close(fd);
}

TEST_CASE("CUDA source is refused on a CPU slot with what to do") {
  rig r;
  gpu::cuda_source source;
  source.text = "__global__ void twice(const float* x, float* y) { y[threadIdx.x] = 2 * x[threadIdx.x]; }";
  source.kernels = {"twice"};
  auto made = spawn_cuda(*r.sys, r.places[0], source);
  REQUIRE_FALSE(made);
  CHECK(made.error().code == core::errc::refused);
  CHECK(made.error().text.find("CUDA source needs a GPU, but slot 0 (cpu) is none") == 0);
}

} // namespace gpu_actor_test
