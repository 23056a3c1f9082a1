/// A disk and a listener that are slower than the trainers: what waits for them is bounded, and nothing is lost from the record.
#include <doctest/doctest.h>

#include <filesystem>
#include <future>
#include <map>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "run_fixture.hpp"
#include "troupe/actors/run_access.hpp"
#include "troupe/core/run_reader.hpp"
#include "troupe/core/trainer_machine.hpp"

using namespace troupe;
using namespace troupe::test;

namespace {

/// Stands until it is opened.
class gate {
public:
  std::function<void()> job() const {
    return [open = open_] { open.wait(); };
  }
  ~gate() { open(); } // a test that fails must not wait for it
  void open() {
    if (!std::exchange(is_open_, true))
      promise_.set_value();
  }

private:
  bool is_open_ = false;
  std::promise<void> promise_;
  std::shared_future<void> open_ = promise_.get_future().share();
};

constexpr unsigned trainers = 3;
constexpr std::uint64_t limit = 5;
constexpr std::uint64_t most = limit + trainers * core::reports_ahead;
constexpr core::sync_index syncs = 39;

core::experiment reporters() {
  auto exp = experiment_of(trainers, 400, 10);
  exp.sync.asynchronous = true;
  exp.record.max_unwritten = limit;
  return exp;
}

/// A run whose disk stands from before the first report until `disk.open()`, with all trainers held back by it.
struct stalled {
  explicit stalled(const std::string& directory, core::experiment exp = reporters())
      : what(std::make_shared<mischief>()), s(std::move(exp), 2, what) {
    s.options.directory = directory;
    for (unsigned i = 0; i < trainers; ++i)
      what->hold("t" + std::to_string(i), 5);
    run = s.start();
    if (!s.seen->wait([](const recorder& r) { return r.started(); }))
      FAIL("the run does not begin");
    run_access::on_store(*run, disk.job());
    what->release();
    wait_for_status(run->control(), [](const run_status& x) { return x.record.unwritten == most; });
  }

  std::shared_ptr<mischief> what;
  set_up s;
  std::unique_ptr<run_session> run;
  gate disk; // opens before the run is left
};

/// Sync points of each trainer in the order of the record.
std::map<std::string, std::vector<core::sync_index>> reports_in(const std::string& directory) {
  std::map<std::string, std::vector<core::sync_index>> out;
  const auto read = core::visit_run(directory, [&](std::string_view kind, nlohmann::json& line) {
    if (kind == "sync_point")
      for (const auto& x : line["trainers"])
        out[x["name"].get<std::string>()].push_back(x["sync"].get<core::sync_index>());
  });
  CHECK(read.has_value());
  return out;
}

std::vector<core::sync_index> first(std::size_t n) {
  std::vector<core::sync_index> out(n);
  for (std::size_t i = 0; i < n; ++i)
    out[i] = static_cast<core::sync_index>(i);
  return out;
}

} // namespace

TEST_CASE("FAULTS row 34 a slow disk holds trainers back and every report is on record afterwards") {
  temporary_folder folder;
  stalled x(folder.path("run"));
  const auto c = x.run->control();
  const auto status = good(c.status());
  CHECK(status.record.held_back == trainers * core::reports_ahead);
  CHECK(status.record.held_back_seconds > 0);
  CHECK(x.s.seen->sync_points().empty()); // of what is not written nobody is told
  for (const auto& t : status.trainers)
    CHECK(t.step < 400);
  REQUIRE(x.s.seen->wait_for_event("store_behind"));
  const auto told = x.s.seen->events("store_behind");
  REQUIRE(told.size() == 1);
  CHECK(told[0].details["reports"] == limit + 1);

  // Whatever is asked is answered while the disk stands.
  CHECK(good(c.pause()).size() == trainers);
  for (const auto& t : good(c.status()).trainers)
    CHECK(t.state == trainer_state::paused);
  CHECK(good(c.push("t0", {{"lr", 0.5}})).size() == 1);
  CHECK(good(c.resume()).size() == trainers);
  CHECK(good(c.stop("t2")).size() == 1);

  x.disk.open();
  const auto summary = x.run->wait();
  CHECK(summary.outcome == run_outcome_kind::done);
  CHECK(find(summary, "t0").state == trainer_state::finished);
  CHECK(find(summary, "t0").hp == core::hyperparameters{{"lr", 0.5}});
  CHECK(find(summary, "t0").newest->sync_seconds > 0);
  CHECK(find(summary, "t2").state == trainer_state::stopped);
  CHECK(summary.record.unwritten == 0);
  CHECK(summary.record.most_unwritten == most);
  CHECK(summary.record.held_back_seconds > 0);
  const auto reports = reports_in(folder.path("run"));
  CHECK(reports.at("t0") == first(syncs));
  CHECK(reports.at("t1") == first(syncs));
  CHECK(reports.at("t2") == first(reports.at("t2").size()));
  CHECK(reports.at("t2").size() >= core::reports_ahead);
}

TEST_CASE("few bytes of room in the record hold trainers back too") {
  temporary_folder folder;
  auto exp = reporters();
  exp.record.max_unwritten = 1000;
  exp.record.max_unwritten_bytes = 1; // full as soon as one waits
  exp.trainers.resize(1);
  auto what = std::make_shared<mischief>();
  what->hold("t0", 5);
  set_up s(exp, 1, what);
  s.options.directory = folder.path("run");
  auto run = s.start();
  REQUIRE(s.seen->wait([](const recorder& r) { return r.started(); }));
  gate disk;
  run_access::on_store(*run, disk.job());
  what->release();
  wait_for_status(run->control(), [](const run_status& x) { return x.record.held_back == core::reports_ahead; });
  CHECK(good(run->control().status()).record.unwritten == 1 + core::reports_ahead);
  disk.open();
  CHECK(run->wait().outcome == run_outcome_kind::done);
  CHECK(reports_in(folder.path("run")).at("t0") == first(syncs));
}

TEST_CASE("a disk that fails while trainers are held back ends the run with its error") {
  temporary_folder folder;
  stalled x(folder.path("run"));
  const auto log = std::filesystem::canonical(folder.path("run") + "/run.jsonl");
  const int full = ::open("/dev/full", O_RDWR | O_CLOEXEC);
  REQUIRE(full >= 0);
  int replaced = 0;
  for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    if (std::filesystem::read_symlink(fd.path(), ignored) == log)
      replaced += ::dup2(full, std::stoi(fd.path().filename())) >= 0 ? 1 : 0;
  }
  ::close(full);
  REQUIRE(replaced == 1);
  x.disk.open();
  const auto summary = x.run->wait();
  CHECK(summary.outcome == run_outcome_kind::failed);
  // Whichever line comes first: a report, or that reports wait.
  CHECK((summary.error.text.find("a report cannot be recorded") != std::string::npos ||
         summary.error.text.find("the record cannot be written") != std::string::npos));
  CHECK(summary.error.text.find("run.jsonl") != std::string::npos);
}

TEST_CASE("a run that is left while its disk holds it back goes on with every report on record once") {
  temporary_folder folder;
  {
    stalled x(folder.path("run"));
    x.run->control().interrupt();
    for (unsigned i = 0; i < trainers; ++i) // each is asked for its state, which does not need the disk
      wait_for_status(x.run->control(), [i](const run_status& now) { return now.trainers[i].state == trainer_state::interrupted; });
    x.disk.open();
    CHECK(x.run->wait().outcome == run_outcome_kind::interrupted);
  }
  set_up s(reporters(), 2);
  s.options.directory = folder.path("run");
  s.options.resume = true;
  CHECK(s.run().outcome == run_outcome_kind::done);
  const auto reports = reports_in(folder.path("run"));
  for (const auto* name : {"t0", "t1", "t2"})
    CHECK(reports.at(name) == first(syncs));
}

namespace {

class slow_listener final : public recorder {
public:
  explicit slow_listener(std::function<void()> wait) : wait_(std::move(wait)) {}
  void on_sync_point(const sync_point_event& x) override {
    wait_();
    recorder::on_sync_point(x);
  }
  void on_missed(std::uint64_t sync_points, std::uint64_t events) override {
    missed_sync_points += sync_points;
    missed_events += events;
    ++times;
  }
  std::uint64_t missed_sync_points = 0, missed_events = 0, times = 0; // read when the run is over

private:
  std::function<void()> wait_;
};

} // namespace

TEST_CASE("FAULTS rows 34 and 36 a listener that stands holds up nobody and is told how much it missed") {
  temporary_folder folder;
  auto exp = experiment_of(2, 400, 10);
  exp.checkpoints.every_syncs = 0;
  set_up s(exp, 2);
  s.options.directory = folder.path("run");
  s.options.listener_backlog = 8;
  gate screen;
  auto listener = std::make_shared<slow_listener>(screen.job());
  s.options.listener = listener;
  auto run = s.start();
  const auto c = run->control();
  const auto enough = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (c.status().get()) // until it is over
    REQUIRE(std::chrono::steady_clock::now() < enough);
  screen.open();
  CHECK(run->wait().outcome == run_outcome_kind::done);
  CHECK(listener->times == 1);
  CHECK(listener->missed_sync_points > 0);
  CHECK(listener->sync_points().size() < 8);
  CHECK(listener->sync_points().size() + listener->missed_sync_points == syncs);
  std::uint64_t events = 0;
  REQUIRE(core::visit_run(folder.path("run"), [&](std::string_view kind, nlohmann::json&) {
    events += kind != "sync_point" && kind != "run" && kind != "checkpoint_set" ? 1 : 0;
  }));
  std::uint64_t heard = 0;
  for (const auto* kind : {"node_joined", "trainer_started", "trainer_finished", "run_ended"})
    heard += listener->events(kind).size();
  CHECK(heard + listener->missed_events == events);
  for (const auto* name : {"t0", "t1"})
    CHECK(reports_in(folder.path("run")).at(name) == first(syncs));
}
