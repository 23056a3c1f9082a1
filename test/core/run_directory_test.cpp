/// Run directories in which something is not as it should be.
#include "troupe/core/run_reader.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <random>
#include <set>
#include <thread>

#include <sys/resource.h>
#include <sys/stat.h>

#include "run_folders.hpp"

using namespace troupe::core;
namespace fs = std::filesystem;

namespace {

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> out;
  for (const auto& x : fs::recursive_directory_iterator{folder})
    out.insert(fs::relative(x.path(), folder).string());
  return out;
}

/// While it lives no file grows beyond `bytes`, as on a disk that is full.
class full_disk {
public:
  explicit full_disk(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  ~full_disk() { ::setrlimit(RLIMIT_FSIZE, &before_); }

private:
  rlimit before_{};
};

/// A run with two sets, the second at step 20.
struct two_sets {
  temporary_folder folder;
  std::string run = folder / "run";
  two_sets() {
    auto writer = open_run_directory(run, two_trainers(), false);
    REQUIRE(writer);
    save_set(**writer, run, 0, 10);
    save_set(**writer, run, 1, 20);
  }
  std::string file(std::size_t set, std::size_t trainer) const {
    return run + "/" + checkpoint_file(static_cast<std::uint32_t>(set), trainer == 0 ? "a" : "b");
  }
  resume_point point() const {
    auto seen = read_run(run);
    REQUIRE(seen);
    return find_resume_point(run, *seen);
  }
};

} // namespace

// -- where a run is gone on from --------------------------------------------------------------------------------------

TEST_CASE("fault 43: a truncated checkpoint is found and the set before it is used") {
  two_sets x;
  CHECK(x.point().set == 1);
  CHECK(x.point().damage.empty());
  const auto newest = x.file(1, 1);
  const auto whole = read_whole(newest);
  std::mt19937 random{3};
  for (int i = 0; i < 100; ++i) {
    write_whole(newest, whole.substr(0, random() % whole.size()));
    const auto from = x.point();
    CHECK(from.set == 0);
    REQUIRE(from.damage.size() == 1);
    CHECK(has(from.damage[0].text, "checkpoint set 1 (sync point 1) cannot be used"));
    CHECK(has(from.damage[0].text, newest));
    CHECK_FALSE(from.other_format);
  }
  write_whole(x.file(0, 0), "x");
  CHECK_FALSE(x.point().set);
  CHECK(x.point().damage.size() == 2);
}

TEST_CASE("fault 47: each flipped bit of a checkpoint is found") {
  two_sets x;
  const auto newest = x.file(1, 0);
  const auto whole = read_whole(newest);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    auto flipped = whole;
    flipped[i] = static_cast<char>(flipped[i] ^ (1 << (i % 8)));
    write_whole(newest, flipped);
    CHECK_MESSAGE(x.point().set == 0, "byte " << i);
  }
}

TEST_CASE("fault 47: a set whose files are gone is damage but one that was removed in time is not") {
  two_sets x;
  fs::remove_all(x.run + "/checkpoints/0");
  CHECK(x.point().set == 1);
  CHECK(x.point().damage.empty());
  fs::remove(x.file(1, 1));
  auto from = x.point();
  CHECK_FALSE(from.set);
  REQUIRE(from.damage.size() == 1);
  CHECK(has(from.damage[0].text, x.file(1, 1) + "' is not there"));
  fs::remove_all(x.run + "/checkpoints");
  from = x.point();
  CHECK_FALSE(from.set);
  CHECK(from.damage.size() == 1);
}

TEST_CASE("fault 47: a state of another format is told apart from a damaged one") {
  two_sets x;
  auto text = read_whole(x.file(1, 0));
  const auto at = text.find(R"("troupe.format":"1")");
  REQUIRE(at != std::string::npos);
  text[at + 17] = '2';
  write_whole(x.file(1, 0), text);
  const auto from = x.point();
  CHECK(from.set == 0);
  CHECK(from.other_format);
  REQUIRE(from.damage.size() == 1);
  CHECK(has(from.damage[0].text, "it has format '2', and this version of Troupe reads format 1"));
}

TEST_CASE("fault 47: a record of another format is refused") {
  two_sets x;
  auto text = read_whole(x.run + "/run.jsonl");
  const auto at = text.find(R"("format":1)");
  REQUIRE(at != std::string::npos);
  text[at + 9] = '2';
  write_whole(x.run + "/run.jsonl", text);
  const auto seen = read_run(x.run);
  REQUIRE_FALSE(seen);
  CHECK(seen.error().code == errc::refused);
  CHECK(has(seen.error().text, "has format 2, and this version of Troupe reads format 1"));
}

TEST_CASE("fault 66: an experiment that was edited is known by its hash") {
  two_sets x;
  CHECK_FALSE(read_run(x.run)->experiment_changed);
  write_whole(x.run + "/experiment.json", R"({"name": "two", "seed": 7})");
  CHECK(read_run(x.run)->experiment_changed);
}

TEST_CASE("fault 44: a trainer whose last state is not saved has not finished even if an older version said so") {
  two_sets x;
  auto line = json{{"kind", "trainer_finished"}, {"time", ""}, {"trainer", 0}, {"name", "a"},
                   {"not_saved", "no room"},     {"metadata", to_json(report(0, 1, 20))}}.dump();
  write_whole(x.run + "/run.jsonl", read_whole(x.run + "/run.jsonl") + line + "\n" + R"({"kind":"run_ended","outcome":"done"})" + "\n");
  const auto seen = read_run(x.run);
  REQUIRE(seen);
  CHECK(seen->trainers[0].state == trainer_record::status::running);
  CHECK(seen->outcome == "failed");
  CHECK(has(seen->outcome_reason, "the last state of a is not saved"));
  // And it may have come to its end since.
  line = json{{"kind", "trainer_finished"}, {"time", ""}, {"trainer", 0}, {"name", "a"}, {"file", "final/a.safetensors"}}.dump();
  write_whole(x.run + "/run.jsonl", read_whole(x.run + "/run.jsonl") + line + "\n" + R"({"kind":"run_ended","outcome":"done"})" + "\n");
  CHECK(read_run(x.run)->outcome == "done");
}

TEST_CASE("a record that is no file is not read") {
  two_sets x;
  fs::remove(x.run + "/run.jsonl");
  REQUIRE(::mkfifo((x.run + "/run.jsonl").c_str(), 0600) == 0);
  const auto seen = read_run(x.run);
  REQUIRE_FALSE(seen);
  CHECK(has(seen.error().text, "not a regular file"));
}

// -- whose the files are -------------------------------------------------------------------------------------------------

TEST_CASE("fault 53: no file of a run is written through a symbolic link") {
  for (const char* name : {"run.jsonl", "metadata.csv", "lock"}) {
    two_sets x;
    const auto elsewhere = x.folder / "elsewhere";
    write_whole(elsewhere, "mine\n");
    fs::remove(x.run + "/" + name);
    fs::create_symlink(elsewhere, x.run + "/" + name);
    const auto writer = open_run_directory(x.run, two_trainers(), true);
    REQUIRE_FALSE(writer);
    CHECK(has(writer.error().text, std::string{"/"} + name));
    CHECK(has(writer.error().text, "symbolic link"));
    CHECK(read_whole(elsewhere) == "mine\n");
  }
}

TEST_CASE("a directory with names that a run writes is refused and stays as it was") {
  for (const char* name : {"metadata.csv", "slots.json", "products.json", "final", "checkpoints", "final/x", "checkpoints/3/mine"}) {
    temporary_folder folder;
    const auto run = folder / "run";
    fs::create_directories(fs::path{run + "/" + name}.parent_path());
    write_whole(run + "/" + name, "mine");
    const auto before = names_in(run);
    const auto writer = open_run_directory(run, two_trainers(), false);
    REQUIRE_FALSE(writer);
    CHECK(writer.error().code == errc::refused);
    CHECK(has(writer.error().text, "choose another directory"));
    CHECK(names_in(run) == before);
    CHECK(read_whole(run + "/" + name) == "mine");
  }
}

TEST_CASE("fault 55: a trainer may be called as an unfinished file would be") {
  temporary_folder folder;
  const auto run = folder / "run";
  auto exp = two_trainers();
  exp.trainers[0].name = "x.tmp-1";
  exp.trainers[1].name = "x.safetensors.tmp-AbCdEf";
  const auto path = [&](std::size_t t) { return run + "/" + checkpoint_file(0, exp.trainers[t].name); };
  {
    auto writer = open_run_directory(run, exp, false);
    REQUIRE(writer);
    REQUIRE(begin_checkpoint_set(run));
    for (auto t : {0u, 1u})
      REQUIRE(write_checkpoint(path(t), checkpoint{}));
  }
  write_whole(path(0) + ".tmp-AbCdEf", "half");
  write_whole(run + "/checkpoints/0/notes.tmp-AbCdEf", "mine");
  write_whole(run + "/checkpoints/0/a.safetensors.tmp-AbCdE", "mine");
  fs::create_directories(run + "/checkpoints/old.tmp-AbCdEf");
  fs::create_directories(folder / "elsewhere");
  write_whole(folder / "elsewhere/a.safetensors.tmp-AbCdEf", "mine");
  fs::create_directory_symlink(folder / "elsewhere", run + "/checkpoints/7");
  REQUIRE(open_run_directory(run, exp, true));
  CHECK(read_checkpoint(path(0)));
  CHECK(read_checkpoint(path(1)));
  CHECK_FALSE(fs::exists(path(0) + ".tmp-AbCdEf"));
  CHECK(fs::exists(run + "/checkpoints/0/notes.tmp-AbCdEf"));
  CHECK(fs::exists(run + "/checkpoints/0/a.safetensors.tmp-AbCdE"));
  CHECK(fs::exists(run + "/checkpoints/old.tmp-AbCdEf"));
  CHECK(fs::exists(folder / "elsewhere/a.safetensors.tmp-AbCdEf"));
}

TEST_CASE("fault 54: only states of the run's own trainers are removed with old sets") {
  two_sets x;
  for (const char* mine : {"notes.txt", "other.safetensors", "a.safetensors.bak"})
    write_whole(x.run + "/checkpoints/0/" + mine, "mine");
  fs::create_directories(x.folder / "elsewhere");
  write_whole(x.folder / "elsewhere/a.safetensors", "mine");
  fs::rename(x.run + "/checkpoints/0", x.run + "/checkpoints/kept");
  fs::create_directory_symlink(x.folder / "elsewhere", x.run + "/checkpoints/0");
  fs::copy(x.run + "/checkpoints/kept", x.run + "/checkpoints/00");
  const auto seen = read_run(x.run);
  REQUIRE(seen);
  const std::vector<checkpoint_set> used{seen->sets[1].set};
  REQUIRE(prune_checkpoints(x.run, used, {"a", "b"}));
  CHECK(names_in(x.run + "/checkpoints/00") == std::set<std::string>{"notes.txt", "other.safetensors", "a.safetensors.bak"});
  CHECK(names_in(x.run + "/checkpoints/kept").size() == 5);
  CHECK(read_whole(x.folder / "elsewhere/a.safetensors") == "mine");
}

TEST_CASE("whoever looks whether a run is in use keeps nobody from going on with it") {
  two_sets x;
  std::atomic<bool> enough{false};
  std::thread looks([&] {
    while (!enough)
      (void)is_run_in_use(x.run);
  });
  bool opened = true;
  for (int i = 0; i < 100 && opened; ++i)
    opened = open_run_directory(x.run, two_trainers(), true).has_value();
  enough = true;
  looks.join();
  CHECK(opened);
}

// -- a disk that takes nothing ------------------------------------------------------------------------------------------------

TEST_CASE("fault 44: a run that cannot be begun leaves nothing behind") {
  temporary_folder folder;
  const auto there = folder / "there";
  fs::create_directories(there);
  for (rlim_t bytes : {0, 10, 40}) {
    CAPTURE(bytes);
    full_disk full{bytes};
    for (const auto& run : {folder / "new", there}) {
      const auto writer = open_run_directory(run, two_trainers(), false);
      REQUIRE_FALSE(writer);
      CHECK(has(writer.error().text, run));
      CHECK(has(writer.error().text, "File too large"));
    }
  }
  CHECK(names_in(folder / "") == std::set<std::string>{"there"});
  CHECK(open_run_directory(there, two_trainers(), false));
}

TEST_CASE("fault 44: room is asked for before a set is begun") {
  temporary_folder folder;
  CHECK(check_room(folder / "", 1, "a set of 2 states"));
  const auto no = check_room(folder / "", std::uint64_t{1} << 62, "a set of 2 states");
  REQUIRE_FALSE(no);
  CHECK(has(no.error().text, "there is no room for a set of 2 states"));
  CHECK(has(no.error().text, "it takes up to 4611686018427387904 bytes, and "));
  checkpoint x;
  x.add<float>("weights.w", dtype::f32, {1000}, std::vector<float>(1000));
  REQUIRE(write_checkpoint(folder / "x.safetensors", x));
  struct stat st {};
  REQUIRE(::stat((folder / "x.safetensors").c_str(), &st) == 0);
  CHECK(checkpoint_room(x) >= static_cast<std::uint64_t>(st.st_blocks) * 512);
}

TEST_CASE("fault 44: of a set that failed nothing stays") {
  two_sets x;
  const auto before = names_in(x.run);
  const auto number = begin_checkpoint_set(x.run);
  REQUIRE(number);
  checkpoint_set set{*number, {}, {{0, "a", 0, 30, checkpoint_file(*number, "a")}, {1, "b", 0, 20, checkpoint_file(1, "b")}}};
  REQUIRE(write_checkpoint(x.run + "/" + set.trainers[0].file, checkpoint{}));
  discard_checkpoint_set(x.run, set);
  CHECK(names_in(x.run) == before); // what it shares with an older set too
  CHECK(*begin_checkpoint_set(x.run, 12) == 12);
}

TEST_CASE("fault 64: a run whose directory is gone or another is told so at once") {
  for (bool replaced : {false, true}) {
    temporary_folder folder;
    const auto run = folder / "run";
    auto writer = open_run_directory(run, two_trainers(), false);
    REQUIRE(writer);
    REQUIRE((*writer)->check_place());
    fs::rename(run, folder / "elsewhere");
    if (replaced)
      REQUIRE(open_run_directory(run, two_trainers(), false));
    for (const auto& ok : {(*writer)->check_place(), (*writer)->sync_point(0, {report(0, 0, 10)}, {}),
                           (*writer)->checkpoint_set(checkpoint_set{}), (*writer)->flush()}) {
      REQUIRE_FALSE(ok);
      CHECK(has(ok.error().text, run + "/run.jsonl' is gone"));
    }
  }
}
