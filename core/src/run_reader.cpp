#include "troupe/core/run_reader.hpp"

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "files.hpp"
#include "run_files.hpp"
#include "troupe/core/checkpoint.hpp"

namespace troupe::core {

namespace fs = std::filesystem;
using namespace internal;
using nlohmann::json;

std::string_view to_string(trainer_record::status x) noexcept {
  switch (x) {
  case trainer_record::status::not_started: return "not started";
  case trainer_record::status::running: return "running";
  case trainer_record::status::finished: return "finished";
  case trainer_record::status::failed: return "failed";
  }
  return "unknown";
}

namespace {

/// Calls `visit(line, end)` for each whole line, `end` being the position behind it, up to position `up_to`; returns whether an
/// unfinished line was left.
template <class Visit>
result<bool> each_line(const std::string& path, std::uint64_t up_to, Visit visit) {
  unique_fd fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  struct stat st {};
  if (!fd || ::fstat(fd.get(), &st) != 0)
    return file_error("read", path, errno);
  if (!S_ISREG(st.st_mode))
    return error{errc::io, "cannot read '" + path + "': it is not a regular file"};
  constexpr std::size_t block = 1 << 18;
  std::string pending;      // what was read and not yet visited
  std::uint64_t begin = 0;  // its position in the file
  for (;;) {
    auto searched = pending.size();
    pending.resize(searched + block);
    auto n = ::read(fd.get(), pending.data() + searched, block);
    if (n < 0 && errno != EINTR)
      return file_error("read", path, errno);
    pending.resize(searched + static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
    if (n == 0)
      return !pending.empty();
    std::size_t start = 0;
    for (auto newline = pending.find('\n', searched); newline != std::string::npos; newline = pending.find('\n', start)) {
      auto end = begin + newline + 1;
      if (end > up_to)
        return false;
      if (auto ok = visit(std::string_view{pending}.substr(start, newline - start), end); !ok)
        return ok.error();
      start = newline + 1;
    }
    pending.erase(0, start);
    begin += start;
  }
}

result<void> check_format(const std::string& file, std::string_view kind, const json& line) {
  const auto format = kind == "run" ? line.find("format") : line.end();
  if (format == line.end() || (format->is_number_unsigned() && format->get<std::uint64_t>() == record_format))
    return {};
  return error{errc::refused, "'" + file + "' has format " + format->dump() + ", and this version of Troupe reads format " +
                                  std::to_string(record_format) + ": use the version that wrote it"};
}

/// Calls `visit(kind, object, end)` for each whole line of the record.
template <class Visit>
result<bool> each_record(const std::string& path, std::uint64_t up_to, Visit visit) {
  auto file = path + "/" + log_file;
  std::uint64_t line_number = 0;
  return each_line(file, up_to, [&](std::string_view line, std::uint64_t end) -> result<void> {
    ++line_number;
    auto j = json::parse(line, nullptr, false);
    auto kind = j.is_object() ? j.find("kind") : j.end();
    if (!j.is_object() || kind == j.end() || !kind->is_string())
      return error{errc::io, "'" + file + "' is damaged: line " + std::to_string(line_number) + " is no record"};
    auto name = kind->get<std::string>();
    if (auto ok = check_format(file, name, j); !ok)
      return ok;
    visit(name, j, end);
    return {};
  });
}

/// Gathers the state of a run from its lines. Lines and members it does not know are skipped: a newer version may have
/// written them.
class record_builder {
public:
  explicit record_builder(run_record& out) : out_(out) {}

  void line(std::string_view kind, json& j, std::uint64_t end) {
    if (kind == "run") {
      if (auto n = number(j, "trainers"); n && *n <= 1'000'000 && *n > 0)
        trainer(static_cast<trainer_id>(*n - 1));
      if (auto hash = text(j, "experiment_hash"); !hash.empty())
        out_.experiment_changed = hash != text_hash(out_.experiment_text);
      flushes_ = flag(j, "flushes_subnormals");
      out_.flushed_subnormals = out_.flushed_subnormals && flushes_;
      out_.outcome.clear(); // it was opened again
      out_.begun = true;
    } else if (kind == "gone_on" && !j.contains("set")) { // from step 0: nothing of what was before is in it
      out_.flushed_subnormals = flushes_;
    } else if (kind == "sync_point") {
      sync_point(j);
    } else if (kind == "checkpoint_set") {
      set(without_frame(j), end);
    } else if (kind == "run_ended") {
      out_.outcome = text(j, "outcome");
      out_.outcome_reason = text(j, "reason");
      if (out_.outcome == "done" && !unsaved_.empty()) { // as versions before 0.2 wrote it
        out_.outcome = "failed";
        out_.outcome_reason = "the last state of " + unsaved_ + " is not saved";
      }
    } else if (kind.starts_with("trainer_")) {
      trainer_event(kind, j);
    }
  }

private:
  void set(const json& j, std::uint64_t end) {
    if (auto n = number(j, "number"); n && *n < UINT32_MAX)
      out_.next_set = std::max(out_.next_set, static_cast<std::uint32_t>(*n) + 1);
    if (auto set = checkpoint_set_from_json(j, ""))
      out_.sets.push_back({*std::move(set), end, {}});
    else
      out_.sets.push_back({{out_.next_set ? out_.next_set - 1 : 0, {}, {}}, end, "its line in the record is damaged: " + set.error().text});
  }

  static json without_frame(const json& j) {
    auto out = j;
    out.erase("kind");
    out.erase("time");
    return out;
  }
  static std::optional<std::uint64_t> number(const json& j, const char* key) {
    auto i = j.find(key);
    return i != j.end() && i->is_number_unsigned() ? std::optional{i->get<std::uint64_t>()} : std::nullopt;
  }
  static bool flag(const json& j, const char* key) {
    auto i = j.find(key);
    return i != j.end() && i->is_boolean() && i->get<bool>();
  }
  static std::string text(const json& j, const char* key) {
    auto i = j.find(key);
    return i != j.end() && i->is_string() ? i->get<std::string>() : std::string{};
  }

  trainer_record& trainer(trainer_id t) {
    while (out_.trainers.size() <= t) {
      auto number = static_cast<trainer_id>(out_.trainers.size());
      out_.trainers.emplace_back().trainer = number;
    }
    return out_.trainers[t];
  }

  trainer_record* trainer_of(const json& j) {
    auto t = number(j, "trainer");
    if (!t || *t > 2'000'000) // a damaged line must not make us allocate without bound
      return nullptr;
    auto& x = trainer(static_cast<trainer_id>(*t));
    if (auto name = text(j, "name"); !name.empty())
      x.name = std::move(name);
    if (auto n = number(j, "incarnation"))
      x.incarnation = static_cast<std::uint32_t>(*n);
    if (auto n = number(j, "step"))
      x.step = *n;
    return &x;
  }

  void sync_point(json& j) {
    if (auto k = number(j, "index"))
      out_.last_sync = static_cast<sync_index>(*k);
    auto list = j.find("trainers");
    if (list == j.end() || !list->is_array())
      return;
    for (auto& report : *list) {
      report.erase("decision");
      auto* x = trainer_of(report);
      if (!x)
        continue;
      if (x->state == trainer_record::status::not_started)
        x->state = trainer_record::status::running;
      if (auto m = metadata_from_json(report, ""))
        x->last = *std::move(m);
    }
  }

  void trainer_event(std::string_view kind, json& j) {
    auto* x = trainer_of(j);
    if (!x)
      return;
    if (kind == "trainer_started") {
      x->state = trainer_record::status::running;
      x->stopped = false;
      x->reason.clear();
    } else if (kind == "trainer_added") {
      x->added = text(j, "text");
    } else if (kind == "trainer_finished") {
      const auto why = text(j, "not_saved"); // its weights are nowhere, so it is not finished
      if (!why.empty())
        unsaved_ = x->name;
      else if (unsaved_ == x->name)
        unsaved_.clear();
      x->state = why.empty() ? trainer_record::status::finished : trainer_record::status::running;
      x->stopped = flag(j, "stopped");
      x->reason = text(j, "reason");
      if (auto i = j.find("metadata"); i != j.end())
        if (auto m = metadata_from_json(*i, "")) {
          x->step = m->step;
          x->last = *std::move(m);
        }
    } else if (kind == "trainer_failed") {
      x->reason = text(j, "reason");
      if (flag(j, "final"))
        x->state = trainer_record::status::failed;
    }
  }

  run_record& out_;
  bool flushes_ = false; // the newest session
  std::string unsaved_; ///< the name of a trainer whose last state could not be written
};

} // namespace

result<bool> visit_run(const std::string& path, const std::function<void(std::string_view, json&)>& visit) {
  return each_record(path, UINT64_MAX, [&](std::string_view kind, json& j, std::uint64_t) { visit(kind, j); });
}

result<run_record> read_run(const std::string& path, std::uint64_t up_to) {
  run_record out;
  auto text = read_text_file(path + "/" + experiment_file, max_experiment_bytes);
  if (!text) {
    if (text.error().code == errc::not_found)
      return error{errc::not_found, "'" + path + "' holds no run: there is no " + experiment_file};
    return text.error();
  }
  out.experiment_text = *std::move(text);
  std::error_code ignored;
  if (!fs::exists(path + "/" + log_file, ignored)) // the run was cut off before its first line
    return out;
  record_builder builder{out};
  auto torn = each_record(path, up_to, [&](std::string_view kind, json& j, std::uint64_t end) { builder.line(kind, j, end); });
  if (!torn)
    return torn.error();
  out.torn = *torn;
  for (auto& s : out.sets)
    for (auto& t : s.set.trainers)
      if (s.missing.empty() && !fs::exists(path + "/" + t.file, ignored))
        s.missing = t.file;
  return out;
}

result<json> read_slots(const std::string& path) {
  const auto file = path + "/" + slots_file;
  auto text = read_text_file(file, max_experiment_bytes);
  if (!text)
    return text.error();
  auto j = json::parse(*text, nullptr, false);
  for (const auto& [key, is] : {std::pair{"time", &json::is_string}, std::pair{"at_end", &json::is_boolean}, std::pair{"slots", &json::is_array}})
    if (!j.is_object() || !j.contains(key) || !(j[key].*is)())
      return error{errc::io, "'" + file + "' is damaged: there is no \"" + key + "\" in it as it should be"};
  return j;
}

bool is_run_in_use(const std::string& path) {
  unique_fd fd{::open((path + "/" + lock_file).c_str(), O_RDONLY | O_CLOEXEC)};
  return fd && ::flock(fd.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

namespace {

std::string name_of(const recorded_set& x) {
  auto out = "checkpoint set " + std::to_string(x.set.number);
  if (x.set.sync)
    out += " (sync point " + std::to_string(*x.set.sync) + ")";
  return out;
}

/// Sets give up their place to newer ones, the newest never.
bool was_removed_in_time(const std::string& path, const run_record& run, std::size_t i) {
  std::error_code ignored;
  return i + 1 < run.sets.size() && !fs::exists(path + "/" + checkpoints_folder + "/" + std::to_string(run.sets[i].set.number), ignored);
}

} // namespace

bool holds_states(const std::string& path) {
  std::error_code failure;
  for (const char* name : {checkpoints_folder, final_folder})
    for (fs::recursive_directory_iterator i{path + "/" + name, failure}, end; !failure && i != end; i.increment(failure))
      if (i->path().extension() == state_ending)
        return true;
  return false;
}

resume_point find_resume_point(const std::string& path, const run_record& run) {
  resume_point out;
  for (auto i = run.sets.size(); i-- > 0;) {
    const auto& x = run.sets[i];
    error why;
    if (!x.missing.empty()) {
      if (was_removed_in_time(path, run, i))
        continue;
      why = {errc::not_found, x.set.trainers.empty() ? x.missing : "'" + path + "/" + x.missing + "' is not there"};
    } else {
      for (auto& t : x.set.trainers)
        if (auto state = read_checkpoint(path + "/" + t.file); !state) {
          why = state.error();
          break;
        }
    }
    if (why.text.empty()) {
      out.set = i;
      return out;
    }
    out.other_format = out.other_format || why.code == errc::refused;
    out.damage.push_back({why.code, name_of(x) + " cannot be used: " + why.text});
  }
  return out;
}

} // namespace troupe::core
