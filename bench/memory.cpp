// Checks and measures what a slot's memory does, on one device: budgets, swapping, captured steps, batches from the host, closing.
//
// Prints a JSON line for each check, with "passed", and ends with 1 if one failed; one that breaks off has an "error", and the next
// ones go on. On the CPU a memory budget stands for a GPU's
// memory and captured steps are lists of calls, so that the program itself is tried where there is no GPU; speeds mean nothing there.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "troupe/gpu/context.hpp"
#include "troupe/gpu/dataset.hpp"
#include "troupe/gpu/device.hpp"
#include "troupe/gpu/device_memory.hpp"
#include "troupe/gpu/network.hpp"
#include "troupe/gpu/slot_worker.hpp"
#include "troupe/gpu/training_group.hpp"

namespace {

using namespace troupe;
using clock_type = std::chrono::steady_clock;
using nlohmann::json;

struct arguments {
  std::string device = "cpu";
  double seconds = 2; ///< of each measurement of speed
  int cycles = 200;
  std::vector<std::string> only; ///< empty: all
  bool small = false;
};

bool all_passed = true;

void report(const std::string& check, bool passed, json numbers) {
  all_passed = all_passed && passed;
  numbers["check"] = check;
  numbers["passed"] = passed;
  std::cout << numbers.dump() << std::endl;
}

double seconds_since(clock_type::time_point t) {
  return std::chrono::duration<double>(clock_type::now() - t).count();
}

gpu::dataset_ptr make_data(std::int64_t features) {
  gpu::data_spec s;
  s.type = "synthetic";
  s.features = features;
  s.classes = 10;
  s.train = 4096;
  s.test = 512;
  return std::make_shared<const gpu::dataset>(gpu::make_synthetic(s));
}

std::uint64_t bytes_of(const gpu::dataset& d) {
  return static_cast<std::uint64_t>(d.train.size() + d.test.size()) * (static_cast<std::uint64_t>(d.features) * 4 + 4);
}

/// The context's copy, or, where `staged`, what a context without room for one has.
std::shared_ptr<const gpu::resident_data> placed(gpu::context& ctx, const gpu::dataset_ptr& host, bool staged) {
  if (!staged)
    return std::make_shared<const gpu::resident_data>(ctx, host);
  const auto taken = ctx.allocate(ctx.memory_free() - bytes_of(*host));
  return std::make_shared<const gpu::resident_data>(ctx, host, gpu::data_place::where_it_fits);
}

/// K MLPs on a context of their own.
struct bench {
  gpu::context ctx;
  std::shared_ptr<const gpu::resident_data> data;
  std::unique_ptr<gpu::training_group> group;
  std::vector<std::int64_t> members;

  bench(const gpu::slot_options& o, const gpu::dataset_ptr& host, std::vector<std::int64_t> hidden, std::int64_t batch, int k,
        bool staged = false)
    : ctx(o), data(placed(ctx, host, staged)) {
    gpu::network_spec spec;
    spec.features = host->features;
    spec.classes = host->classes;
    spec.hidden = std::move(hidden);
    group = std::make_unique<gpu::training_group>(
      ctx, gpu::group_options{gpu::network::factory(spec), gpu::optimizer_kind::sgd, batch, data, 0});
    for (int i = 0; i < k; ++i)
      join(static_cast<std::uint64_t>(i));
    group->set_active(members);
  }
  void join(std::uint64_t seed) {
    members.push_back(group->join(seed));
    gpu::member_params p;
    p.lr = 0.01F + 0.001F * static_cast<float>(seed);
    p.momentum = 0.9F;
    group->set_params(members.back(), p);
  }
  void steps(int n) {
    for (int i = 0; i < n; ++i)
      group->step();
  }
  /// After n steps more, of each member.
  std::vector<double> losses(int n) {
    steps(n);
    std::vector<double> out;
    for (const auto m : members)
      out.push_back(group->take_losses(m).sum);
    return out;
  }
  double steps_per_second(double for_seconds) {
    steps(8); // captures
    ctx.synchronize();
    const auto start = clock_type::now();
    std::int64_t n = 0;
    while (seconds_since(start) < for_seconds) {
      steps(16);
      ctx.synchronize();
      n += 16;
    }
    return static_cast<double>(n) / seconds_since(start);
  }
};

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = a.size() == b.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    worst = std::max(worst, std::abs(a[i] - b[i]) / std::max(1e-6, std::abs(a[i])));
  return worst;
}

class checks {
public:
  checks(arguments a, gpu::device_info d) : args_(std::move(a)), device_(std::move(d)), gpu_(device_.kind == gpu::device_kind::cuda) {
    slot_.device = device_;
    slot_.capture = gpu_ ? gpu::capture_mode::automatic : gpu::capture_mode::always;
  }

  using part = std::pair<const char*, void (checks::*)()>;
  static std::vector<part> parts() {
    return {{"graphs", &checks::graphs},       {"fusion", &checks::fusion},     {"staging", &checks::staging},
            {"budgets", &checks::budgets},     {"swapping", &checks::swapping}, {"bandwidth", &checks::bandwidth},
            {"exploits", &checks::exploits},   {"cycles", &checks::cycles}};
  }

  void run() {
    for (const auto& [name, check] : parts()) {
      if (!args_.only.empty() && std::find(args_.only.begin(), args_.only.end(), name) == args_.only.end())
        continue;
      try {
        (this->*check)();
      } catch (const std::exception& e) {
        report(name, false, {{"error", e.what()}});
      }
    }
  }

private:
  // CPU sizes only try the program.
  bool small() const { return !gpu_ || args_.small; }
  std::int64_t width(std::int64_t on_gpu) const { return small() ? 64 : on_gpu; }
  static gpu::slot_options with(gpu::slot_options o, gpu::capture_mode mode) {
    o.capture = mode;
    return o;
  }

  void graphs() {
    const auto data = make_data(width(784));
    for (const int k : small() ? std::vector<int>{1, 4} : std::vector<int>{1, 16, 64}) {
      bench on(slot_, data, {width(256), width(256)}, 128, k), off(with(slot_, gpu::capture_mode::never), data,
                                                                    {width(256), width(256)}, 128, k);
      const auto a = on.losses(30), b = off.losses(30);
      const auto before = on.ctx.snapshot().captures;
      gpu::member_params p;
      p.lr = 0.02F;
      p.momentum = 0.9F;
      on.group->set_params(on.members.front(), p);
      on.steps(3);
      const auto captures = on.ctx.snapshot().captures;
      const double fast = on.steps_per_second(args_.seconds), slow = off.steps_per_second(args_.seconds);
      report("graphs on against off", largest_difference(a, b) < 1e-3 && captures == before && before > 0,
             {{"models", k}, {"largest_difference", largest_difference(a, b)}, {"captures", captures},
              {"captures_by_a_push", captures - before}, {"fault", on.ctx.snapshot().capture_fault},
              {"steps_per_second", fast}, {"steps_per_second_direct", slow}, {"ratio", fast / slow}});
    }
  }

  void fusion() {
    const auto data = make_data(width(784));
    bench together(slot_, data, {width(256), width(256)}, 128, 8);
    const auto fused = together.losses(100);
    std::vector<double> alone;
    for (std::uint64_t i = 0; i < 8; ++i) {
      bench one(slot_, data, {width(256), width(256)}, 128, 0);
      one.join(i);
      one.group->set_active(one.members);
      alone.push_back(one.losses(100).front());
    }
    const auto worst = largest_difference(alone, fused);
    report("fused against unfused losses", worst < 1e-3, {{"models", 8}, {"steps", 100}, {"largest_difference", worst}});
  }

  void staging() {
    const auto data = make_data(width(784));
    bench here(slot_, data, {width(256)}, 128, 4);
    auto tight = slot_;
    tight.memory_budget = std::uint64_t{512} << 20;
    bench staged(tight, data, {width(256)}, 128, 4, true);
    const auto worst = largest_difference(here.losses(60), staged.losses(60));
    report("batches from the host", staged.data->staged() && worst < 1e-3,
           {{"largest_difference", worst}, {"bytes", staged.ctx.snapshot().staged_bytes},
            {"steps_per_second", staged.steps_per_second(args_.seconds / 4)},
            {"steps_per_second_on_the_device", here.steps_per_second(args_.seconds / 4)}});
  }

  /// Two slots of 40 % each; one of them asks for 60 %.
  void budgets() {
    const auto data = make_data(width(784));
    auto mine = slot_, other = slot_;
    const auto all = gpu_ ? device_.memory_bytes : std::uint64_t{256} << 20;
    mine.memory_budget = other.memory_budget = all / 10 * 4;
    other.index = 1;
    bench quiet(mine, data, {width(256)}, 64, 2), disturbed(mine, data, {width(256)}, 64, 2);
    const auto expected = quiet.losses(60);
    gpu::context greedy(other);
    std::string text;
    auto losses = disturbed.losses(20);
    try {
      const auto taken = greedy.allocate(all / 10 * 6);
    } catch (const gpu::out_of_memory& e) {
      text = e.what();
    }
    const auto rest = disturbed.losses(40);
    for (std::size_t i = 0; i < losses.size(); ++i)
      losses[i] += rest[i];
    const bool usable = static_cast<bool>(greedy.allocate(1 << 20));
    const auto use = disturbed.ctx.snapshot();
    report("row 25: one that asks for more than its budget is refused", !text.empty() && usable && largest_difference(expected, losses) < 1e-6,
           {{"error", text}, {"largest_difference", largest_difference(expected, losses)}});
    report("row 5: no call touched another device", use.strays == 0 && use.calls > 0,
           {{"calls", use.calls}, {"strays", use.strays}, {"device", device_.id}});
  }

  void swapping() {
    const auto data = make_data(width(784));
    const auto w = width(1024);
    bench plenty(slot_, data, {w, w}, 32, 64);
    auto tight = slot_;
    bench few(slot_, data, {w, w}, 32, 8);
    tight.memory_budget = few.ctx.memory_peak() + bytes_of(*data) + (std::uint64_t{1} << 20);
    bench b(tight, data, {w, w}, 32, 64);
    const auto worst = largest_difference(plenty.losses(20), b.losses(20));
    const auto use = b.ctx.snapshot();
    report("64 models in the memory of a few", worst < 1e-3 && use.swaps_in > 0,
           {{"largest_difference", worst}, {"swaps_out", use.swaps_out}, {"swaps_in", use.swaps_in}, {"bytes", use.swapped_bytes},
            {"budget", tight.memory_budget}, {"without_budget", plenty.ctx.memory_peak()}, {"pinned", use.pinned_used}});
  }

  /// Bytes per second of pinned copies alone, then of swapping models so large and batches so small that copies are all there is.
  void bandwidth() {
    double copies = 0;
    {
      gpu::context ctx(slot_);
      const std::size_t bytes = std::size_t{small() ? 1U : 256U} << 20;
      // Both directions at once, as swapping can have them.
      auto from = ctx.allocate(bytes), left = ctx.allocate_host(bytes), waits = ctx.allocate_host(bytes), to = ctx.allocate(bytes);
      ctx.zero(from.data(), bytes);
      ctx.synchronize();
      const auto both = [&] {
        ctx.download_async(left.data(), from.data(), bytes);
        ctx.upload_async(to.data(), waits.data(), bytes);
        ctx.synchronize();
      };
      both();
      const auto start = clock_type::now();
      int n = 0;
      for (; n < 4 || seconds_since(start) < args_.seconds / 4; ++n)
        both();
      copies = 2.0 * n * static_cast<double>(bytes) / seconds_since(start);
    }
    const auto data = make_data(64);
    const std::int64_t w = small() ? 256 : 4096;
    std::uint64_t budget = 0;
    {
      bench two(slot_, data, {w, w}, 8, 2);
      budget = two.ctx.memory_peak() + bytes_of(*data) + (std::uint64_t{1} << 20);
    }
    auto tight = slot_;
    tight.memory_budget = budget;
    bench b(tight, data, {w, w}, 8, 8);
    b.steps(2);
    b.ctx.synchronize();
    const auto before = b.ctx.snapshot().swapped_bytes;
    const auto start = clock_type::now();
    for (int n = 0; n < 2 || seconds_since(start) < args_.seconds; ++n)
      b.steps(1); // every model's turn
    b.ctx.synchronize();
    const auto moved = b.ctx.snapshot().swapped_bytes - before;
    const double swaps = static_cast<double>(moved) / seconds_since(start);
    report("swap bandwidth against copies", small() ? moved > 0 : swaps >= 0.8 * copies,
           {{"copy_bytes_per_second", copies}, {"swap_bytes_per_second", swaps}, {"ratio", swaps / copies}});
  }

  /// A state on its way from one slot of the device to another: from device memory, and through the host's.
  void exploits() {
    const auto data = make_data(64);
    const std::int64_t w = small() ? 256 : 4096;
    bench from(slot_, data, {w, w}, 8, 1), to(slot_, data, {w, w}, 8, 1);
    from.steps(2);
    core::checkpoint state;
    from.group->save(from.members[0], state);
    const auto take = [&](bool near) {
      const auto start = clock_type::now();
      int n = 0;
      for (; n < 2 || seconds_since(start) < args_.seconds / 4; ++n) {
        state.attach(near ? from.group->keep_on_device(from.members[0]) : nullptr);
        to.group->load(to.members[0], state, false);
      }
      to.ctx.synchronize();
      return seconds_since(start) / n;
    };
    const auto by_host = take(false), near = take(true);
    core::checkpoint taken;
    to.group->save(to.members[0], taken);
    bool same = true;
    for (const auto& t : state.tensors())
      same = same && (t.name == "counters" || *taken.find(t.name) == t);
    const auto copies = to.ctx.snapshot().slot_copies;
    report("a state taken from another slot's device memory", same && (copies > 0) == gpu_,
           {{"bytes", state.bytes()}, {"seconds_from_device", gpu_ ? json(near) : json()}, {"seconds_from_host", by_host}, {"copies", copies}});
  }

  /// Opens a slot, trains a little on it and closes it, again and again.
  void cycles() {
    const auto data = make_data(64);
    std::uint64_t first = 0, last = 0, pinned = 0;
    const auto start = clock_type::now();
    for (int i = 0; i < args_.cycles; ++i) {
      {
        gpu::slot_worker worker(slot_);
        std::promise<std::uint64_t> held;
        worker.post(
          [&](gpu::context& ctx) {
            {
              auto host = std::make_shared<const gpu::resident_data>(ctx, data);
              gpu::network_spec spec;
              spec.features = 64;
              spec.classes = 10;
              spec.hidden = {64};
              gpu::training_group g(ctx, {gpu::network::factory(spec), gpu::optimizer_kind::sgd, 32, host, 0});
              const auto m = g.join(1);
              g.set_active({&m, 1});
              for (int s = 0; s < 4; ++s)
                g.step();
              auto pin = ctx.allocate_host(1 << 20);
              ctx.synchronize();
            }
            held.set_value(ctx.snapshot().pinned_held);
          },
          nullptr);
        pinned += held.get_future().get();
      }
      if (i == 0)
        first = gpu::free_device_memory(device_);
    }
    last = gpu::free_device_memory(device_);
    const auto lost = first > last ? first - last : 0;
    report("rows 27 and 28: memory is back after every slot that was closed", pinned == 0 && (!gpu_ || lost <= (std::uint64_t{64} << 20)),
           {{"cycles", args_.cycles}, {"seconds", seconds_since(start)}, {"free_after_the_first", first}, {"free_after_the_last", last},
            {"pinned_held", pinned}});
  }

  arguments args_;
  gpu::device_info device_;
  bool gpu_;
  gpu::slot_options slot_;
};

} // namespace

int main(int argc, char** argv) {
  arguments args;
  CLI::App app{"Checks and measures what a slot's memory does, on one device. Ends with 1 if a check failed.", "bench_memory"};
  app.add_option("--device", args.device, "cpu, cuda, cuda:1, a GPU's UUID")->capture_default_str();
  app.add_option("--seconds", args.seconds, "Of each measurement of speed")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--cycles", args.cycles, "How often memory is taken and given back")->check(CLI::PositiveNumber)->capture_default_str();
  std::vector<std::string> names;
  for (const auto& [name, check] : checks::parts())
    names.emplace_back(name);
  app.add_option("--only", args.only, "These checks alone")->delimiter(',')->check(CLI::IsMember(names));
  app.add_flag("--small", args.small, "Small models: for trying the program itself");
  CLI11_PARSE(app, argc, argv)
  auto device = gpu::find_device(gpu::find_devices(), args.device);
  if (!device) {
    std::cerr << "bench_memory: " << device.error().text << "\n";
    return 2;
  }
  checks(args, *device).run();
  return all_passed ? 0 : 1;
}
