// Many small models at once, as trainers of an experiment run on their slots: steps of all as one against each for itself.
// bench/peers/fusion_torch.py and fusion_jax.py do the same work. `bench_fusion --help` lists the options.

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <ctime>
#include <future>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "models.hpp"
#include "troupe/gpu/dataset.hpp"
#include "troupe/gpu/device.hpp"
#include "troupe/gpu/gemm_plan.hpp"
#include "troupe/gpu/model_workload.hpp"
#include "troupe/gpu/ops.hpp"
#include "troupe/gpu/slot_worker.hpp"

namespace {

using namespace troupe;
using nlohmann::json;
using clock = std::chrono::steady_clock;

struct arguments {
  std::string model = "small", precision = "fp32", device = "cpu";
  std::vector<unsigned> members{1, 4, 16, 64};
  unsigned slots = 1, rounds = 5;
  double seconds = 0.5;
  std::int64_t block = 0, examples = 60000;
  unsigned steps = 0;
  bool synthetic = false, join = false, limits = false, tf32 = false, no_capture = false, as_json = false;
};

gpu::precision_kind precision_of(const arguments& args) {
  return args.precision == "bf16" ? gpu::precision_kind::bf16 : gpu::precision_kind::fp32;
}

gpu::dataset_ptr load(const arguments& args) {
  auto data = gpu::load_dataset(bench::data_of(args.model, args.synthetic, args.examples));
  if (!data)
    throw std::runtime_error(data.error().text);
  return std::make_shared<const gpu::dataset>(std::move(*data));
}

/// Of all threads of this process: what others take of the cores does not count.
double cpu_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// Steps a second, of all members together: by the clock and by the time that the cores worked.
struct speed {
  double wall = 0, cpu = 0;
};

/// Runs `t` on the slot's thread and waits for it.
void on(gpu::slot_worker& slot, const gpu::slot_worker::task& t) {
  std::promise<core::result<void>> p;
  slot.post(t, [&](core::result<void> r) { p.set_value(std::move(r)); });
  if (auto r = p.get_future().get(); !r)
    throw std::runtime_error(r.error().text);
}

/// So many members on their slots, ready to run.
class field {
public:
  field(const arguments& args, const std::vector<std::unique_ptr<gpu::slot_worker>>& slots, gpu::data_cache& cache,
        const gpu::dataset_ptr& data, unsigned members, bool fuse)
    : slots_(slots) {
    for (unsigned k = 0; k < members; ++k) {
      auto h = std::make_shared<gpu::hosted>();
      task(k, [&, k](gpu::context& ctx) {
        gpu::trained_model what;
        what.kind = "bench";
        what.architecture = bench::describe(args.model, precision_of(args));
        what.how.make = bench::factory_of(args.model, precision_of(args));
        what.how.optimizer = bench::optimizer_of(args.model);
        what.how.batch = bench::batch_of(args.model);
        what.how.data = cache.resident(ctx, data);
        what.how.block = args.block;
        h->work = gpu::make_model_workload(
          ctx, {"m", 100 + k, nullptr, bench::hyperparameters_of(args.model, 0.01 * (1 + k % 3)), fuse}, what);
      });
      who_.push_back(std::move(h));
    }
  }
  /// Device memory of the slots, all of it.
  std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const auto& s : slots_)
      sum += s->snapshot().memory_used;
    return sum;
  }

  ~field() {
    for (std::size_t k = 0; k < who_.size(); ++k)
      task(k, [&](gpu::context&) { who_[k]->work.reset(); });
  }

  /// Until each has made so many steps beside all others, but no shorter than `seconds`: then what happens in a first step, and the
  /// capture in a second, is over for all of them.
  void warm_up(std::uint64_t steps, double seconds) { (void)rate(seconds, steps); }
  /// Steps of the one that made fewest so far.
  std::uint64_t least_steps() const {
    auto least = ~std::uint64_t{0};
    for (const auto& w : who_)
      least = std::min(least, w->progress.load());
    return least;
  }

  /// Over `seconds`, and longer where one has not made `least` steps by then.
  speed rate(double seconds, std::uint64_t least = 0) {
    std::vector<std::future<std::uint64_t>> runs;
    const auto start = clock::now();
    const auto cpu_start = cpu_seconds();
    for (std::size_t k = 0; k < who_.size(); ++k) {
      auto p = std::make_shared<std::promise<std::uint64_t>>();
      runs.push_back(p->get_future());
      slot(k).run(who_[k], ~std::uint64_t{0}, [p](gpu::run_outcome o) {
        if (!o.failure.text.empty())
          p->set_exception(std::make_exception_ptr(std::runtime_error(o.failure.text)));
        else
          p->set_value(o.steps);
      });
    }
    std::vector<std::uint64_t> goals;
    for (const auto& w : who_) // all are under way
      goals.push_back(w->progress.load() + least);
    std::this_thread::sleep_until(start + std::chrono::duration<double>(seconds));
    for (std::size_t k = 0; k < who_.size(); ++k)
      while (who_[k]->progress.load() < goals[k] && runs[k].wait_for(std::chrono::milliseconds(1)) == std::future_status::timeout)
        ; // one that failed is over
    for (std::size_t k = 0; k < who_.size(); ++k)
      slot(k).interrupt(who_[k]);
    std::uint64_t steps = 0;
    for (auto& r : runs)
      steps += r.get();
    const auto n = static_cast<double>(steps);
    return {n / std::chrono::duration<double>(clock::now() - start).count(), n / (cpu_seconds() - cpu_start)};
  }

private:
  gpu::slot_worker& slot(std::size_t k) const { return *slots_[k % slots_.size()]; }
  void task(std::size_t k, const gpu::slot_worker::task& t) { on(slot(k), t); }

  const std::vector<std::unique_ptr<gpu::slot_worker>>& slots_;
  std::vector<std::shared_ptr<gpu::hosted>> who_;
};

double median(std::vector<double> xs) {
  std::sort(xs.begin(), xs.end());
  return xs.size() % 2 == 1 ? xs[xs.size() / 2] : (xs[xs.size() / 2 - 1] + xs[xs.size() / 2]) / 2;
}

/// What a step of a member has to do, however it is done.
struct least_work {
  double flops = 0; ///< in products
  double bytes = 0; ///< weights and optimizer state, each read and written once
};

least_work least_work_of(const arguments& args, gpu::slot_worker& slot) {
  least_work out;
  on(slot, [&](gpu::context& ctx) {
    double parameters = 0;
    const auto look_at = [&](const auto& net) {
      parameters = static_cast<double>(net.layout().size);
      out.flops = net.flops_per_example() * static_cast<double>(bench::batch_of(args.model));
    };
    if (args.model == "transformer")
      look_at(gpu::transformer(ctx, bench::transformer_of(), 1, 1));
    else
      look_at(gpu::network(ctx, bench::network_of(args.model), 1, 1));
    const double copies = bench::optimizer_of(args.model) == gpu::optimizer_kind::adamw ? 3 : 2;
    out.bytes = 2 * copies * sizeof(float) * parameters;
  });
  return out;
}

/// What all slots of the device together can do at most: copies within device memory (bytes read and written), and large products.
json measure_limits(const arguments& args, const std::vector<std::unique_ptr<gpu::slot_worker>>& slots, bool gpu) {
  const std::int64_t n = gpu ? 8192 : 1024;
  const std::size_t bytes = std::size_t{gpu ? 1024u : 64u} << 20;
  std::mutex mutex;
  double copied = 0, flops = 0;
  std::barrier<> all(static_cast<std::ptrdiff_t>(slots.size()));
  std::vector<std::future<void>> done;
  for (const auto& s : slots) {
    auto p = std::make_shared<std::promise<void>>();
    done.push_back(p->get_future());
    s->post(
      [&](gpu::context& ctx) {
        const auto from = ctx.allocate(bytes), to = ctx.allocate(bytes);
        ctx.zero(from.data(), bytes);
        const auto a = ctx.allocate_of<float>(static_cast<std::size_t>(n * n)), b = ctx.allocate_of<float>(static_cast<std::size_t>(n * n)),
                   c = ctx.allocate_of<float>(static_cast<std::size_t>(n * n));
        for (const auto* x : {&a, &b})
          gpu::draw_uniform(ctx, 1, "limits", 0, -1, 1, {x->as<float>(), n * n, n * n});
        const auto timed = [&](auto once) {
          once();
          ctx.synchronize();
          all.arrive_and_wait();
          const auto start = clock::now();
          double count = 0, took = 0;
          for (; took < args.seconds; took = std::chrono::duration<double>(clock::now() - start).count(), ++count) {
            once();
            ctx.synchronize();
          }
          return count / took;
        };
        const auto copies = timed([&] { ctx.copy(to.data(), from.data(), bytes); });
        const auto products = timed([&] {
          gpu::gemm(ctx, 1, false, false, 1.0f, gpu::mat<const float>{a.as<float>(), n, n, n, n * n},
                    gpu::mat<const float>{b.as<float>(), n, n, n, n * n}, 0.0f, gpu::mat<float>{c.as<float>(), n, n, n, n * n});
        });
        const std::lock_guard lock(mutex);
        copied += 2 * static_cast<double>(bytes) * copies;
        flops += 2 * std::pow(static_cast<double>(n), 3) * products;
      },
      [p](core::result<void> r) {
        if (r)
          p->set_value();
        else
          p->set_exception(std::make_exception_ptr(std::runtime_error(r.error().text)));
      });
  }
  for (auto& d : done)
    d.get();
  return {{"program", "troupe"}, {"bench", "limits"}, {"device", args.device}, {"slots", slots.size()}, {"tf32", args.tf32},
          {"copy_bytes_per_second", copied}, {"product_flops_per_second", flops}};
}

json measure(const arguments& args, const std::vector<std::unique_ptr<gpu::slot_worker>>& slots, gpu::data_cache& cache,
             const gpu::dataset_ptr& data, unsigned members) {
  field fused(args, slots, cache, data, members, true);
  const auto fused_bytes = fused.bytes();
  field unfused(args, slots, cache, data, members, false);
  const auto unfused_bytes = unfused.bytes() - fused_bytes;
  fused.warm_up(3, 0.1 * args.seconds);
  unfused.warm_up(3, 0.1 * args.seconds);
  const auto warm = std::min(fused.least_steps(), unfused.least_steps());
  std::vector<double> with, without, ratio, cpu_with, cpu_without, cpu_ratio;
  for (unsigned r = 0; r < args.rounds; ++r) {
    // Each goes first in every other round.
    speed one, other;
    if (r % 2 == 0)
      one = fused.rate(args.seconds);
    other = unfused.rate(args.seconds);
    if (r % 2 == 1)
      one = fused.rate(args.seconds);
    with.push_back(one.wall);
    without.push_back(other.wall);
    ratio.push_back(one.wall / other.wall);
    cpu_with.push_back(one.cpu);
    cpu_without.push_back(other.cpu);
    cpu_ratio.push_back(one.cpu / other.cpu);
  }
  const auto batch = static_cast<double>(bench::batch_of(args.model));
  const auto work = least_work_of(args, *slots.front());
  return {{"program", "troupe"},
          {"flops_per_step", work.flops},
          {"bytes_per_step", work.bytes},
          {"tf32", args.tf32},
          {"captured", !args.no_capture && slots.front()->options().device.kind == gpu::device_kind::cuda},
          {"bench", "fusion"},
          {"model", args.model},
          {"precision", args.precision},
          {"device", args.device},
          {"slots", args.slots},
          {"members", members},
          {"batch", batch},
          {"block", args.block},
          {"fused_samples_per_second", median(with) * batch},
          {"unfused_samples_per_second", median(without) * batch},
          {"ratio", median(ratio)},
          {"fused_bytes", fused_bytes},
          {"unfused_bytes", unfused_bytes},
          {"fused_samples_per_cpu_second", median(cpu_with) * batch},
          {"unfused_samples_per_cpu_second", median(cpu_without) * batch},
          {"cpu_ratio", median(cpu_ratio)},
          {"ratio_least", *std::min_element(ratio.begin(), ratio.end())},
          {"ratio_most", *std::max_element(ratio.begin(), ratio.end())},
          {"least_warm_up_steps", warm},
          {"rounds", args.rounds},
          {"seconds", args.seconds}};
}

gpu::group_options group_of(const arguments& args, gpu::context& ctx, gpu::data_cache& cache, const gpu::dataset_ptr& data) {
  gpu::group_options o;
  o.make = bench::factory_of(args.model, precision_of(args));
  o.optimizer = bench::optimizer_of(args.model);
  o.batch = bench::batch_of(args.model);
  o.data = cache.resident(ctx, data);
  o.block = args.block;
  return o;
}

/// So many steps of all as one and nothing else, for a profiler: the same operations each time.
json only_steps(const arguments& args, gpu::slot_worker& slot, gpu::data_cache& cache, const gpu::dataset_ptr& data,
                unsigned members) {
  json out = {{"program", "troupe"},   {"bench", "steps"},   {"model", args.model}, {"precision", args.precision},
              {"device", args.device}, {"tf32", args.tf32}, {"members", members},  {"steps", args.steps}};
  on(slot, [&](gpu::context& ctx) {
    gpu::training_group g(ctx, group_of(args, ctx, cache, data));
    std::vector<std::int64_t> all;
    for (unsigned k = 0; k < members; ++k) {
      all.push_back(g.join(k));
      gpu::member_params p;
      p.lr = 0.01F;
      p.momentum = 0.9F;
      g.set_params(all.back(), p);
    }
    g.set_active(all);
    for (unsigned i = 0; i < args.steps; ++i)
      g.step();
    ctx.synchronize();
    out["captures"] = ctx.snapshot().captures;
  });
  return out;
}

/// Microseconds of a join and of a leave, in a group of so many.
json measure_join(const arguments& args, gpu::slot_worker& slot, gpu::data_cache& cache, const gpu::dataset_ptr& data,
                  unsigned members) {
  json out = {{"program", "troupe"}, {"bench", "join"}, {"model", args.model}, {"device", args.device}, {"members", members}};
  on(slot, [&](gpu::context& ctx) {
    gpu::training_group g(ctx, group_of(args, ctx, cache, data));
    std::vector<std::int64_t> all;
    for (unsigned k = 0; k < members; ++k)
      all.push_back(g.join(k));
    std::vector<double> join, leave, draw;
    const auto fresh = ctx.allocate_of<float>(static_cast<std::size_t>(2 * g.net().layout().size));
    for (unsigned r = 0; r < 20; ++r) {
      g.set_active(all);
      g.step();
      ctx.synchronize();
      const auto start = clock::now();
      const auto one = g.join(1000 + r);
      ctx.synchronize();
      const auto joined = clock::now();
      g.leave(all[r % all.size()]);
      ctx.synchronize();
      leave.push_back(std::chrono::duration<double, std::micro>(clock::now() - joined).count());
      join.push_back(std::chrono::duration<double, std::micro>(joined - start).count());
      all[r % all.size()] = one;
      const auto drawing = clock::now();
      g.net().initialise(fresh.as<float>(), fresh.as<float>() + g.net().layout().size, r);
      ctx.synchronize();
      draw.push_back(std::chrono::duration<double, std::micro>(clock::now() - drawing).count());
    }
    out["join_us"] = median(join); // with its fresh weights
    out["of_it_drawing_us"] = median(draw);
    out["leave_us"] = median(leave);
  });
  return out;
}

void run(const arguments& args) {
  const auto device = gpu::find_device(gpu::find_devices(), args.device);
  if (!device)
    throw std::runtime_error(device.error().text);
  auto plan = std::make_shared<gpu::gemm_plan>();
  gpu::data_cache cache; // outlives the slots, which hold its copies
  const auto data = args.limits ? nullptr : load(args);
  std::vector<std::unique_ptr<gpu::slot_worker>> slots;
  for (unsigned i = 0; i < args.slots; ++i) {
    gpu::slot_options o;
    o.device = *device;
    o.index = i;
    o.plan = plan;
    o.math = args.tf32 ? gpu::math_mode::tf32 : gpu::math_mode::fp32;
    o.capture = args.no_capture ? gpu::capture_mode::never : gpu::capture_mode::automatic;
    if (const auto& cores = device->cores; !cores.empty() && args.slots > 1)
      o.cores = {cores[i % cores.size()]};
    slots.push_back(std::make_unique<gpu::slot_worker>(o));
  }
  if (args.limits) {
    const auto x = measure_limits(args, slots, device->kind == gpu::device_kind::cuda);
    if (args.as_json)
      std::cout << x.dump() << '\n';
    else
      std::cout << "copies within device memory: " << x["copy_bytes_per_second"].get<double>() / 1e9
                << " GB/s read and written; large products: " << x["product_flops_per_second"].get<double>() / 1e12 << " TFLOP/s\n";
    return;
  }
  for (const auto members : args.members) {
    if (args.steps > 0) {
      std::cout << only_steps(args, *slots.front(), cache, data, members).dump() << std::endl;
      continue;
    }
    const auto x = args.join ? measure_join(args, *slots.front(), cache, data, members) : measure(args, slots, cache, data, members);
    if (args.as_json)
      std::cout << x.dump() << '\n';
    else if (args.join)
      std::cout << args.model << ", " << members << " members: join " << x["join_us"].get<double>() << " us (drawing its weights "
                << x["of_it_drawing_us"].get<double>() << " us), leave " << x["leave_us"].get<double>() << " us\n";
    else
      std::cout << args.model << ' ' << args.precision << ", " << members << " members on " << args.slots << " slots: "
                << static_cast<long>(x["fused_samples_per_second"].get<double>()) << " samples/s fused, "
                << static_cast<long>(x["unfused_samples_per_second"].get<double>()) << " unfused, ratio " << x["ratio"].get<double>()
                << " (" << x["ratio_least"].get<double>() << " to " << x["ratio_most"].get<double>() << "); by CPU time "
                << static_cast<long>(x["fused_samples_per_cpu_second"].get<double>()) << " and "
                << static_cast<long>(x["unfused_samples_per_cpu_second"].get<double>()) << ", ratio " << x["cpu_ratio"].get<double>()
                << '\n';
    std::cout.flush();
  }
}

} // namespace

int main(int argc, char** argv) {
  arguments args;
  CLI::App app{"Many models at once: steps of all as one against each for itself.", "bench_fusion"};
  app.add_option("--model", args.model)->check(CLI::IsMember(bench::model_names()))->capture_default_str();
  app.add_option("--members", args.members, "How many models at once")->delimiter(',')->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--slots", args.slots)->check(CLI::Range(1u, 4096u))->capture_default_str();
  app.add_option("--rounds", args.rounds)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--seconds", args.seconds, "Of each measurement")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--precision", args.precision)->check(CLI::IsMember({"fp32", "bf16"}))->capture_default_str();
  app.add_option("--device", args.device, "cpu, cuda, cuda:1, a GPU's UUID")->capture_default_str();
  app.add_option("--block", args.block, "CPU: the most members of a turn; 0: as the product chooses")->check(CLI::NonNegativeNumber);
  app.add_flag("--synthetic", args.synthetic, "Made-up data of the same shape instead of Fashion-MNIST or word lists");
  app.add_option("--examples", args.examples, "With --synthetic: so many")->check(CLI::Range(1000, 100000000))->capture_default_str();
  app.add_flag("--tf32", args.tf32, "GPU: products on tensor cores");
  app.add_flag("--no-capture", args.no_capture, "GPU: every operation of a step is launched by itself");
  app.add_option("--steps", args.steps, "So many steps of all as one and no measurement: for a profiler");
  app.add_flag("--limits", args.limits, "What the slots can copy and compute at most, instead of speed");
  app.add_flag("--join", args.join, "What a member's coming and going costs, instead of speed");
  app.add_flag("--json", args.as_json, "One JSON object a line");
  CLI11_PARSE(app, argc, argv)
  try {
    run(args);
  } catch (const std::exception& e) {
    std::cerr << "bench_fusion: " << e.what() << '\n';
    return 1;
  }
}
