#pragma once

#include <chrono>
#include <future>
#include <iosfwd>
#include <memory>
#include <string>
#include <utility>

#include "arguments.hpp"
#include "screen.hpp"
#include "troupe/actors/run.hpp"

namespace troupe::cli {

/// How often a run tells its progress: every second as JSON, ten times a second on a live terminal, else every ten seconds; 0: never. A
/// status costs the run about a microsecond a trainer, and its JSON as much again for whoever reads it, so large runs tell it less often.
std::chrono::milliseconds progress_interval(const session_arguments& a, bool live, std::size_t trainers);

/// Prints one JSON object a line: kinds "started", "progress", "sync_point", what is recorded (docs/file-formats.md), and at
/// the end "result". Used on the run's listener thread; `result` may be called from any once the run is over.
class json_listener : public actors::run_listener {
public:
  /// `quiet`: no "progress". `reachable`: ready, with or without a value, once other commands can reach the run: who reads
  /// "started" may give them at once.
  json_listener(std::ostream& out, bool quiet, std::shared_future<void> reachable)
    : out_(out), quiet_(quiet), reachable_(std::move(reachable)) {}

  void on_started(const actors::run_status& s) override;
  void on_sync_point(const actors::sync_point_event& e) override;
  void on_progress(const actors::run_status& s) override;
  void on_event(std::string_view kind, const nlohmann::json& details) override;
  void on_missed(std::uint64_t sync_points, std::uint64_t events) override;
  void on_finished(const actors::run_summary& s) override;

private:
  std::ostream& out_;
  bool quiet_;
  std::shared_future<void> reachable_;
};

/// Prints for people: lines that are redrawn on a terminal (a line now and then elsewhere), sync points' tables, events.
class text_listener : public actors::run_listener {
public:
  /// `quiet`: nothing but the outcome. `reachable`: as above.
  text_listener(screen& to, bool quiet, std::shared_future<void> reachable)
    : screen_(to), quiet_(quiet), reachable_(std::move(reachable)) {}

  void on_started(const actors::run_status& s) override;
  void on_sync_point(const actors::sync_point_event& e) override;
  void on_progress(const actors::run_status& s) override;
  void on_event(std::string_view kind, const nlohmann::json& details) override;
  void on_missed(std::uint64_t sync_points, std::uint64_t events) override;
  void on_finished(const actors::run_summary& s) override;

private:
  screen& screen_;
  bool quiet_;
  std::shared_future<void> reachable_;
};

/// {"kind": "result", "outcome": …, "trainers": […], …}
nlohmann::json result_json(const actors::run_summary& s);
/// The final table and where the results are.
std::string outcome_text(const actors::run_summary& s);

} // namespace troupe::cli
