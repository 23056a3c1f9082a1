#include "session.hpp"

#include <future>
#include <ostream>

#include <nlohmann/json.hpp>

#include "control.hpp"
#include "interruption.hpp"
#include "listeners.hpp"
#include "product_plan.hpp"
#include "signals.hpp"
#include "slots.hpp"
#include "troupe/net/cluster.hpp"
#include "troupe/net/control.hpp"

namespace troupe::cli {

namespace {

int status_of(const core::error& e) {
  switch (e.code) {
  case core::errc::invalid_argument:
  case core::errc::not_found:
  case core::errc::refused: return exit_wrong_use;
  default: return exit_failed;
  }
}

} // namespace

int cannot_start(const session_arguments& a, output to, const std::string& text, int status,
                 const std::vector<core::error>& faults) {
  if (a.json) {
    print_json(to.out, failed_result(text, faults));
    return status;
  }
  to.err << "troupe: " << text << "\n";
  for (auto& e : faults)
    to.err << "  " << e.text << "\n";
  return status;
}

int run_session(core::experiment exp, const std::string& directory, session_start from, const session_arguments& a,
                const registries& with, output to) {
  screen terminal{to.out, !a.json && !a.quiet && is_live_terminal()};
  auto say = [&](std::string_view text) {
    if (a.json)
      to.err << text << std::flush;
    else
      terminal.print(text);
  };
  interruption on_signals{say};
  signal_watch signals{[&](int number) { on_signals.on_signal(number); }, a.workers > 0}; // before any other thread

  auto count = a.slots;
  if (a.workers > 0 && count && *count < a.workers)
    return cannot_start(a, to, std::to_string(a.workers) + " workers need at least as many slots: --slots " + std::to_string(*count),
                        exit_wrong_use);
  if (count && a.devices.size() > *count)
    return cannot_start(a, to, "--slots " + std::to_string(*count) + " leaves '" + a.devices[*count] +
                                   "' without a slot: give at least as many slots as devices", exit_wrong_use);
  const auto devices = gpu::find_devices();
  auto chosen = choose_slots(exp, count, a.devices, devices, a.workers);
  if (const auto* few = std::get_if<std::vector<gpu::slot_options>>(&chosen); few && few->size() < a.workers) {
    // Each worker has one at least, and they divide what there is.
    if (!exp.slots.empty() && a.devices.empty())
      return cannot_start(a, to, std::to_string(a.workers) + " workers need at least as many slots: the experiment has " +
                                     std::to_string(few->size()), exit_wrong_use);
    chosen = choose_slots(exp, a.workers, a.devices, devices, a.workers);
  }
  if (auto* faults = std::get_if<std::vector<core::error>>(&chosen))
    return cannot_start(a, to, "the slots cannot be had", exit_wrong_use, *faults);
  auto slots = std::get<std::vector<gpu::slot_options>>(std::move(chosen));
  const auto all_slots = slots;
  if (const auto faults = check_pins(exp, slots, a.workers, devices); !faults.empty())
    return cannot_start(a, to, "trainers have slots of their own that are not there", exit_wrong_use, faults);
  std::string note;
  auto plan = plan_products(exp, *with.workloads, slots, from == session_start::fresh ? "" : directory, note);
  if (!note.empty())
    say(note + "\n");

  actors::run_options options;
  options.workloads = with.workloads;
  options.policies = with.policies;
  options.directory = directory;
  options.resume = from != session_start::fresh;
  options.from_start = from == session_start::step_zero;
  options.progress_interval = progress_interval(a, terminal.live(), exp.trainers.size());
  std::promise<void> reachable;
  if (a.json)
    options.listener = std::make_shared<json_listener>(to.out, a.quiet, reachable.get_future().share());
  else
    options.listener = std::make_shared<text_listener>(terminal, a.quiet, reachable.get_future().share());

  std::unique_ptr<net::cluster_head> cluster;
  const struct followers {
    interruption& of;
    ~followers() { of.lead(nullptr); }
  } before_the_cluster_ends{on_signals};
  if (a.workers > 0) {
    net::cluster_options c;
    c.command = {"/proc/self/exe", "worker"};
    c.slots = net::deal_slots(slots, a.workers);
    for (const auto& x : notes_on_shared_gpus(c.slots))
      to.err << "troupe: " << x << std::endl;
    c.plan = plan->to_json();
    c.slice = std::chrono::microseconds{static_cast<std::int64_t>(exp.quantum_ms * 1000)};
    c.log = [&](const std::string& line) {
      if (!a.quiet)
        say(line + "\n");
    };
    auto started = net::cluster_head::start(std::move(c));
    if (!started)
      return cannot_start(a, to, started.error().text, exit_failed);
    cluster = *std::move(started);
    on_signals.lead(cluster.get());
    cluster->prepare(options);
  } else {
    options.slots = std::move(slots);
  }
  options.exp = std::move(exp);
  auto run = actors::run_session::start(std::move(options));
  if (!run)
    return cannot_start(a, to, run.error().text, status_of(run.error()));
  if (const auto& resumed = (*run)->resumed()) { // whoever hears nothing else hears this
    for (const auto& x : resumed->damage)
      to.err << "troupe: " << x.text << std::endl;
    for (const auto& x : resumed->notes)
      to.err << "troupe: " << x << std::endl;
  }
  auto now_reachable = std::move(reachable); // gone before the run, whose end waits for the listener, whatever is thrown here
  if (cluster)
    cluster->attach(**run);
  on_signals.begin((*run)->control());
  if (auto kept = keep_plan(*plan, directory); !kept)
    say("troupe: " + kept.error().text + "; a resumption may differ in the last bits\n");

  const auto check_entry = [&](const std::string& entry) { return check_pin_of(entry, all_slots, a.workers, devices); };
  control_desk desk{(*run)->control(), check_entry};
  auto server = net::control_server::start({directory, {}}, [&](nlohmann::json request, net::control_server::reply answer) {
    desk.handle(request, std::move(answer));
  });
  if (!server)
    say("troupe: other commands cannot reach this run: " + server.error().text + "\n");
  now_reachable.set_value();
  auto summary = (*run)->wait();
  desk.finish(); // who asked for what ended the run hears so before the line is closed
  if (server)
    (*server)->stop();
  run->reset(); // before the workers it uses; the listener has heard everything then
  return summary.outcome == actors::run_outcome_kind::done ? exit_done : exit_failed;
}

} // namespace troupe::cli
