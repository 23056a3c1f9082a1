#include "run_view.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "text.hpp"

using namespace troupe;
using namespace troupe::cli;
using actors::trainer_state;

namespace {

actors::trainer_info trainer(core::trainer_id id, std::string name, trainer_state state, std::uint64_t step, double lr) {
  actors::trainer_info t;
  t.id = id;
  t.name = std::move(name);
  t.state = state;
  t.step = step;
  t.stop_step = 200;
  t.hp = {{"lr", lr}, {"momentum", 0.9}};
  t.slot = "0/" + std::to_string(id);
  core::metadata m;
  m.loss = 0.5;
  t.newest = m;
  return t;
}

actors::run_status status() {
  actors::run_status s;
  s.experiment = "three";
  s.seconds = 12.3;
  s.rounds = 1;
  s.trainers = {trainer(0, "slow", trainer_state::running, 100, 0.001), trainer(1, "fast", trainer_state::parked, 150, 0.1),
                trainer(2, "done", trainer_state::finished, 200, 0.01)};
  return s;
}

} // namespace

TEST_CASE("live lines show the whole and each trainer within the width") {
  auto lines = live_lines(status(), 200, 10);
  REQUIRE(lines.size() == 4);
  CHECK(lines[0] == "three  12.3 s  1 running, 1 parked, 1 finished  1 sync point");
  CHECK(lines[1] == "slow [==========>         ] 100/200  running   loss 0.5000   acc -       lr 0.001  on 0/0");
  CHECK(lines[3].find("[====================] 200/200  finished") != std::string::npos);
  CHECK(lines[1].find("momentum") == std::string::npos); // the same for everybody
  for (auto& line : live_lines(status(), 30, 10))
    CHECK(width_of(line) <= 30);
}

TEST_CASE("live lines fit the height and show those that are live first") {
  auto s = status();
  s.trainers.insert(s.trainers.begin(), 50, trainer(9, "old", trainer_state::finished, 200, 0.1));
  auto lines = live_lines(s, 200, 5);
  REQUIRE(lines.size() == 5);
  CHECK(lines[1].starts_with("slow"));
  CHECK(lines[2].starts_with("fast"));
  CHECK(lines[4] == "… and 50 more trainers");
}

TEST_CASE("progress is one line elsewhere") {
  CHECK(progress_line(status()) ==
        "3 trainers: 1 running, 1 parked, 1 finished; 450 of 600 steps (75%), 12.3 s");
  CHECK(progress_line({}).find("0 trainers") == 0);
}

TEST_CASE("a status has a table of slots that shows which is full and which is idle") {
  auto s = status();
  CHECK(status_text(s).find("slots") == std::string::npos); // a run that does not tell
  actors::slot_info full;
  full.name = "0/0";
  full.device = "cuda:0";
  full.model = "H200";
  full.memory_budget = std::uint64_t{60} << 30;
  full.answered = true;
  full.trainers = 9;
  full.running = 8;
  full.waiting = 1;
  full.steps = 1000;
  full.busy_seconds = 99;
  full.idle_seconds = 1;
  full.memory_used = std::uint64_t{59} << 30;
  auto idle = full;
  idle.name = "0/1";
  idle.device = "cuda:1";
  idle.trainers = idle.running = idle.waiting = idle.steps = idle.memory_used = 0;
  idle.busy_seconds = 0;
  auto silent = idle;
  silent.name = "1/0";
  silent.answered = false;
  auto lost = silent;
  lost.name = "2/0";
  lost.alive = false;
  lost.memory_budget = 0;
  s.slots = {full, idle, silent, lost};
  const auto text = status_text(s);
  CHECK(text.substr(text.find("4 slots")) ==
        "4 slots\n"
        "  slot  device  model  trainers  running  waiting  busy  steps                memory  note\n"
        "  ----  ------  -----  --------  -------  -------  ----  -----  --------------------  ---------\n"
        "  0/0   cuda:0  H200          9        8        1   99%   1000  59.0 GiB of 60.0 GiB\n"
        "  0/1   cuda:1  H200          0        0        0    0%      0       0 B of 60.0 GiB\n"
        "  1/0   cuda:1  H200                                                   - of 60.0 GiB  no answer\n"
        "  2/0   cuda:1  H200                                                                  lost\n");
}

TEST_CASE("a disk that holds trainers back is told") {
  auto s = status();
  CHECK(record_text(s.record).empty());
  s.record = {4100, 2048, 4100, 3, 2.5};
  CHECK(status_text(s).find("\nthe disk is slower than the reports: 4100 wait (2.0 KiB), and trainers wait with them; for 2.50 s so far\n") !=
        std::string::npos);
  s.record.held_back = 0;
  CHECK(record_text(s.record) == "the disk was slower than the reports and held trainers back for 2.50 s\n");
}

TEST_CASE("slots that fuse or page show how much") {
  auto s = status();
  actors::slot_info x;
  x.name = "0/0";
  x.device = "cpu";
  x.answered = true;
  x.steps = 200;
  x.fused_steps = 150;
  x.pages_out = 12;
  x.memory_used = 1024;
  s.slots = {x};
  const auto text = status_text(s);
  CHECK(text.substr(text.find("1 slot")) ==
        "1 slot\n"
        "  slot  device  trainers  running  waiting  busy  steps  fused   memory  pages out  pages in\n"
        "  ----  ------  --------  -------  -------  ----  -----  -----  -------  ---------  --------\n"
        "  0/0   cpu            0        0        0     -    200    75%  1.0 KiB         12         0\n");
}

TEST_CASE("a decision says what it means") {
  std::map<core::trainer_id, std::string> names{{0, "a"}, {1, "b"}};
  core::decision d;
  CHECK(decision_text(d, {}, names) == "goes on");
  d.copy_from = 1;
  d.changes = {{"lr", 0.05}, {"new", true}};
  d.reason = "exploits b";
  CHECK(decision_text(d, {{"lr", 0.001}}, names) == "takes weights of b; lr 0.001 -> 0.05; new = true (exploits b)");
  core::decision mean;
  mean.average_of = {0, 1, 7};
  CHECK(decision_text(mean, {}, names) == "takes the mean of a, b, trainer 7");
  core::decision stop{core::decision::action::stop, {}, {}, {}, ""};
  CHECK(decision_text(stop, {}, names) == "stops");
}

TEST_CASE("a sync point is a table of reports and decisions") {
  actors::sync_point_event e;
  e.index = 2;
  for (core::trainer_id t : {0u, 1u}) {
    core::metadata m;
    m.trainer = t;
    m.name = t ? "b" : "a";
    m.step = 936;
    m.loss = 0.25;
    m.accuracy = t ? 0.9 : 0.8;
    m.compute_seconds = 3;
    m.hp = {{"lr", t ? 0.1 : 0.01}, {"momentum", 0.9}};
    e.names[t] = m.name;
    e.reports.push_back(m);
  }
  e.decisions[0].copy_from = 1;
  CHECK(sync_point_text(e) == "sync point 2 at step 936\n"
                              "  trainer  step    loss  accuracy    lr  computing  waiting  parked  decision\n"
                              "  -------  ----  ------  --------  ----  ---------  -------  ------  ------------------\n"
                              "  a         936  0.2500    0.8000  0.01     3.00 s   0.00 s  0.00 s  takes weights of b\n"
                              "  b         936  0.2500    0.9000   0.1     3.00 s   0.00 s  0.00 s  goes on\n");
}

TEST_CASE("results name failures and restarts") {
  actors::trainer_summary t;
  static_cast<actors::trainer_info&>(t) = trainer(0, "a", trainer_state::failed, 50, 0.1);
  t.restarts = 2;
  t.failure = {core::errc::failed, "loss is nan"};
  auto text = results_text({t});
  CHECK(text.find("failed") != std::string::npos);
  CHECK(text.find("restarts") != std::string::npos);
  CHECK(text.find("loss is nan") != std::string::npos);
  CHECK(text.find("50/200") != std::string::npos);
  t.restarts = 0;
  CHECK(results_text({t}).find("restarts") == std::string::npos);
}

TEST_CASE("events that matter are one line") {
  CHECK(event_text("trainer_failed", {{"name", "b"}, {"step", 120}, {"reason", "loss is nan"}, {"final", false}}) ==
        "b failed at step 120: loss is nan; it is restarted");
  CHECK(event_text("trainer_failed", {{"trainer", 3}, {"final", true}}) == "trainer 3 failed");
  CHECK(event_text("trainer_finished", {{"name", "b"}, {"stopped", true}, {"reason", "asked to"}}) == "b stopped (asked to)");
  CHECK(event_text("trainer_started", {{"name", "b"}, {"incarnation", 0}}) == "");
  CHECK(event_text("moved", {{"name", "b"}, {"from", "0/0"}, {"to", "0/1"}, {"step", 5}}) == "");
  CHECK(event_text("trainer_started", {{"name", "b"}, {"incarnation", 1}, {"step", 5}}) == "b starts again at step 5");
  CHECK(event_text("something_else", nlohmann::json::object()) == "");
  CHECK(event_text("sync_note", {{"index", 3}, {"text", "went on without b"}}) == "sync point 3: went on without b");
  CHECK(event_text("checkpoint_unusable", {{"trainer", 1}, {"reason", "damaged"}}) == "checkpoint unusable (trainer 1): damaged");
}

TEST_CASE("at most four hyperparameters are told apart") {
  core::hyperparameters a, b;
  for (auto key : {"a", "b", "c", "d", "e", "f"}) {
    a.set(key, 1.0);
    b.set(key, 2.0);
  }
  b.set("a", 1.0);
  CHECK(telling_keys({&a, &b}) == std::vector<std::string>{"b", "c", "d", "e"});
  CHECK(telling_keys({&a}).size() == 4);
  CHECK(telling_keys({}).empty());
}
