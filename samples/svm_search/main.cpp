// Random search for the settings of a support vector machine: hundreds of draws, five folds each, every fold
// a job on a slot.

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include <nlohmann/json.hpp>

#include "search.hpp"
#include "troupe/core/search_space.hpp"
#include "troupe/gpu/device.hpp"
#include "troupe/gpu/slots.hpp"

using namespace troupe;
using nlohmann::json;

namespace {

constexpr auto usage =
    "usage: svm_search [options]\n"
    "  --draws N          how many settings are tried (300)\n"
    "  --seed N           which ones (1)\n"
    "  --draws-file FILE  these instead: [{\"C\": 1, \"gamma\": 0.01, \"tol\": 0.001, \"class_weight\": "
    "null}, …]\n"
    "  --folds N          of the cross-validation (5)\n"
    "  --slots N          folds that are trained at the same time (one per core)\n"
    "  --kernel KIND      shared: computed once for all folds of a draw; own: by libsvm in each fold "
    "(shared)\n"
    "  --data FILE        comma-separated numbers, the class last (the digits of Debian's python3-sklearn)\n"
    "  --generated        made-up pictures instead\n"
    "  --json             one JSON object with every draw; no progress\n";

struct arguments {
  unsigned draws = 300, slots = 0;
  std::uint64_t seed = 1;
  int folds = 5;
  std::string draws_file, data = svm_search::digits_file;
  bool share_kernels = true, generated = false, as_json = false, help = false;
};

core::error wrong(std::string text) { return {core::errc::invalid_argument, std::move(text)}; }

core::result<arguments> parse(int argc, char** argv) {
  arguments out;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--help" || arg == "--generated" || arg == "--json") {
      (arg == "--help" ? out.help : arg == "--json" ? out.as_json : out.generated) = true;
      continue;
    }
    const bool number = arg == "--draws" || arg == "--seed" || arg == "--folds" || arg == "--slots";
    if (!number && arg != "--draws-file" && arg != "--kernel" && arg != "--data")
      return wrong(arg + " is no option");
    if (i + 1 == argc)
      return wrong(arg + " needs a value");
    const std::string value = argv[++i];
    if (number) {
      char* end = nullptr;
      const auto n = std::strtol(value.c_str(), &end, 10);
      const long least = arg == "--seed" ? 0 : arg == "--folds" ? 2 : 1;
      const long most = arg == "--slots" ? 256 : arg == "--folds" ? 1000 : 1'000'000;
      if (value.empty() || *end != '\0' || n < least || n > most)
        return wrong(arg + " must be a number from " + std::to_string(least) + " to " + std::to_string(most) +
                     ", not " + value);
      if (arg == "--draws")
        out.draws = static_cast<unsigned>(n);
      else if (arg == "--seed")
        out.seed = static_cast<std::uint64_t>(n);
      else if (arg == "--folds")
        out.folds = static_cast<int>(n);
      else
        out.slots = static_cast<unsigned>(n);
    } else if (arg == "--kernel") {
      if (value != "shared" && value != "own")
        return wrong("--kernel must be shared or own, not " + value);
      out.share_kernels = value == "shared";
    } else {
      (arg == "--data" ? out.data : out.draws_file) = value;
    }
  }
  return out;
}

/// `count` numbers from 10^low to 10^high, evenly spaced in the logarithm.
json logarithmic(double low, double high, int count) {
  json out = json::array();
  for (int i = 0; i < count; ++i)
    out.push_back(std::pow(10.0, low + (high - low) * i / (count - 1)));
  return out;
}

/// Draws from the space that scikit-learn's and joblib's users know from its documentation.
std::vector<svm_search::settings> draw(unsigned count, std::uint64_t seed) {
  const json space = {{"C", {{"type", "choice"}, {"values", logarithmic(-6, 6, 30)}}},
                      {"gamma", {{"type", "choice"}, {"values", logarithmic(-8, 8, 30)}}},
                      {"tol", {{"type", "choice"}, {"values", logarithmic(-4, -1, 30)}}},
                      {"class_weight", {{"type", "choice"}, {"values", {"none", "balanced"}}}}};
  const auto made = std::get<core::search_space>(core::search_space::from_json(space, ""));
  std::vector<svm_search::settings> out;
  for (unsigned i = 0; i < count; ++i) {
    core::random_stream rng{seed, "svm_search", i};
    const auto hp = made.sample(rng);
    out.push_back({*hp.number("C", 0), *hp.number("gamma", 0), *hp.number("tol", 0),
                   *hp.text("class_weight", "") == "balanced"});
  }
  return out;
}

core::result<std::vector<svm_search::settings>> read_draws(const std::string& path) {
  std::ifstream file{path};
  if (!file)
    return core::error{core::errc::not_found, path + " cannot be read"};
  const auto list = json::parse(file, nullptr, false);
  if (!list.is_array() || list.empty())
    return wrong(path + " must hold a JSON array of draws");
  std::vector<svm_search::settings> out;
  for (const auto& d : list) {
    const auto where = path + ": /" + std::to_string(out.size());
    if (!d.is_object())
      return wrong(where + " is no object");
    for (const auto& [key, value] : d.items())
      if (key != "C" && key != "gamma" && key != "tol" && key != "class_weight")
        return wrong(where + "/" + key + " is no setting; there are C, gamma, tol and class_weight");
    svm_search::settings s;
    for (const auto& [key, to] : {std::pair{"C", &s.c}, {"gamma", &s.gamma}, {"tol", &s.tol}}) {
      if (!d.contains(key) || !d[key].is_number())
        return wrong(where + "/" + key + " must be a number");
      *to = d[key];
    }
    const auto weight = d.value("class_weight", json{});
    if (!weight.is_null() && weight != "balanced")
      return wrong(where + "/class_weight must be null or \"balanced\"");
    s.balanced = !weight.is_null();
    out.push_back(s);
  }
  return out;
}

json to_json(const svm_search::settings& s) {
  return {{"C", s.c},
          {"gamma", s.gamma},
          {"tol", s.tol},
          {"class_weight", s.balanced ? json("balanced") : json()}};
}
std::string to_text(const svm_search::settings& s) {
  char out[160];
  std::snprintf(out, sizeof out, "C=%.4g gamma=%.4g tol=%.4g%s", s.c, s.gamma, s.tol,
                s.balanced ? " balanced" : "");
  return out;
}

/// Ctrl-C, and what a shell or a service manager sends.
sigset_t stop_signals() {
  sigset_t out;
  sigemptyset(&out);
  sigaddset(&out, SIGINT);
  sigaddset(&out, SIGTERM);
  return out;
}

/// Turns these into a call, on a thread of its own. They must be blocked before any thread is made.
class on_stop_signal {
public:
  explicit on_stop_signal(std::function<void()> f)
      : thread_{[this, f = std::move(f)] {
          const auto set = stop_signals();
          for (int n = 0, which = 0; sigwait(&set, &which) == 0 && !over_;)
            if (++n == 1)
              f();
            else
              _exit(130); // as the shell reports death by Ctrl-C
        }} {}
  ~on_stop_signal() {
    over_ = true;
    pthread_kill(thread_.native_handle(), SIGTERM);
    thread_.join();
  }

private:
  std::atomic<bool> over_{false};
  std::thread thread_;
};

int fail(const core::error& e) {
  std::fprintf(stderr, "%s\n", e.text.c_str());
  return 1;
}

} // namespace

int main(int argc, char** argv) {
  const auto args = parse(argc, argv);
  if (!args) {
    std::fprintf(stderr, "%s\n%s", args.error().text.c_str(), usage);
    return 2;
  }
  if (args->help)
    return std::fputs(usage, stdout), 0;
  const auto stops = stop_signals();
  pthread_sigmask(SIG_BLOCK, &stops, nullptr);
  svm_set_print_string_function([](const char*) {}); // libsvm tells of every fold

  // 1. The data and the draws.
  auto data = args->generated
                  ? core::result<svm_search::examples>{svm_search::generated_digits(600, args->seed)}
                  : svm_search::load_csv(args->data);
  if (!data)
    return fail(data.error());
  auto draws = args->draws_file.empty()
                   ? core::result<std::vector<svm_search::settings>>{draw(args->draws, args->seed)}
                   : read_draws(args->draws_file);
  if (!draws)
    return fail(draws.error());

  const auto begin = std::chrono::steady_clock::now();
  const auto cpu_begin = std::clock();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  auto problem = svm_search::problem::make(*data, args->folds);
  if (!problem)
    return fail(problem.error());

  // 2. Slots: each is a thread that computes. There are far more folds than slots; that is the normal case.
  const auto devices = gpu::find_devices();
  const core::slot_request wanted{
      .device = "cpu", .count = args->slots != 0 ? args->slots : devices.devices.front().usable_cores};
  std::vector<core::error> faults;
  std::vector<std::shared_ptr<gpu::slot_worker>> slots; // outlive the actors
  for (auto& slot : gpu::make_slots(devices, {&wanted, 1}, gpu::math_mode::fp32, "--slots", faults))
    slots.push_back(std::make_shared<gpu::slot_worker>(std::move(slot)));
  if (!faults.empty())
    return fail(faults.front());

  // 3. A worker on each slot, and the searcher that hands out the folds.
  actors::config<caf::id_block::svm_search> cfg;
  caf::actor_system system{cfg};
  std::vector<svm_search::worker> workers;
  for (const auto& slot : slots)
    workers.push_back(svm_search::spawn_worker(system, actors::gpu_place{system, slot}, *problem));
  svm_search::search_options options;
  options.draws = std::move(*draws);
  options.folds = args->folds;
  options.share_kernels = args->share_kernels;
  if (!args->as_json)
    options.on_draw = [seconds, over = std::size_t{0}, best = -1.0](const svm_search::search_result& r,
                                                                    std::size_t i) mutable {
      const auto& d = r.draws[i];
      ++over;
      if (!d.failure.empty())
        std::printf("draw %zu failed (%s): %s\n", i, to_text(d.with).c_str(), d.failure.c_str());
      if (d.score() > best)
        std::printf("%6.1f s  %3zu of %zu draws  %6.2f%%  %s\n", seconds(), over, r.draws.size(),
                    100 * (best = d.score()), to_text(d.with).c_str());
      std::fflush(stdout);
    };
  const auto searcher = svm_search::spawn_searcher(system, std::move(workers), std::move(options));
  const on_stop_signal interrupt{
      [searcher] { // after the system: a handle that outlives it would keep it waiting
        std::fputs("stopping after the folds at hand; Ctrl-C again ends at once\n", stderr);
        actors::anon_mail(svm_search::stop_search{}).send(searcher);
      }};

  // 4. Ask for the search, and wait, as a program's main thread may.
  std::optional<svm_search::search_result> found;
  caf::scoped_actor self{system};
  actors::mail(self, svm_search::run_search{})
      .request(searcher, std::chrono::minutes{60 * 24 * 365})
      .receive([&](svm_search::search_result& x) { found = std::move(x); },
               [](const caf::error& e) { std::fprintf(stderr, "%s\n", actors::error_text(e).c_str()); });
  if (!found)
    return 1;

  // 5. What came of it.
  const auto wall = seconds();
  const auto cpu = static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC;
  double idle = 0;
  for (const auto& slot : slots)
    idle += slot->snapshot().idle_seconds;
  std::size_t over = 0, failed = 0;
  for (const auto& d : found->draws) {
    over += d.open == 0 ? 1 : 0;
    failed += d.failure.empty() ? 0 : 1;
  }
  const auto* best = found->best();
  if (args->as_json) {
    json out = {{"slots", slots.size()},
                {"folds", args->folds},
                {"kernel", args->share_kernels ? "shared" : "own"},
                {"draws", found->draws.size()},
                {"over", over},
                {"failed", failed},
                {"stopped", found->stopped},
                {"seconds", wall},
                {"cpu_seconds", cpu},
                {"idle_seconds", idle},
                {"best", nullptr},
                {"results", json::array()}};
    const auto real = [](double x) { return std::isnan(x) ? json() : json(x); };
    for (const auto& d : found->draws) {
      auto entry = to_json(d.with);
      entry["score"] = real(d.score());
      for (const double a : d.folds)
        entry["folds"].push_back(real(a));
      if (!d.failure.empty())
        entry["failure"] = d.failure;
      if (&d == best) {
        out["best"] = to_json(d.with);
        out["best"]["draw"] = best - found->draws.data();
        out["best"]["score"] = d.score();
      }
      out["results"].push_back(std::move(entry));
    }
    std::printf("%s\n", out.dump().c_str());
  } else {
    std::printf(
        "%zu of %zu draws, %d folds each, on %zu slots: %.1f s (%.1f s of CPU time, slots idle %.1f%%)\n",
        over, found->draws.size(), args->folds, slots.size(), wall, cpu,
        100 * idle / (wall * static_cast<double>(slots.size())));
    if (failed > 0)
      std::printf("%zu draws failed\n", failed);
    if (best)
      std::printf("best: %.4f%%, draw %td: %s\n", 100 * best->score(), best - found->draws.data(),
                  to_text(best->with).c_str());
  }
  return found->stopped ? 130 : failed > 0 || !best ? 1 : 0;
}
