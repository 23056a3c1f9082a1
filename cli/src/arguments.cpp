#include "arguments.hpp"

#include <algorithm>
#include <ostream>
#include <string_view>

#include <nlohmann/json.hpp>

#include "argument_checks.hpp"
#include "commands.hpp"
#include "troupe/core/suggest.hpp"

namespace troupe::cli {

namespace {

void add_flag(CLI::App& app, const std::string& name, bool& into, const std::string& text) {
  app.add_flag(name, into, text)->disable_flag_override(); // no --json=false
}

void add_session(CLI::App& app, session_arguments& a) {
  app.add_option("--slots", a.slots,
                 "How many slots; on the CPU one core each. It and --device replace the experiment's \"slots\", budgets too (default: "
                 "those, or one per GPU, or one per core, but no more than trainers)")
      ->transform(whole_number(1, 4096))
      ->type_name("N");
  app.add_option("--device", a.devices,
                 "Where the slots are: cpu, cuda, cuda:1, a GPU's UUID; may be given several times (default: all GPUs, or the "
                 "CPU where there are none)")
      ->delimiter(',')
      ->check(some_value())
      ->allow_extra_args(false) // what follows is no second device
      ->type_name("DEVICE");
  app.add_option("--workers", a.workers, "Train in N worker processes instead of in this one")
      ->transform(whole_number(0, 1024))
      ->type_name("N");
  add_flag(app, "--json", a.json, "Print one JSON object a line; the last has kind \"result\"");
  add_flag(app, "--quiet,-q", a.quiet, "Print only the results");
}

std::vector<std::string> given_of(const CLI::App& app) {
  std::vector<std::string> out;
  for (const auto* name : {"--slots", "--device", "--workers", "--quiet"})
    if (app.get_option(name)->count() > 0)
      out.emplace_back(name);
  return out;
}

void add_run(CLI::App& app, std::string& run) {
  app.add_option("RUN", run, "The run's directory, such as runs/three_networks-1")->required()->check(some_text());
}

/// Says what was probably meant where a word was not expected.
std::string hint_for(const CLI::App& app, int argc, const char* const* argv) {
  if (argc < 2 || argv[1][0] == '-')
    return {};
  std::vector<std::string> names;
  for (auto* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(sub->get_name());
  std::string word = argv[1];
  return std::find(names.begin(), names.end(), word) == names.end()
             ? "'" + word + "' is no command" + core::suggestion(word, names)
             : std::string{};
}

/// Says which word looks like an option and is none, and what was probably meant.
std::string option_hint(const CLI::App& app, int argc, const char* const* argv) {
  const auto chosen = app.get_subcommands();
  const auto& command = chosen.empty() ? app : *chosen.front();
  std::vector<std::string> names;
  for (const auto* option : command.get_options()) {
    for (const auto& name : option->get_lnames())
      names.push_back("--" + name);
    for (const auto& name : option->get_snames())
      names.push_back("-" + name);
  }
  for (int i = 1; i < argc && argv[i] != std::string_view{"--"}; ++i) {
    const std::string word{argv[i]}, name = word.substr(0, word.starts_with("--") ? word.find('=') : 2);
    if (word.size() < 2 || word.front() != '-' || std::ranges::find(names, name) != names.end())
      continue;
    if (chosen.empty())
      return "'" + word + "' is no option of `troupe` itself, and no command is given";
    return "'" + word + "' is no option of `troupe " + command.get_name() + "`" + core::suggestion(name, names);
  }
  return {};
}

std::string complaint(const CLI::App& app, const CLI::ParseError& e, int argc, const char* const* argv) {
  if (auto hint = hint_for(app, argc, argv); !hint.empty())
    return hint;
  const bool unexpected = dynamic_cast<const CLI::ExtrasError*>(&e) || dynamic_cast<const CLI::RequiredError*>(&e);
  if (auto hint = unexpected ? option_hint(app, argc, argv) : std::string{}; !hint.empty())
    return hint;
  std::string text = e.what();
  if (const auto at = text.find(": 1 required "); at != std::string::npos)
    return text.substr(0, at) + " needs a value";
  constexpr std::string_view twice = ": At Most 1 required but received ";
  if (const auto at = text.find(twice); at != std::string::npos)
    text.replace(at, std::string::npos, " is given " + text.substr(at + twice.size()) + " times");
  return text;
}

/// What the words ask for before it is known whether they make sense.
bool asks_for_json(int argc, const char* const* argv) {
  for (int i = 1; i < argc && argv[i] != std::string_view{"--"}; ++i)
    if (argv[i] == std::string_view{"--json"})
      return true;
  return false;
}

} // namespace

parsed_arguments parse_arguments(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  CLI::App app{"Trains many models at once on few devices.", "troupe"};
  app.set_version_flag("--version", "troupe " TROUPE_VERSION, "Print the version");
  app.require_subcommand(1);
  app.footer("Examples:\n"
             "  troupe run samples/three_networks/experiment.json --slots 2\n"
             "  troupe status runs/three_networks-1\n"
             "  troupe push runs/three_networks-1 --trainer fast lr=0.01\n"
             "  troupe resume runs/three_networks-1\n\n"
             "Exit status: 0 done, 1 failed or interrupted, 2 wrong use. `troupe COMMAND --help` says more about a command.");

  run_arguments run;
  auto* run_app = app.add_subcommand("run", "Run an experiment");
  run_app->add_option("EXPERIMENT", run.experiment, "The experiment file (docs/experiment.md); -: standard input")
      ->required()
      ->check(some_text());
  run_app->add_option("--out", run.out, "The run's directory (default: runs/NAME-1, runs/NAME-2, …: the first that is free)")
      ->check(some_value())
      ->type_name("DIR");
  run_app->add_option("--seed", run.seed, "Instead of the file's seed")->transform(whole_number(0, UINT64_MAX))->type_name("N");
  add_session(*run_app, run.session);
  run_app->footer("Ctrl-C once: every trainer ends its step, all states are saved, and `troupe resume` can go on; twice: leave at "
                  "once.\n\nExamples:\n"
                  "  troupe run experiment.json --slots 4 --device cpu\n"
                  "  troupe run experiment.json --slots 8 --device cuda:0 --device cuda:1 --out /data/run7\n"
                  "  troupe run experiment.json --json | jq 'select(.kind == \"sync_point\")'");

  resume_arguments resume;
  auto* resume_app = app.add_subcommand("resume", "Go on with a run that was stopped, or unpause one that is going on");
  add_run(*resume_app, resume.run);
  resume_app->add_option("--trainer,-t", resume.trainer, "Unpause only this trainer of a run that is going on (default: all)")
      ->check(some_value())
      ->type_name("NAME");
  resume_app->add_flag("--from-start", resume.from_start,
                       "Where checkpoints were saved but none can be used any more: begin again at step 0");
  add_session(*resume_app, resume.session);
  resume_app->footer("Without --slots and --device the slots are those of the experiment file, or the usual ones: they need not be\n"
                     "those that the run had before.\n\n"
                     "Examples:\n  troupe resume runs/three_networks-1\n  troupe resume runs/three_networks-1 --slots 1\n"
                     "  troupe resume runs/three_networks-1 --trainer fast");

  control_arguments control;
  std::vector<std::pair<CLI::App*, control_arguments::verb>> verbs;
  auto add_verb = [&](control_arguments::verb what, const char* name, const char* text) {
    auto* sub = app.add_subcommand(name, text);
    verbs.emplace_back(sub, what);
    add_run(*sub, control.run);
    sub->add_option("--timeout", control.timeout_seconds, "Give up waiting for the answer after so many seconds")
        ->check(real_number(0.001, 1e6))
        ->capture_default_str()
        ->type_name("SECONDS");
    add_flag(*sub, "--json", control.json, "Print the answer as one JSON object");
    return sub;
  };
  auto add_trainer = [&](CLI::App* sub, const char* text) {
    sub->add_option("--trainer,-t", control.trainer, text)->check(some_value())->type_name("NAME");
  };
  using verb = control_arguments::verb;
  add_verb(verb::status, "status", "Show what a run's trainers and slots are doing")
      ->footer("Slots: trainers on it; running: have the device at this moment; waiting: for their turn; busy: share of the time\n"
               "since the slot was opened; fused: share of the steps that several trainers made as one; memory: used, of the\n"
               "budget if there is one; pages: states that went to host memory and came back.\n\n"
               "Examples:\n  troupe status runs/three_networks-1\n"
               "  troupe status runs/three_networks-1 --json | jq '.slots[] | [.slot, .device, .trainers, .memory_used]'");
  auto* pause = add_verb(verb::pause, "pause", "Pause trainers between two steps; `troupe resume` unpauses");
  add_trainer(pause, "Only this trainer (default: all)");
  pause->footer("Examples:\n  troupe pause runs/three_networks-1\n  troupe pause runs/three_networks-1 --trainer fast");
  auto* push = add_verb(verb::push, "push", "Give trainers new hyperparameters at their next step");
  add_trainer(push, "Only this trainer (default: all)");
  push->add_option("ASSIGNMENT", control.assignments, "What to set, such as lr=0.01")->required()->check(some_text());
  push->footer("Refused whole if a key or value is wrong; answered with the step at which it took effect.\n\nExamples:\n"
               "  troupe push runs/three_networks-1 lr=0.01\n"
               "  troupe push runs/three_networks-1 --trainer fast lr=0.01 momentum=0.8");
  auto* stop = add_verb(verb::stop, "stop", "Stop trainers; a run without trainers is done");
  add_trainer(stop, "Only this trainer (default: all, which ends the run)");
  stop->footer("Example:\n  troupe stop runs/three_networks-1 --trainer slow");
  auto* add = add_verb(verb::add, "add", "Add a trainer to a run that is going on");
  add->add_option("TRAINER", control.entry, "A file with an entry as in the experiment's \"trainers\", or the JSON itself")
      ->required()
      ->check(some_text());
  add->footer("Example:\n  troupe add runs/three_networks-1 '{\"name\": \"late\", \"hyperparameters\": {\"lr\": 0.02}}'");

  doctor_arguments doctor;
  auto* doctor_app = app.add_subcommand("doctor", "List devices and what a slot on each gets, versions, data, and why no GPU is used");
  add_flag(*doctor_app, "--json", doctor.json, "Print one JSON object");
  doctor_app->footer("Example:\n  troupe doctor");

  check_arguments check;
  auto* check_app = app.add_subcommand("check", "Check an experiment file without running it");
  check_app->add_option("EXPERIMENT", check.experiment, "The experiment file; -: standard input")->required()->check(some_text());
  add_flag(*check_app, "--json", check.json, "Print one JSON object");
  check_app->footer("Exit status 0: right; 2: it has faults, which are all listed with their places.\n\nExample:\n"
                    "  troupe check samples/three_networks/experiment.json");

  show_arguments show;
  auto* show_app = app.add_subcommand("show", "Show sync points and results of a run, also of one that has ended");
  add_run(*show_app, show.run);
  add_flag(*show_app, "--json", show.json, "Print one JSON object");
  show_app->footer("Example:\n  troupe show runs/three_networks-1");

  const bool json = asks_for_json(argc, argv);
  if (argc < 2) {
    err << app.help();
    return {std::nullopt, exit_wrong_use, json};
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) { // help and version
    return {std::nullopt, app.exit(e, out, err), json};
  } catch (const CLI::ParseError& e) {
    const auto text = complaint(app, e, argc, argv);
    if (json)
      print_json(out, failed_result(text));
    else
      err << "troupe: " << text << "\nRun with --help for more information.\n";
    return {std::nullopt, exit_wrong_use, json};
  }
  if (run_app->parsed()) {
    run.session.given = given_of(*run_app);
    return {run, exit_done, json};
  }
  if (resume_app->parsed()) {
    resume.session.given = given_of(*resume_app);
    return {resume, exit_done, json};
  }
  if (doctor_app->parsed())
    return {doctor, exit_done, json};
  if (check_app->parsed())
    return {check, exit_done, json};
  if (show_app->parsed())
    return {show, exit_done, json};
  for (auto& [sub, what] : verbs)
    if (sub->parsed())
      control.what = what;
  return {control, exit_done, json};
}

} // namespace troupe::cli
