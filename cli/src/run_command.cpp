#include <ostream>

#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "control.hpp"
#include "files.hpp"
#include "session.hpp"
#include "troupe/core/run_reader.hpp"
#include "troupe/net/control.hpp"

namespace troupe::cli {

int run_experiment_file(const run_arguments& a, const registries& with, output to) {
  auto loaded = load_experiment(a.experiment, a.seed, with);
  if (auto* faults = std::get_if<std::vector<core::error>>(&loaded)) {
    if (faults->front().code != core::errc::invalid_argument) // it could not even be read
      return cannot_start(a.session, to, faults->front().text, exit_wrong_use);
    return cannot_start(a.session, to, (a.experiment == "-" ? "standard input" : "'" + a.experiment + "'") + " has faults",
                        exit_wrong_use, *faults);
  }
  auto& exp = std::get<core::experiment>(loaded);
  auto directory = claimed_directory::claim(a.out, exp.name);
  if (!directory)
    return cannot_start(a.session, to, directory.error().text, status_of_refusal(directory.error().code));
  return run_session(std::move(exp), directory->path(), session_start::fresh, a.session, with, to);
}

namespace {

int unpause(const resume_arguments& a, output to) {
  if (!a.session.given.empty()) {
    std::string options;
    for (auto& x : a.session.given)
      options += (options.empty() ? "" : ", ") + x;
    const auto text = "the run in " + a.run + " is going on, and `troupe resume` only unpauses its trainers: there is nothing for " +
                      options + " to do (to go on with other slots, end the run with Ctrl-C first)";
    return cannot_start(a.session, to, text, exit_wrong_use);
  }
  nlohmann::json request{{"command", "resume"}};
  if (!a.trainer.empty())
    request["trainer"] = a.trainer;
  auto answer = net::control_call(a.run, request, std::chrono::seconds{60});
  if (!answer)
    return cannot_start(a.session, to, answer.error().text, status_of_refusal(answer.error().code));
  if (!answer->value("ok", false))
    return cannot_start(a.session, to, answer->value("error", std::string{"the run refused without a reason"}),
                        status_of_refusal(*answer));
  if (a.session.json)
    print_json(to.out, *answer);
  else
    for (auto& x : answer->value("acknowledged", nlohmann::json::array()))
      to.out << x.value("name", std::string{"?"}) << " goes on at step " << x.value("step", std::uint64_t{0}) << "\n";
  return exit_done;
}

} // namespace

int resume_run(const resume_arguments& a, const registries& with, output to) {
  if (auto ok = check_run_directory(a.run); !ok)
    return cannot_start(a.session, to, ok.error().text, exit_wrong_use);
  auto record = core::read_run(a.run);
  if (!record)
    return cannot_start(a.session, to, record.error().text, status_of_refusal(record.error().code));
  if (core::is_run_in_use(a.run)) {
    if (a.from_start)
      return cannot_start(a.session, to, "the run in " + a.run + " is going on, so it cannot begin again", exit_wrong_use);
    return unpause(a, to);
  }
  if (!a.trainer.empty())
    return cannot_start(a.session, to, "the run in " + a.run + " is not going on, so there is no trainer to unpause", exit_wrong_use);
  if (record->outcome == "done") {
    if (a.from_start)
      return cannot_start(a.session, to,
                          "the run in " + a.run + " is done, so it does not begin again: run its experiment.json anew", exit_wrong_use);
    if (a.session.json)
      print_json(to.out, {{"kind", "result"}, {"outcome", "done"}, {"directory", a.run}});
    else
      to.out << a.run << " is done already; `troupe show` has its results\n";
    return exit_done;
  }
  auto parsed = core::parse_experiment(record->experiment_text, with.checkers());
  if (auto* faults = std::get_if<std::vector<core::error>>(&parsed))
    return cannot_start(a.session, to, "'" + a.run + "/experiment.json' has faults", exit_wrong_use, *faults);
  return run_session(std::get<core::experiment>(std::move(parsed)), a.run,
                     a.from_start ? session_start::step_zero : session_start::saved, a.session, with, to);
}

} // namespace troupe::cli
