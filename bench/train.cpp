// Training speed on the CPU: one worker thread per core, several models each, through the same workloads as `troupe run`; or, with
// --epochs, accuracy. bench/peers/train_torch.py does the same work. `bench_train --help` lists the options.

#include <atomic>
#include <barrier>
#include <chrono>
#include <ctime>
#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "fma_peak.hpp"
#include "models.hpp"
#include "troupe/gpu/context.hpp"
#include "troupe/gpu/dataset.hpp"
#include "troupe/gpu/device.hpp"
#include "troupe/gpu/gemm_plan.hpp"
#include "troupe/gpu/network.hpp"
#include "troupe/gpu/transformer.hpp"
#include "troupe/gpu/workload.hpp"

namespace {

using namespace troupe;
using nlohmann::json;

struct arguments {
  std::string model = "mlp";
  std::string precision = "fp32";
  std::string device = "cpu"; ///< a selector, see gpu::find_device
  unsigned threads = 2;
  unsigned models = 2; ///< per thread
  double seconds = 3;
  unsigned epochs = 0, seeds = 3;
  double lr = 0.03;
  bool synthetic = false, as_json = false;
};

/// The models of the comparison; train_torch.py has the same.
struct model {
  std::string type;
  json options;
  std::int64_t batch;
};

model make_model(const arguments& args) {
  json options = {{"batch", bench::batch_of(args.model)}, {"precision", args.precision}};
  if (args.model == "transformer") {
    options["data"] = args.synthetic ? json{{"type", "synthetic_text"}, {"classes", 5}, {"vocabulary", 256}} : json("languages");
    return {"transformer", options, bench::batch_of(args.model)};
  }
  options["data"] = args.synthetic ? json{{"type", "synthetic"}, {"image", {28, 28, 1}}} : json("fashion_mnist");
  const auto net = bench::network_of(args.model);
  options[net.conv.empty() ? "hidden" : "dense"] = net.hidden;
  for (const auto& c : net.conv)
    options["conv"].push_back({{"filters", c.filters}, {"kernel", c.kernel}, {"pool", c.pool}});
  return {net.conv.empty() ? "mlp" : "cnn", options, bench::batch_of(args.model)};
}

/// What the threads share.
struct shared_state {
  const arguments& args;
  const model& what;
  const gpu::workload_registry& registry;
  gpu::slot_options slot;
  std::barrier<> all;
  std::uint64_t steps_per_epoch = 1;
  std::vector<double> rate, cpu_rate, peak; ///< by thread
  std::vector<double> accuracy;             ///< by seed
  std::vector<std::exception_ptr> failures;
};

gpu::slot_options slot_of(const gpu::slot_options& base, unsigned thread) {
  auto slot = base;
  slot.index = thread;
  if (const auto& cores = slot.device.cores; !cores.empty())
    slot.cores = {cores[thread % cores.size()]};
  return slot;
}

std::unique_ptr<gpu::workload> make(shared_state& s, gpu::context& ctx, std::uint64_t seed, double lr) {
  auto made = s.registry.make(ctx, s.what.type, {"bench", seed, &s.what.options, bench::hyperparameters_of(s.what.type, lr)});
  if (!made)
    throw std::runtime_error(made.error().text);
  return std::move(*made);
}

/// Of the calling thread: what another process takes of the core does not count.
double cpu_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

std::uint64_t run(gpu::context& ctx, gpu::workload& model, std::uint64_t steps) {
  gpu::run_report done;
  model.run(ctx, steps, done);
  return done.steps;
}

/// Several models take turns, 16 steps each, as a slot's run queue has them.
void measure_speed(shared_state& s, unsigned thread) {
  constexpr std::uint64_t quantum = 16;
  gpu::context ctx(slot_of(s.slot, thread));
  std::vector<std::unique_ptr<gpu::workload>> models;
  for (unsigned k = 0; k < s.args.models; ++k)
    models.push_back(make(s, ctx, 100 + thread * 100 + k, 0.01 * (1 + k % 3)));
  for (auto& m : models)
    run(ctx, *m, 2 * quantum);
  s.all.arrive_and_wait();
  s.peak[thread] = bench::measure_fma_peak(0.2);
  s.all.arrive_and_wait();
  using clock = std::chrono::steady_clock;
  const auto start = clock::now();
  const auto cpu_start = cpu_seconds();
  std::uint64_t steps = 0;
  double seconds = 0;
  while (seconds < s.args.seconds) {
    for (auto& m : models)
      steps += run(ctx, *m, quantum);
    seconds = std::chrono::duration<double>(clock::now() - start).count();
  }
  const auto samples = static_cast<double>(steps) * static_cast<double>(s.what.batch);
  s.rate[thread] = samples / seconds;
  s.cpu_rate[thread] = samples / (cpu_seconds() - cpu_start);
  s.all.arrive_and_wait();
}

void measure_accuracy(shared_state& s, unsigned thread) {
  gpu::context ctx(slot_of(s.slot, thread));
  for (auto seed = thread; seed < s.args.seeds; seed += s.args.threads) {
    auto m = make(s, ctx, 1 + seed, s.args.lr);
    while (m->evaluate(ctx).epoch < s.args.epochs)
      run(ctx, *m, s.steps_per_epoch);
    s.accuracy[seed] = m->evaluate(ctx).accuracy;
  }
}

double sum(const std::vector<double>& xs) {
  double out = 0;
  for (double x : xs)
    out += x;
  return out;
}

std::uint64_t steps_per_epoch(const model& what, const arguments& args) {
  if (args.epochs == 0)
    return 1;
  std::vector<core::error> faults;
  const auto data = gpu::load_dataset(gpu::data_spec::from_json(what.options["data"], "/data", faults));
  if (!faults.empty() || !data)
    throw std::runtime_error(faults.empty() ? data.error().text : faults.front().text);
  return static_cast<std::uint64_t>(data->train.size() / what.batch);
}

json run(const arguments& args) {
  const auto what = make_model(args);
  const auto registry = gpu::builtin_workloads();
  std::vector<core::error> faults;
  registry.check(what.type, what.options, bench::hyperparameters_of(what.type, args.lr), "", faults);
  if (!faults.empty())
    throw std::runtime_error(faults.front().text);
  gpu::slot_options slot;
  const auto device = gpu::find_device(gpu::find_devices(), args.device);
  if (!device)
    throw std::runtime_error(device.error().text);
  slot.device = *device;
  slot.plan = std::make_shared<gpu::gemm_plan>();
  double flops = 0;
  {
    gpu::context ctx(slot);
    flops = what.type == "transformer" ? gpu::transformer(ctx, bench::transformer_of(), 1, 1).flops_per_example()
                                       : gpu::network(ctx, bench::network_of(args.model), 1, 1).flops_per_example();
  }
  shared_state s{args, what, registry, slot, std::barrier<>(args.threads), steps_per_epoch(what, args), std::vector<double>(args.threads),
                 std::vector<double>(args.threads), std::vector<double>(args.threads), std::vector<double>(args.seeds),
                 std::vector<std::exception_ptr>(args.threads)};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < args.threads; ++t)
    threads.emplace_back([&s, t, &args] {
      try {
        args.epochs > 0 ? measure_accuracy(s, t) : measure_speed(s, t);
      } catch (...) {
        s.failures[t] = std::current_exception();
        s.all.arrive_and_drop();
      }
    });
  for (auto& t : threads)
    t.join();
  for (const auto& f : s.failures)
    if (f)
      std::rethrow_exception(f);

  json out = {{"program", "troupe"}, {"model", args.model}, {"precision", args.precision}, {"threads", args.threads},
              {"batch", what.batch}, {"data", what.options["data"]}};
  if (args.epochs > 0) {
    out["epochs"] = args.epochs;
    out["lr"] = args.lr;
    out["accuracy"] = s.accuracy;
    return out;
  }
  const auto rate = sum(s.rate), peak = sum(s.peak);
  out["models_per_thread"] = args.models;
  out["samples_per_second"] = rate;
  out["samples_per_cpu_second"] = sum(s.cpu_rate);
  out["gflops"] = rate * flops / 1e9;
  out["fma_peak_gflops"] = peak;
  out["share_of_peak"] = peak > 0 ? rate * flops / 1e9 / peak : 0;
  return out;
}

} // namespace

int main(int argc, char** argv) {
  arguments args;
  CLI::App app{"Training speed, or with --epochs accuracy.", "bench_train"};
  app.add_option("--model", args.model)->check(CLI::IsMember({"mlp", "small", "cnn", "transformer"}))->capture_default_str();
  app.add_option("--precision", args.precision)->check(CLI::IsMember({"fp32", "bf16"}))->capture_default_str();
  app.add_option("--device", args.device, "cpu, cuda, cuda:1, a GPU's UUID")->capture_default_str();
  app.add_option("--threads", args.threads)->check(CLI::Range(1u, 4096u))->capture_default_str();
  app.add_option("--models", args.models, "Of each thread")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--seconds", args.seconds)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--epochs", args.epochs, "Measure accuracy after so many")->check(CLI::PositiveNumber);
  app.add_option("--seeds", args.seeds, "With --epochs: how many trainings")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--lr", args.lr, "With --epochs")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_flag("--synthetic", args.synthetic, "Made-up data of the same shape instead of Fashion-MNIST or word lists");
  app.add_flag("--json", args.as_json, "One JSON object");
  CLI11_PARSE(app, argc, argv)
  try {
    const auto r = run(args);
    if (args.as_json) {
      std::cout << r.dump() << '\n';
    } else if (args.epochs > 0) {
      std::cout << args.model << ' ' << args.precision << ", " << args.epochs << " epochs, accuracy:";
      for (double a : r["accuracy"])
        std::cout << ' ' << a;
      std::cout << '\n';
    } else {
      std::cout << args.model << ' ' << args.precision << ", " << args.threads << " threads x " << args.models
                << " models: " << static_cast<long>(r["samples_per_second"].get<double>()) << " samples/s ("
                << static_cast<long>(r["samples_per_cpu_second"].get<double>()) << " by CPU time), " << r["gflops"].get<double>() << " GFLOP/s, " << 100 * r["share_of_peak"].get<double>() << "% of the measured "
                << r["fma_peak_gflops"].get<double>() << "\n";
    }
  } catch (const std::exception& e) {
    std::cerr << "bench_train: " << e.what() << '\n';
    return 1;
  }
}
