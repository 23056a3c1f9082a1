#include "files.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <latch>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include <unistd.h>

#include "temporary_folder.hpp"

using namespace troupe;
using namespace troupe::cli;
namespace fs = std::filesystem;

namespace {

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

/// The current folder while it lives.
class visit {
public:
  explicit visit(const std::string& folder) { fs::current_path(folder); }
  ~visit() { fs::current_path(before_); }

private:
  fs::path before_ = fs::current_path();
};

} // namespace

TEST_CASE("of many that ask for a run directory at once each gets its own") {
  temporary_folder folder;
  const visit here{folder.path()};
  constexpr int threads = 8, each = 20;
  std::latch all{threads};
  std::mutex mutex;
  std::vector<claimed_directory> kept;
  std::set<std::string> names;
  std::vector<std::thread> askers;
  for (int i = 0; i < threads; ++i)
    askers.emplace_back([&] {
      all.arrive_and_wait();
      for (int n = 0; n < each; ++n) {
        auto x = claimed_directory::claim("", "e");
        const std::lock_guard lock{mutex};
        if (x) {
          names.insert(x->path());
          kept.push_back(*std::move(x));
        }
      }
    });
  for (auto& t : askers)
    t.join();
  CHECK(kept.size() == threads * each);
  CHECK(names.size() == threads * each);
  CHECK(names.contains("runs/e-1"));
  CHECK(names.contains("runs/e-" + std::to_string(threads * each)));
}

TEST_CASE("a run directory that nothing came to be in is removed and others are kept") {
  temporary_folder folder;
  const visit here{folder.path()};
  { auto unused = claimed_directory::claim("", "e"); }
  CHECK_FALSE(fs::exists("runs/e-1"));
  {
    auto used = claimed_directory::claim("deep/down", "e");
    REQUIRE(used);
    write_whole("deep/down/file", "");
  }
  CHECK(fs::exists("deep/down/file"));
  fs::create_directory("mine");
  { auto given = claimed_directory::claim("mine", "e"); }
  CHECK(fs::exists("mine"));
}

TEST_CASE("a run directory that cannot be made is wrong use with its name and the reason") {
  temporary_folder folder;
  const visit here{folder.path()};
  write_whole("file", "");
  fs::create_symlink("nowhere", "dangling");
  const auto fault = [](const std::string& wanted) {
    auto x = claimed_directory::claim(wanted, "e");
    REQUIRE_FALSE(x);
    CHECK(x.error().code == core::errc::invalid_argument);
    return x.error().text;
  };
  CHECK(contains(fault("file"), "'file' is no directory: --out names the run's directory"));
  CHECK(contains(fault("file/run"), "cannot make folder 'file"));
  CHECK(contains(fault("dangling"), "cannot make folder 'dangling': No such file or directory"));
  CHECK(contains(fault(std::string(300, 'x')), "File name too long"));
  CHECK(contains(fault("/proc/run"), "cannot make folder '/proc/run': "));
  write_whole("runs", "");
  CHECK(fault("") == "cannot make folder 'runs': Not a directory");
  fs::remove("runs");
  fs::create_symlink("nowhere", "runs");
  CHECK(fault("") == "cannot make folder 'runs': No such file or directory");
}

TEST_CASE("paths in a file count against its folder and those of standard input against the current one") {
  temporary_folder folder;
  const visit here{folder.path()};
  const auto current = fs::current_path().string();
  fs::create_directory("sub");
  write_whole("sub/e.json", "{}");
  write_whole("e.json", "{}");
  CHECK(folder_of("e.json") == current);
  CHECK(folder_of("sub/e.json") == current + "/sub");
  CHECK(folder_of(current + "/sub/e.json") == current + "/sub");
  CHECK(folder_of("-") == current);
  CHECK(folder_of("/dev/null") == current);
}
