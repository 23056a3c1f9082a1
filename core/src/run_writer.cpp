#include "troupe/core/run_writer.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <charconv>
#include <cmath>
#include <filesystem>

#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "checkpoint_files.hpp"
#include "files.hpp"
#include "json_text.hpp"
#include "line_file.hpp"
#include "run_files.hpp"
#include "troupe/core/json_lines.hpp"
#include "troupe/core/subnormals.hpp"

namespace troupe::core {

namespace fs = std::filesystem;
using namespace internal;

namespace {

constexpr std::string_view table_header =
    "time,sync,trainer,name,incarnation,step,epoch,samples,loss,accuracy,grad_norm,compute_seconds,wait_seconds,"
    "sync_seconds,memory_bytes,hyperparameters,numbers\n";

/// A field in quotes (RFC 4180).
void append_quoted(std::string& out, std::string_view text) {
  out += '"';
  for (char c : text) {
    if (c == '"')
      out += '"';
    out += c;
  }
  out += '"';
}

/// NaN, which means "not measured", is an empty field.
void append_field(std::string& out, double x) {
  std::array<char, 32> buffer;
  out += ',';
  if (!std::isnan(x))
    out.append(buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), x).ptr);
}
void append_field(std::string& out, std::uint64_t x) {
  out += ',';
  append_json(out, x);
}

class directory_writer final : public run_writer {
public:
  directory_writer(const std::string& path, unique_fd lock, line_file log, line_file table)
      : slots_path_(path + "/" + slots_file), lock_(std::move(lock)), log_(std::move(log)), table_(std::move(table)) {}

  /// The first line of a run, and of each time it is opened again.
  result<void> begin(const experiment& exp, std::string_view text, bool again) {
    auto now = start_line("run");
    line_ += R"(,"format":)";
    append_json(line_, record_format);
    line_ += R"(,"experiment":)";
    append_json_string(line_, exp.name);
    line_ += R"(,"experiment_hash":)";
    append_json_string(line_, text_hash(text));
    line_ += R"(,"seed":)";
    append_json(line_, exp.seed);
    line_ += R"(,"trainers":)";
    append_json(line_, std::uint64_t{exp.trainers.size()});
    line_ += again ? R"(,"again":true)" : R"(,"again":false)";
    line_ += can_flush_subnormals ? R"(,"flushes_subnormals":true})" : R"(,"flushes_subnormals":false})";
    if (table_.empty())
      if (auto ok = table_.append(table_header); !ok)
        return ok;
    return end_line(true);
  }

  result<void> sync_point(sync_index k, const std::vector<metadata>& reports,
                          const std::map<trainer_id, decision>& decisions) override {
    if (auto ok = log_.check_name(); !ok)
      return ok;
    auto now = start_line("sync_point");
    line_ += ',';
    append_sync_point(line_, k, reports, decisions);
    line_ += '}';
    rows_.clear();
    for (auto& m : reports)
      append_row(m, now);
    if (auto ok = table_.append(rows_); !ok)
      return ok;
    return end_line(false);
  }

  result<void> event(std::string_view kind, const nlohmann::json& details) override {
    if (!details.is_object())
      return error{errc::invalid_argument, "the details of event '" + std::string{kind} + "' must be a JSON object"};
    auto now = start_line(kind);
    auto text = details.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    if (text.size() > 2) { // not {}
      line_ += ',';
      line_.append(text, 1);
    } else {
      line_ += '}';
    }
    if (auto m = details.find("metadata"); m != details.end())
      if (auto report = metadata_from_json(*m, "/metadata")) {
        rows_.clear();
        append_row(*report, now);
        if (auto ok = table_.append(rows_); !ok)
          return ok;
      }
    return end_line(false);
  }

  result<void> checkpoint_set(const core::checkpoint_set& set) override {
    if (auto ok = log_.check_name(); !ok)
      return ok;
    start_line("checkpoint_set");
    line_ += ',';
    line_.append(to_json(set).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), 1);
    return end_line(true);
  }

  result<void> check_place() override { return log_.check_name(); }

  result<void> slots(const nlohmann::json& list, bool at_end) override {
    auto file = atomic_file::create(slots_path_);
    if (!file)
      return file.error();
    const nlohmann::json whole{{"time", utc_text(std::chrono::system_clock::now())}, {"at_end", at_end}, {"slots", list}};
    const auto text = whole.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    if (auto ok = file->write(std::as_bytes(std::span{text})); !ok)
      return ok;
    file->close();
    return file->publish();
  }

  result<void> flush() override {
    if (auto ok = log_.check_name(); !ok)
      return ok;
    if (auto ok = table_.sync(); !ok)
      return ok;
    return log_.sync();
  }

private:
  std::string start_line(std::string_view kind) {
    auto now = utc_text(std::chrono::system_clock::now());
    line_ = R"({"kind":)";
    append_json_string(line_, kind);
    line_ += R"(,"time":")";
    line_ += now;
    line_ += '"';
    return now;
  }

  result<void> end_line(bool durable) {
    line_ += '\n';
    return durable ? log_.append_durably(line_) : log_.append(line_);
  }

  void append_row(const metadata& m, std::string_view now) {
    rows_ += now;
    append_field(rows_, std::uint64_t{m.sync});
    append_field(rows_, std::uint64_t{m.trainer});
    rows_ += ',';
    append_quoted(rows_, m.name);
    append_field(rows_, std::uint64_t{m.incarnation});
    append_field(rows_, m.step);
    append_field(rows_, m.epoch);
    append_field(rows_, m.samples);
    append_field(rows_, m.loss);
    append_field(rows_, m.accuracy);
    append_field(rows_, m.grad_norm);
    append_field(rows_, m.compute_seconds);
    append_field(rows_, m.wait_seconds);
    append_field(rows_, m.sync_seconds);
    append_field(rows_, m.memory_bytes);
    rows_ += ',';
    text_.clear();
    append_json(text_, m.hp);
    append_quoted(rows_, text_);
    rows_ += ',';
    text_.clear();
    append_json(text_, m.numbers);
    append_quoted(rows_, text_);
    rows_ += '\n';
  }

  std::string slots_path_;
  unique_fd lock_; ///< held as long as the directory is open
  line_file log_;
  line_file table_;
  std::string line_, rows_, text_; ///< reused, so that a report costs no allocation
};

error refused(const std::string& path, std::string_view what) {
  return {errc::refused, "'" + path + "' " + std::string{what}};
}

/// Removes what a crash left of files that were being written: exactly the names that such files have, where they were made.
void remove_unfinished(const fs::path& run) {
  std::error_code failure;
  std::vector<fs::path> unfinished;
  const auto look = [&](const fs::path& folder, auto is_ours) {
    for (fs::directory_iterator i{folder, failure}, end; !failure && i != end; i.increment(failure))
      if (i->symlink_status(failure).type() == fs::file_type::regular && is_ours(i->path().filename().string()))
        unfinished.push_back(i->path());
  };
  const auto is_state = [](const std::string& name) {
    const auto at = name.rfind(state_ending);
    return at != std::string::npos && at > 0 && atomic_file::is_unfinished(name, name.substr(0, at + state_ending.size()));
  };
  look(run, [](const std::string& name) {
    return std::ranges::any_of(std::array{experiment_file, slots_file},
                               [&](const char* whole) { return atomic_file::is_unfinished(name, whole); });
  });
  look(run / final_folder, is_state);
  std::vector<fs::path> sets;
  for (fs::directory_iterator i{run / checkpoints_folder, failure}, end; !failure && i != end; i.increment(failure))
    if (is_set_folder(*i))
      sets.push_back(i->path());
  for (const auto& set : sets)
    look(set, is_state);
  for (auto& p : unfinished) // one that cannot be removed does no harm
    fs::remove(p, failure);
}

/// Names that a run will write, in a folder that holds none yet: somebody else's files are neither written to nor replaced.
result<void> check_names_free(const std::string& path) {
  std::error_code failure;
  for (const char* name : {table_file, slots_file, products_file, control_file})
    if (fs::exists(fs::symlink_status(path + "/" + name, failure)))
      return refused(path, std::string{"holds a file "} + name + " already, which the run would write: choose another directory");
  for (const char* name : {checkpoints_folder, final_folder}) {
    const auto folder = path + "/" + name;
    if (!fs::exists(fs::symlink_status(folder, failure)))
      continue;
    if (!fs::is_directory(folder, failure))
      return refused(path, std::string{"holds a file "} + name + ", where the run needs a folder: choose another directory");
    if (!fs::is_empty(folder, failure) || failure)
      return refused(path, std::string{"has something in its folder "} + name + " already: choose another directory");
  }
  return {};
}

/// Removes the names of a run that could not be begun, which nobody could go on with, unless it is told that it began.
class beginning {
public:
  /// `made`: the directory was, for this run; `locked`: its file `lock` was there before.
  beginning(std::string path, bool made, bool locked) : path_(std::move(path)), made_(made), locked_(locked) {}
  ~beginning() {
    if (path_.empty())
      return;
    std::error_code ignored;
    for (const char* name : {experiment_file, log_file, table_file, lock_file, checkpoints_folder, final_folder})
      if (!locked_ || name != lock_file)
        fs::remove(path_ + "/" + name, ignored); // folders only if they are empty
    if (made_)
      fs::remove(path_, ignored);
  }
  beginning(const beginning&) = delete;
  beginning& operator=(const beginning&) = delete;
  void succeeded() noexcept { path_.clear(); }

private:
  std::string path_;
  bool made_, locked_;
};

result<void> write_experiment(const std::string& path, const std::string& text) {
  auto file = atomic_file::create(path);
  if (!file)
    return file.error();
  if (auto ok = file->write(std::as_bytes(std::span{text})); !ok)
    return ok;
  return file->commit();
}

/// Whoever looks whether a run is in use has its lock for a moment, which must not be taken for a program that runs it.
result<void> take_lock(int lock, const std::string& path) {
  while (::flock(lock, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR)
      continue;
    if (errno == EWOULDBLOCK && ::flock(lock, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK)
      return refused(path, "is in use: a program is running it");
    if (errno != EWOULDBLOCK)
      return file_error("lock", path + "/" + lock_file, errno);
    ::flock(lock, LOCK_UN);
    ::sched_yield();
  }
  return {};
}

result<void> make_folders(const std::string& path) {
  std::error_code failure;
  for (const char* name : {checkpoints_folder, final_folder}) {
    const auto folder = path + "/" + name;
    fs::create_directories(folder, failure);
    if (!failure && !fs::is_directory(folder, failure))
      failure = std::make_error_code(std::errc::not_a_directory);
    if (failure)
      return file_error("make folder", folder, failure.value());
  }
  return {};
}

} // namespace

result<std::unique_ptr<run_writer>> open_run_directory(const std::string& path, const experiment& exp, bool append) {
  std::error_code failure;
  auto text = exp.text.empty() ? experiment_text(exp) : exp.text;
  auto holds_run = [&] { return fs::exists(path + "/" + experiment_file, failure) || fs::exists(path + "/" + log_file, failure); };
  auto taken = [&] {
    return refused(path, "holds a run already: choose another directory, or go on with it (`troupe resume`; run_options::resume in a program)");
  };
  if (append && !holds_run())
    return error{errc::not_found, "'" + path + "' holds no run: there is no " + experiment_file};
  if (!append && holds_run())
    return taken();
  if (!append)
    if (auto ok = check_names_free(path); !ok)
      return ok.error();
  const bool there = fs::exists(path, failure);
  fs::create_directories(path, failure);
  if (!failure && !fs::is_directory(path, failure))
    failure = std::make_error_code(std::errc::not_a_directory);
  if (failure)
    return file_error("make folder", path, failure.value());

  auto lock_path = path + "/" + lock_file;
  const bool locked = fs::exists(lock_path, failure);
  auto lock = open_own_file(lock_path, O_RDWR | O_CREAT);
  if (!lock) {
    if (!there)
      fs::remove(path, failure);
    return lock.error();
  }
  if (auto ok = take_lock(lock->get(), path); !ok)
    return ok.error();

  if (!append && holds_run()) // another program was quicker between the first look and the lock
    return taken();
  std::optional<beginning> begun;
  if (!append)
    begun.emplace(path, !there, locked);
  if (auto ok = make_folders(path); !ok)
    return ok.error();
  if (append) {
    auto old = read_text_file(path + "/" + experiment_file, max_experiment_bytes);
    if (!old)
      return old.error();
    if (*old != text)
      return refused(path, std::string{"holds another experiment: its "} + experiment_file + " differs from this one's");
    remove_unfinished(path);
  } else if (auto ok = write_experiment(path + "/" + experiment_file, text); !ok) {
    return ok.error();
  }
  auto log = line_file::open(path + "/" + log_file);
  if (!log)
    return log.error();
  auto table = line_file::open(path + "/" + table_file);
  if (!table)
    return table.error();
  if (auto ok = sync_parent_folder(path + "/" + log_file); !ok)
    return ok.error();
  auto writer = std::make_unique<directory_writer>(path, *std::move(lock), *std::move(log), *std::move(table));
  if (auto ok = writer->begin(exp, text, append); !ok)
    return ok.error();
  if (begun)
    begun->succeeded();
  return std::unique_ptr<run_writer>{std::move(writer)};
}

} // namespace troupe::core
