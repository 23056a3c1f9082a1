#include "troupe/core/run_writer.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <sstream>

#include <nlohmann/json.hpp>

#include "run_folders.hpp"
#include "temporary_folder.hpp"
#include "troupe/core/checkpoint.hpp"
#include "troupe/core/run_reader.hpp"

using namespace troupe::core;
using nlohmann::json;


TEST_CASE("a run directory holds the experiment and a line for everything that happened") {
  temporary_folder folder;
  auto run = folder / "deep/run";
  {
    auto writer = open_run_directory(run, two_trainers(), false);
    REQUIRE(writer);
    REQUIRE((*writer)->event("trainer_started", json{{"trainer", 0}, {"name", "a"}}));
    REQUIRE((*writer)->event("paused", json::object()));
    REQUIRE((*writer)->sync_point(0, {report(0, 0, 10), report(1, 0, 10)}, {{1, decision{{}, {}, 0, {}, "copies a"}}}));
    auto finished = json{{"trainer", 0}, {"metadata", to_json(report(0, 1, 20))}};
    REQUIRE((*writer)->event("trainer_finished", finished));
    REQUIRE((*writer)->flush());
  }
  CHECK(read_whole(run + "/experiment.json") == two_trainers().text);
  auto lines = lines_of(run + "/run.jsonl");
  REQUIRE(lines.size() == 5);
  CHECK(lines[0]["kind"] == "run");
  CHECK(lines[0]["trainers"] == 2);
  CHECK(lines[0]["again"] == false);
  CHECK(lines[1]["name"] == "a");
  CHECK(lines[2]["kind"] == "paused");
  CHECK(lines[3]["index"] == 0);
  CHECK(lines[3]["trainers"][1]["decision"]["copy_from"] == 0);
  CHECK(lines[4]["metadata"]["step"] == 20);
  for (auto& line : lines)
    CHECK(line["time"].get<std::string>().back() == 'Z');
}

TEST_CASE("the table has one row for each report and quotes its texts") {
  temporary_folder folder;
  {
    auto writer = open_run_directory(folder / "run", two_trainers(), false);
    REQUIRE(writer);
    REQUIRE((*writer)->sync_point(2, {report(0, 2, 10), report(1, 2, 11)}, {}));
    REQUIRE((*writer)->event("trainer_finished", json{{"trainer", 0}, {"metadata", to_json(report(0, 3, 20))}}));
  }
  std::istringstream in{read_whole(folder / "run/metadata.csv")};
  std::vector<std::string> rows;
  for (std::string row; std::getline(in, row);)
    rows.push_back(row);
  REQUIRE(rows.size() == 4);
  CHECK(rows[0] == "time,sync,trainer,name,incarnation,step,epoch,samples,loss,accuracy,grad_norm,compute_seconds,"
                   "wait_seconds,sync_seconds,memory_bytes,hyperparameters,numbers");
  CHECK(rows[1].substr(rows[1].find(',')) == R"(,2,0,"a",0,10,0,0,0.5,,,0,0,0,0,"{""lr"":0.1}","{""f1"":0.25}")");
  CHECK(rows[2].find(R"(,2,1,"b, the ""second""",0,11,)") != std::string::npos);
  CHECK(rows[3].find(",3,0,\"a\",0,20,") != std::string::npos);
}

TEST_CASE("a directory with a run is refused and stays as it is") {
  temporary_folder folder;
  auto run = folder / "run";
  REQUIRE(open_run_directory(run, two_trainers(), false));
  auto before = read_whole(run + "/run.jsonl");
  auto again = open_run_directory(run, two_trainers(), false);
  REQUIRE_FALSE(again);
  CHECK(again.error().code == errc::refused);
  CHECK(again.error().text.find("troupe resume") != std::string::npos);
  CHECK(read_whole(run + "/run.jsonl") == before);
}

TEST_CASE("a run directory has one writer at a time") {
  temporary_folder folder;
  auto run = folder / "run";
  CHECK_FALSE(is_run_in_use(run));
  {
    auto writer = open_run_directory(run, two_trainers(), false);
    REQUIRE(writer);
    CHECK(is_run_in_use(run));
    auto second = open_run_directory(run, two_trainers(), true);
    REQUIRE_FALSE(second);
    CHECK(second.error().text == "'" + run + "' is in use: a program is running it");
  }
  CHECK_FALSE(is_run_in_use(run));
  CHECK(open_run_directory(run, two_trainers(), true));
}

TEST_CASE("going on needs a run of the same experiment") {
  temporary_folder folder;
  CHECK(open_run_directory(folder / "none", two_trainers(), true).error().code == errc::not_found);
  CHECK_FALSE(std::filesystem::exists(folder / "none"));
  REQUIRE(open_run_directory(folder / "run", two_trainers(), false));
  auto other = two_trainers();
  other.text += " ";
  auto refused = open_run_directory(folder / "run", other, true);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().text.find("another experiment") != std::string::npos);
}

TEST_CASE("an experiment made in code is written out") {
  temporary_folder folder;
  auto x = two_trainers();
  x.text.clear();
  REQUIRE(open_run_directory(folder / "run", x, false));
  CHECK(read_whole(folder / "run/experiment.json") == experiment_text(x));
  CHECK(open_run_directory(folder / "run", x, true));
}

TEST_CASE("torn last lines are cut off when a run goes on") {
  temporary_folder folder;
  auto run = folder / "run";
  {
    auto writer = open_run_directory(run, two_trainers(), false);
    REQUIRE(writer);
    REQUIRE((*writer)->sync_point(0, {report(0, 0, 10)}, {}));
  }
  auto log = read_whole(run + "/run.jsonl"), table = read_whole(run + "/metadata.csv");
  // A torn line longer than a block, so that the search for its beginning crosses blocks.
  for (auto& torn : {std::string{"{\"kind\":\"sync_"}, std::string(200'000, 'x')}) {
    write_whole(run + "/run.jsonl", log + torn);
    write_whole(run + "/metadata.csv", table + torn);
    auto seen = read_run(run);
    REQUIRE(seen);
    CHECK(seen->torn);
    CHECK(seen->last_sync == 0);
    {
      auto writer = open_run_directory(run, two_trainers(), true);
      REQUIRE(writer);
      REQUIRE((*writer)->event("resumed", json::object()));
    }
    auto now = read_whole(run + "/run.jsonl");
    CHECK(now.starts_with(log));
    CHECK(count_lines(now) == count_lines(log) + 2);
    CHECK(lines_of(run + "/run.jsonl").back()["kind"] == "resumed");
    CHECK(read_whole(run + "/metadata.csv") == table);
  }
}

TEST_CASE("a run cut off before its first line can go on") {
  temporary_folder folder;
  auto run = folder / "run";
  REQUIRE(open_run_directory(run, two_trainers(), false));
  std::filesystem::remove(run + "/run.jsonl");
  std::filesystem::remove(run + "/metadata.csv");
  auto seen = read_run(run);
  REQUIRE(seen);
  CHECK(seen->sets.empty());
  CHECK(open_run_directory(run, two_trainers(), true));
  CHECK(count_lines(read_whole(run + "/metadata.csv")) == 1);
}

TEST_CASE("unfinished checkpoint files are removed when a run goes on") {
  temporary_folder folder;
  auto run = folder / "run";
  { auto writer = open_run_directory(run, two_trainers(), false); save_set(**writer, run, 0, 10); }
  write_whole(run + "/checkpoints/0/a.safetensors.tmp-AbCdEf", "half");
  REQUIRE(open_run_directory(run, two_trainers(), true));
  CHECK(std::distance(std::filesystem::directory_iterator{run + "/checkpoints/0"}, {}) == 2);
}

TEST_CASE("details of an event must be an object") {
  temporary_folder folder;
  auto writer = open_run_directory(folder / "run", two_trainers(), false);
  REQUIRE(writer);
  CHECK_FALSE((*writer)->event("odd", json::array()));
  CHECK(lines_of(folder / "run/run.jsonl").size() == 1);
}

TEST_CASE("a run is read back with its trainers and sync points and sets") {
  temporary_folder folder;
  auto run = folder / "run";
  {
    auto writer = open_run_directory(run, two_trainers(), false);
    REQUIRE(writer);
    auto& w = **writer;
    REQUIRE(w.event("trainer_started", json{{"trainer", 0}, {"name", "a"}, {"incarnation", 0}, {"step", 0}}));
    REQUIRE(w.event("trainer_started", json{{"trainer", 1}, {"name", "b"}, {"incarnation", 0}, {"step", 0}}));
    REQUIRE(w.sync_point(0, {report(0, 0, 10), report(1, 0, 10)}, {}));
    save_set(w, run, 0, 10);
    REQUIRE(w.event("trainer_failed", json{{"trainer", 1}, {"reason", "loss is nan"}, {"final", false}}));
    REQUIRE(w.event("trainer_started", json{{"trainer", 1}, {"incarnation", 1}, {"step", 10}}));
    REQUIRE(w.event("trainer_finished", json{{"trainer", 0}, {"metadata", to_json(report(0, 1, 20))}}));
    save_set(w, run, 1, 20);
    REQUIRE(w.event("trainer_failed", json{{"trainer", 1}, {"reason", "again"}, {"final", true}}));
    REQUIRE(w.event("trainer_added", json{{"trainer", 2}, {"name", "c"}, {"text", "{\"name\": \"c\"}"}}));
    REQUIRE(w.event("run_ended", json{{"outcome", "failed"}, {"reason", "b failed"}}));
  }
  auto seen = read_run(run);
  REQUIRE(seen);
  CHECK(seen->experiment_text == two_trainers().text);
  REQUIRE(seen->trainers.size() == 3);
  CHECK(seen->trainers[0].state == trainer_record::status::finished);
  CHECK(seen->trainers[0].step == 20);
  CHECK(seen->trainers[0].last->step == 20);
  CHECK(seen->trainers[1].state == trainer_record::status::failed);
  CHECK(seen->trainers[1].incarnation == 1);
  CHECK(seen->trainers[1].reason == "again");
  CHECK(seen->trainers[2].added == "{\"name\": \"c\"}");
  CHECK(seen->trainers[2].state == trainer_record::status::not_started);
  CHECK(seen->last_sync == 0);
  CHECK(seen->outcome == "failed");
  CHECK_FALSE(seen->torn);
  REQUIRE(seen->sets.size() == 2);
  CHECK(seen->sets[1].set.sync == 1);

  auto then = read_run(run, seen->sets[0].position);
  REQUIRE(then);
  CHECK(then->trainers.size() == 2);
  CHECK(then->trainers[1].state == trainer_record::status::running);
  CHECK(then->trainers[1].incarnation == 0);
  CHECK(then->sets.size() == 1);
  CHECK(then->outcome == "");
}

TEST_CASE("a damaged line is an error with its number") {
  temporary_folder folder;
  REQUIRE(open_run_directory(folder / "run", two_trainers(), false));
  write_whole(folder / "run/run.jsonl", "{\"kind\":\"run\"}\n{\"kind\n{\"kind\":\"paused\"}\n");
  auto seen = read_run(folder / "run");
  REQUIRE_FALSE(seen);
  CHECK(seen.error().text.find("line 2") != std::string::npos);
  CHECK(read_run(folder / "nothing").error().code == errc::not_found);
}

TEST_CASE("lines and members of other versions are passed over") {
  temporary_folder folder;
  REQUIRE(open_run_directory(folder / "run", two_trainers(), false));
  write_whole(folder / "run/run.jsonl",
              "{\"kind\":\"run\",\"trainers\":2}\n{\"kind\":\"novelty\"}\n{\"kind\":\"trainer_sang\",\"trainer\":-1}\n"
              "{\"kind\":\"trainer_failed\",\"trainer\":4000000000}\n{\"kind\":\"sync_point\",\"index\":\"x\",\"trainers\":3}\n"
              "{\"kind\":\"checkpoint_set\",\"number\":0,\"trainers\":[{\"file\":\"../../etc/passwd\"}]}\n");
  auto seen = read_run(folder / "run");
  REQUIRE(seen);
  CHECK(seen->trainers.size() == 2);
  REQUIRE(seen->sets.size() == 1); // what was saved may be lost, which a resumption tells
  CHECK(seen->sets[0].missing.find("line in the record is damaged") != std::string::npos);
}

TEST_CASE("checkpoint sets are numbered on and old ones removed") {
  temporary_folder folder;
  auto run = folder / "run";
  auto writer = open_run_directory(run, two_trainers(), false);
  REQUIRE(writer);
  std::vector<checkpoint_set> sets;
  for (sync_index k = 0; k < 4; ++k)
    sets.push_back(save_set(**writer, run, k, 10 * (k + 1)));
  CHECK(sets[3].number == 3);
  auto unfinished = begin_checkpoint_set(run);
  CHECK(*unfinished == 4);
  // A trainer that finished early stays in an older set's folder.
  sets[3].trainers[0].file = sets[1].trainers[0].file;
  REQUIRE(prune_checkpoints(run, std::span{sets}.subspan(2), {"a", "b"}));
  auto exists = [&](const std::string& file) { return std::filesystem::exists(run + "/" + file); };
  CHECK_FALSE(exists("checkpoints/0"));
  CHECK(exists("checkpoints/1/a.safetensors"));
  CHECK_FALSE(exists("checkpoints/1/b.safetensors"));
  CHECK(exists("checkpoints/2/b.safetensors"));
  CHECK_FALSE(exists("checkpoints/3/a.safetensors"));
  CHECK(exists("checkpoints/3/b.safetensors"));
  CHECK(exists("checkpoints/4"));
  REQUIRE(prune_checkpoints(run, {}, {"a", "b"}));
  CHECK(exists("checkpoints/3/b.safetensors"));
  auto seen = read_run(run);
  REQUIRE(seen);
  REQUIRE(seen->sets.size() == 4);
  CHECK(seen->sets[2].missing == "");
  CHECK(seen->sets[3].missing == "checkpoints/3/a.safetensors"); // as recorded
  CHECK(seen->next_set == 4);
}

TEST_CASE("a checkpoint set survives its JSON and refuses files elsewhere") {
  checkpoint_set set{7, 3, {{1, "b", 2, 100, checkpoint_file(7, "b")}}};
  auto back = checkpoint_set_from_json(to_json(set), "");
  REQUIRE(back);
  CHECK(*back == set);
  set.sync.reset();
  CHECK(*checkpoint_set_from_json(to_json(set), "") == set);
  for (auto file : {"/etc/passwd", "checkpoints/../run.jsonl", "checkpoints/1/..", "checkpoints/1", "checkpoints/1/a/b", ""}) {
    set.trainers[0].file = file;
    CHECK_FALSE(checkpoint_set_from_json(to_json(set), ""));
  }
  CHECK_FALSE(checkpoint_set_from_json(json::parse(R"({"number": 1})"), ""));
}

TEST_CASE("ten thousand reports make one line that reads back") {
  temporary_folder folder;
  std::vector<metadata> reports(10'000, report(0, 0, 10));
  for (trainer_id t = 0; t < reports.size(); ++t)
    reports[t].trainer = t;
  auto writer = open_run_directory(folder / "run", two_trainers(), false);
  REQUIRE(writer);
  REQUIRE((*writer)->sync_point(0, reports, {}));
  auto seen = read_run(folder / "run");
  REQUIRE(seen);
  CHECK(seen->trainers.size() == 10'000);
  CHECK(seen->trainers[9'999].last->hp == reports[0].hp);
}

TEST_CASE("what slots do is kept as it was told last") {
  temporary_folder folder;
  const auto run = folder / "run";
  auto writer = open_run_directory(run, two_trainers(), false);
  REQUIRE(writer);
  REQUIRE_FALSE(read_slots(run));
  CHECK(read_slots(run).error().code == errc::not_found);
  REQUIRE((*writer)->slots(json::array({{{"steps", 1}}}), false));
  auto first = read_slots(run);
  REQUIRE(first);
  CHECK((*first)["at_end"] == false);
  CHECK((*first)["time"].get<std::string>().ends_with("Z"));
  REQUIRE((*writer)->slots(json::array({{{"steps", 2}}, {{"steps", 3}}}), true));
  auto last = read_slots(run);
  REQUIRE(last);
  CHECK((*last)["at_end"] == true);
  CHECK((*last)["slots"][1]["steps"] == 3);
  for (const auto* damaged : {"", "[]", R"({"time": "x", "at_end": 1, "slots": []})", R"({"time": "x", "at_end": true})"}) {
    write_whole(folder / "run/slots.json", damaged);
    REQUIRE_FALSE(read_slots(run));
    CHECK(read_slots(run).error().code == errc::io);
    CHECK(read_slots(run).error().text.find("slots.json' is damaged") != std::string::npos);
  }
}
