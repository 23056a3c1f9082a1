#include "listeners.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <ostream>

#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "control.hpp"
#include "run_view.hpp"
#include "text.hpp"
#include "troupe/core/json_lines.hpp"

namespace troupe::cli {

using nlohmann::json;

namespace {

std::string hex(std::uint64_t x) {
  std::array<char, 17> text;
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(x));
  return text.data();
}

json with_kind(std::string_view kind, json members) {
  members["kind"] = kind;
  return members;
}

} // namespace

std::chrono::milliseconds progress_interval(const session_arguments& a, bool live, std::size_t trainers) {
  using std::chrono::milliseconds;
  if (a.quiet)
    return milliseconds{0};
  auto each = static_cast<std::int64_t>(trainers);
  return a.json ? milliseconds{1000 + each} : live ? milliseconds{100 + each / 10} : milliseconds{10'000 + each};
}

json result_json(const actors::run_summary& s) {
  json out{{"kind", "result"},       {"outcome", std::string{to_string(s.outcome)}}, {"directory", s.directory},
           {"sync_points", s.rounds}, {"seconds", s.seconds},                        {"trainers", json::array()},
           {"barrier_wait_seconds", s.barrier_seconds}, {"barrier_bound_seconds", s.barrier_bound_seconds},
           {"record", record_to_json(s.record)}};
  if (!s.error.text.empty())
    out["error"] = s.error.text;
  for (auto& t : s.trainers) {
    json x{{"trainer", t.id},          {"name", t.name},         {"state", std::string{to_string(t.state)}},
           {"step", t.step},           {"stop_step", t.stop_step}, {"restarts", t.restarts},
           {"hyperparameters", core::to_json(t.hp)}};
    if (t.newest)
      x["metadata"] = core::to_json(*t.newest);
    if (t.final_hash != 0)
      x["state_hash"] = hex(t.final_hash);
    if (!t.failure.text.empty())
      x["failure"] = t.failure.text;
    if (!t.reason.empty())
      x["reason"] = t.reason;
    x["barrier_wait_seconds"] = t.barrier_seconds;
    x["barrier_bound_seconds"] = t.barrier_bound_seconds;
    out["trainers"].push_back(std::move(x));
  }
  return out;
}

std::string outcome_text(const actors::run_summary& s) {
  auto out = "results\n" + results_text(s.trainers);
  if (s.barrier_seconds > 0)
    out += "\nwaits at sync points: " + seconds_text(s.barrier_seconds) + " of all trainers together; the slowest trainer of each sets " +
           seconds_text(s.barrier_bound_seconds) + " of that\n";
  if (const auto text = record_text(s.record); !text.empty())
    out += "\n" + text;
  if (!s.error.text.empty())
    out += "\nthe run ended early: " + s.error.text + "\n";
  out += "\n" + std::string{to_string(s.outcome)} + " after " + seconds_text(s.seconds) + " and " +
         count_text(s.rounds, "sync point", "sync points");
  if (s.directory.empty())
    return out + "\n";
  const bool left = std::ranges::any_of(s.trainers, [](auto& t) { return t.state == actors::trainer_state::interrupted; });
  if (left)
    return out + (s.outcome == actors::run_outcome_kind::failed ? "; when that is mended, go on with\n  troupe resume " : "; go on with\n  troupe resume ") +
           s.directory + "\n";
  return out + "; everything is in " + s.directory + "\n";
}

void json_listener::on_started(const actors::run_status& s) {
  reachable_.wait();
  print_json(out_, with_kind("started", status_to_json(s)));
}

void json_listener::on_sync_point(const actors::sync_point_event& e) {
  std::string line = R"({"kind":"sync_point",)";
  core::append_sync_point(line, e.index, e.reports, e.decisions);
  out_ << line << "}" << std::endl;
}

void json_listener::on_progress(const actors::run_status& s) {
  if (!quiet_)
    print_json(out_, with_kind("progress", status_to_json(s)));
}

void json_listener::on_event(std::string_view kind, const json& details) { print_json(out_, with_kind(kind, details)); }

void json_listener::on_missed(std::uint64_t sync_points, std::uint64_t events) {
  print_json(out_, with_kind("missed", {{"sync_points", sync_points}, {"events", events}}));
}

void json_listener::on_finished(const actors::run_summary& s) { print_json(out_, result_json(s)); }

void text_listener::on_started(const actors::run_status& s) {
  reachable_.wait();
  if (quiet_)
    return;
  std::string text = s.experiment + ": " + count_text(s.trainers.size(), "trainer", "trainers") + "\n";
  constexpr std::size_t shown = 10;
  for (std::size_t i = 0; i < s.trainers.size() && i < shown; ++i) {
    auto& t = s.trainers[i];
    text += "  " + t.name + ": " + t.workload_type + " on slot " + t.slot + ", " + std::to_string(t.stop_step) + " steps" +
            (t.hp.empty() ? "" : ", " + hyperparameters_text(t.hp)) + "\n";
  }
  if (s.trainers.size() > shown)
    text += "  … and " + count_text(s.trainers.size() - shown, "more trainer", "more trainers") + "\n";
  screen_.print(text + "\n");
}

void text_listener::on_sync_point(const actors::sync_point_event& e) {
  if (!quiet_)
    screen_.print(sync_point_text(e) + "\n");
}

void text_listener::on_progress(const actors::run_status& s) {
  if (quiet_)
    return;
  if (!screen_.live())
    return screen_.print(progress_line(s) + "\n");
  auto size = size_of_terminal();
  screen_.show(live_lines(s, size.columns - 1, size.rows / 2));
}

void text_listener::on_event(std::string_view kind, const json& details) {
  if (auto text = event_text(kind, details); !quiet_ && !text.empty())
    screen_.print(text + "\n");
}

void text_listener::on_missed(std::uint64_t sync_points, std::uint64_t events) {
  if (!quiet_)
    screen_.print("this screen was too slow: " + count_text(sync_points, "sync point", "sync points") + " and " +
                  count_text(events, "event", "events") + " are not shown here; the run's directory has them\n");
}

void text_listener::on_finished(const actors::run_summary& s) {
  screen_.clear();
  screen_.print(outcome_text(s));
}

} // namespace troupe::cli
