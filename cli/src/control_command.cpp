#include <chrono>
#include <ostream>

#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "control.hpp"
#include "files.hpp"
#include "run_view.hpp"
#include "text.hpp"
#include "troupe/net/control.hpp"

namespace troupe::cli {

using nlohmann::json;

namespace {

using verb = control_arguments::verb;

std::string_view name_of(verb x) {
  switch (x) {
  case verb::status: return "status";
  case verb::pause: return "pause";
  case verb::push: return "push";
  case verb::stop: return "stop";
  case verb::add: return "add";
  }
  return "status";
}

/// What was done, for people: "paused fast at step 120".
std::string_view past_of(verb x) {
  switch (x) {
  case verb::pause: return "paused";
  case verb::push: return "changed";
  default: return "stopped";
  }
}

core::result<json> request_for(const control_arguments& a) {
  json out{{"command", name_of(a.what)}};
  if (!a.trainer.empty())
    out["trainer"] = a.trainer;
  if (a.what == verb::push) {
    core::hyperparameters changes;
    for (auto& text : a.assignments) {
      auto assignment = core::parse_assignment(text);
      if (!assignment)
        return assignment.error();
      if (changes.find(assignment->first))
        return core::error{core::errc::invalid_argument, "'" + assignment->first + "' is given twice"};
      changes.set(assignment->first, assignment->second);
    }
    out["changes"] = core::to_json(changes);
  }
  if (a.what == verb::add) {
    auto text = read_trainer_entry(a.entry);
    if (!text)
      return text.error();
    out["entry"] = *text;
  }
  return out;
}

int complain(const control_arguments& a, output to, const std::string& text, int status) {
  if (a.json)
    print_json(to.out, failed_result(text));
  else
    to.err << "troupe: " << text << "\n";
  return status;
}

void print_answer(const control_arguments& a, const json& answer, std::ostream& out) {
  if (a.what == verb::add) {
    out << "added as trainer " << answer.value("trainer", 0) << "\n";
    return;
  }
  for (auto& x : answer.value("acknowledged", json::array()))
    out << past_of(a.what) << " " << x.value("name", std::string{"?"}) << " at step " << x.value("step", std::uint64_t{0}) << "\n";
}

} // namespace

int control_run(const control_arguments& a, output to) {
  if (auto ok = check_run_directory(a.run); !ok)
    return complain(a, to, ok.error().text, exit_wrong_use);
  auto request = request_for(a);
  if (!request)
    return complain(a, to, request.error().text, exit_wrong_use);
  auto timeout = std::chrono::milliseconds{static_cast<std::int64_t>(a.timeout_seconds * 1000)};
  auto answer = net::control_call(a.run, *request, timeout);
  if (!answer) {
    // A run that has ended still has a state to show.
    if (a.what == verb::status && answer.error().code == core::errc::refused)
      return show_run({a.run, a.json, true}, to);
    return complain(a, to, answer.error().text, status_of_refusal(answer.error().code));
  }
  if (!answer->value("ok", false))
    return complain(a, to, answer->value("error", std::string{"the run refused without a reason"}), status_of_refusal(*answer));
  if (a.json) {
    print_json(to.out, *answer);
    return exit_done;
  }
  if (a.what == verb::status) {
    auto status = status_from_json(*answer);
    if (!status)
      return complain(a, to, status.error().text, exit_failed);
    to.out << status->experiment << ": " << status_text(*status);
    return exit_done;
  }
  print_answer(a, *answer, to.out);
  return exit_done;
}

} // namespace troupe::cli
