#include "troupe/core/run_writer.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <charconv>
#include <cmath>
#include <filesystem>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "files.hpp"
#include "json_text.hpp"
#include "run_files.hpp"
#include "troupe/core/json_lines.hpp"

namespace troupe::core {

namespace fs = std::filesystem;
using namespace internal;

namespace {

/// A file that only grows by whole lines: what a failed write left of a line is cut off again.
class line_file {
public:
  /// Opens or creates it, and cuts off a last line without its end.
  static result<line_file> open(const std::string& path) {
    unique_fd fd{::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644)};
    struct stat st {};
    if (!fd || ::fstat(fd.get(), &st) != 0)
      return file_error("open", path, errno);
    auto size = static_cast<std::uint64_t>(st.st_size);
    auto end = size;
    for (std::string block; end > 0;) {
      block.resize(std::min<std::uint64_t>(end, 1 << 16));
      auto begin = end - block.size();
      if (auto ok = read_exactly(fd.get(), begin, std::as_writable_bytes(std::span{block}), path); !ok)
        return ok.error();
      auto newline = block.rfind('\n');
      end = newline == std::string::npos ? begin : begin + newline + 1;
      if (newline != std::string::npos)
        break;
    }
    if (end != size && ::ftruncate(fd.get(), static_cast<off_t>(end)) != 0)
      return file_error("cut off the torn last line of", path, errno);
    return line_file{std::move(fd), path, end};
  }

  bool empty() const noexcept { return size_ == 0; }

  result<void> append(std::string_view lines) {
    auto ok = write_all(fd_.get(), lines, path_);
    if (ok)
      size_ += lines.size();
    else if (::ftruncate(fd_.get(), static_cast<off_t>(size_)) != 0)
      return file_error("cut off an unfinished line of", path_, errno);
    return ok;
  }

  result<void> sync() {
    if (::fdatasync(fd_.get()) != 0)
      return file_error("sync", path_, errno);
    return {};
  }

private:
  line_file(unique_fd fd, std::string path, std::uint64_t size) : fd_(std::move(fd)), path_(std::move(path)), size_(size) {}

  unique_fd fd_;
  std::string path_;
  std::uint64_t size_;
};

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
  result<void> begin(const experiment& exp, bool again) {
    auto now = start_line("run");
    line_ += R"(,"format":1,"experiment":)";
    append_json_string(line_, exp.name);
    line_ += R"(,"seed":)";
    append_json(line_, exp.seed);
    line_ += R"(,"trainers":)";
    append_json(line_, std::uint64_t{exp.trainers.size()});
    line_ += again ? R"(,"again":true})" : R"(,"again":false})";
    if (table_.empty())
      if (auto ok = table_.append(table_header); !ok)
        return ok;
    return end_line(true);
  }

  result<void> sync_point(sync_index k, const std::vector<metadata>& reports,
                          const std::map<trainer_id, decision>& decisions) override {
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
    start_line("checkpoint_set");
    line_ += ',';
    line_.append(to_json(set).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), 1);
    return end_line(true);
  }

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
    auto ok = log_.append(line_);
    return ok && durable ? log_.sync() : ok;
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

/// What a crash left of checkpoints that were being written.
void remove_unfinished(const fs::path& checkpoints) {
  std::error_code failure;
  std::vector<fs::path> unfinished;
  for (fs::recursive_directory_iterator i{checkpoints, failure}, end; !failure && i != end; i.increment(failure))
    if (i->path().filename().string().find(atomic_file::marker) != std::string::npos)
      unfinished.push_back(i->path());
  for (auto& p : unfinished) // one that cannot be removed does no harm
    fs::remove(p, failure);
}

result<void> write_experiment(const std::string& path, const std::string& text) {
  auto file = atomic_file::create(path);
  if (!file)
    return file.error();
  if (auto ok = file->write(std::as_bytes(std::span{text})); !ok)
    return ok;
  return file->commit();
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
  fs::create_directories(fs::path{path} / checkpoints_folder, failure);
  if (failure)
    return file_error("make folder", path, failure.value());

  auto lock_path = path + "/" + lock_file;
  unique_fd lock{::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)};
  if (!lock)
    return file_error("open", lock_path, errno);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
    return errno == EWOULDBLOCK ? refused(path, "is in use: a program is running it") : file_error("lock", lock_path, errno);

  if (!append && holds_run()) // another program was quicker between the first look and the lock
    return taken();
  if (append) {
    auto old = read_text_file(path + "/" + experiment_file, max_experiment_bytes);
    if (!old)
      return old.error();
    if (*old != text)
      return refused(path, std::string{"holds another experiment: its "} + experiment_file + " differs from this one's");
    remove_unfinished(fs::path{path} / checkpoints_folder);
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
  auto writer = std::make_unique<directory_writer>(path, std::move(lock), *std::move(log), *std::move(table));
  if (auto ok = writer->begin(exp, append); !ok)
    return ok.error();
  return std::unique_ptr<run_writer>{std::move(writer)};
}

} // namespace troupe::core
