#include "run_store.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

namespace troupe::actors::internal {

core::result<std::unique_ptr<run_store>> run_store::open(const std::string& directory,
                                                         const core::experiment& exp, bool append) {
  std::unique_ptr<core::run_writer> writer;
  if (!directory.empty()) {
    auto opened = core::open_run_directory(directory, exp, append);
    if (!opened)
      return opened.error();
    writer = std::move(*opened);
  }
  return std::unique_ptr<run_store>(new run_store(directory, std::move(writer)));
}

run_store::run_store(std::string directory, std::unique_ptr<core::run_writer> writer)
    : directory_(std::move(directory)), writer_(std::move(writer)), thread_("troupe store") {}

run_store::~run_store() = default;

void run_store::sync_point(std::shared_ptr<const sync_point_event> x, done then) {
  thread_.post([this, x = std::move(x), then = std::move(then)] {
    auto ok = writer_ ? writer_->sync_point(x->index, x->reports, x->decisions) : core::result<void>{};
    if (ok && !event_failure_.text.empty())
      ok = event_failure_;
    then(std::move(ok));
  });
}

void run_store::event(std::string kind, nlohmann::json details) {
  if (!writer_)
    return;
  thread_.post([this, kind = std::move(kind), details = std::move(details)] {
    if (auto ok = writer_->event(kind, details); !ok && event_failure_.text.empty())
      event_failure_ = ok.error();
  });
}

void run_store::slots(nlohmann::json list, bool at_end) {
  if (!writer_)
    return;
  thread_.post([this, list = std::move(list), at_end] {
    const auto ok = writer_->slots(list, at_end);
    if (ok || std::exchange(slots_failed_, true))
      return;
    if (auto noted = writer_->event("slots_not_written", {{"reason", ok.error().text}}); !noted && event_failure_.text.empty())
      event_failure_ = noted.error();
  });
}

void run_store::flush(done then) {
  thread_.post([this, then = std::move(then)] {
    auto ok = writer_ ? writer_->flush() : core::result<void>{};
    if (ok && !event_failure_.text.empty())
      ok = event_failure_;
    then(std::move(ok));
  });
}

void run_store::save_set(std::optional<core::sync_index> k, std::vector<part> parts, std::uint32_t keep,
                         std::vector<core::checkpoint_set> pinned,
                         std::function<void(core::result<core::checkpoint_set>)> then) {
  thread_.post([this, k, parts = std::move(parts), keep, pinned = std::move(pinned), then = std::move(then)] {
    then(write_set(k, parts, keep, pinned));
  });
}

core::result<core::checkpoint_set> run_store::write_set(std::optional<core::sync_index> k,
                                                        const std::vector<part>& parts, std::uint32_t keep,
                                                        const std::vector<core::checkpoint_set>& pinned) {
  core::checkpoint_set set;
  set.sync = k;
  if (!writer_)
    return core::error{core::errc::refused, "this run keeps no files"};
  const auto number = core::begin_checkpoint_set(directory_);
  if (!number)
    return number.error();
  set.number = *number;
  std::vector<std::pair<std::string, core::checkpoint_ptr>> files;
  for (const auto& p : parts) {
    auto who = p.who;
    if (p.state) {
      who.file = core::checkpoint_file(set.number, who.name);
      files.emplace_back(directory_ + "/" + who.file, p.state);
    } else if (const auto* newer = newest_of(who.trainer); newer && newer->file != who.file) {
      who = *newer; // a set that was on its way when this one was ordered has taken its place
    }
    set.trainers.push_back(std::move(who));
  }
  if (auto ok = core::write_checkpoints(files); !ok)
    return ok.error();
  if (auto ok = writer_->checkpoint_set(set); !ok)
    return ok.error();
  sets_.push_back(set);
  const auto kept = std::max<std::size_t>(keep, 1);
  if (sets_.size() > kept)
    sets_.erase(sets_.begin(), sets_.end() - static_cast<std::ptrdiff_t>(kept));
  auto used = sets_;
  used.insert(used.end(), pinned.begin(), pinned.end());
  if (auto ok = core::prune_checkpoints(directory_, used); !ok) // the set itself is good
    if (auto noted = writer_->event("checkpoints_not_pruned", {{"error", ok.error().text}}); !noted)
      return noted.error();
  return set;
}

const core::saved_trainer* run_store::newest_of(core::trainer_id t) const {
  for (auto set = sets_.rbegin(); set != sets_.rend(); ++set)
    for (const auto& x : set->trainers)
      if (x.trainer == t)
        return &x;
  return nullptr;
}

void run_store::save_file(std::string file, core::checkpoint_ptr state, done then) {
  {
    std::lock_guard lock{files_mutex_};
    files_.push_back({directory_ + "/" + file, std::move(state), std::move(then)});
  }
  thread_.post([this] { write_files(); });
}

/// All that have gathered while the one before was on its way to the disk go there together.
void run_store::write_files() {
  std::vector<waiting_file> waiting;
  {
    std::lock_guard lock{files_mutex_};
    waiting.swap(files_);
  }
  std::vector<std::pair<std::string, core::checkpoint_ptr>> together;
  for (const auto& x : waiting) {
    std::error_code ignored; // the write says what is wrong
    std::filesystem::create_directories(std::filesystem::path(x.path).parent_path(), ignored);
    together.emplace_back(x.path, x.state);
  }
  if (waiting.empty())
    return;
  const auto all = core::write_checkpoints(together);
  for (auto& x : waiting) // after a failure one by one, so that each has its own outcome
    x.then(all ? core::result<void>{} : core::write_checkpoint(x.path, *x.state));
}

void run_store::read_state(std::string file, std::function<void(core::result<core::checkpoint_ptr>)> then) {
  thread_.post([this, file = std::move(file), then = std::move(then)] {
    auto state = core::read_checkpoint(directory_ + "/" + file);
    if (!state)
      then(state.error());
    else
      then(core::checkpoint_ptr(std::make_shared<const core::checkpoint>(*std::move(state))));
  });
}

void run_store::known_sets(std::vector<core::checkpoint_set> sets) {
  thread_.post([this, sets = std::move(sets)]() mutable { sets_ = std::move(sets); });
}

} // namespace troupe::actors::internal
