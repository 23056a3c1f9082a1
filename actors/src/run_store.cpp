#include "run_store.hpp"

#include <algorithm>
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
  auto out = std::unique_ptr<run_store>(new run_store(directory, std::move(writer)));
  for (const auto& t : exp.trainers)
    out->names_.insert(t.name);
  return out;
}

namespace {

/// Of the disk, beside a set's states: for what the record still has to say.
constexpr std::uint64_t room_for_record = 64 << 10;

core::error about(const std::string& what, const core::error& why) { return {why.code, what + ": " + why.text}; }

} // namespace

run_store::run_store(std::string directory, std::unique_ptr<core::run_writer> writer)
    : directory_(std::move(directory)), writer_(std::move(writer)), thread_("troupe store") {}

run_store::~run_store() = default;

void run_store::on_failure(std::function<void(core::error)> tell) {
  thread_.post([this, tell = std::move(tell)]() mutable {
    if (!event_failure_.text.empty())
      tell(event_failure_);
    on_failure_ = std::move(tell);
  });
}

/// Something that nobody waits for is not on record, so nothing that follows may be.
void run_store::failed(const core::error& why) {
  if (!event_failure_.text.empty())
    return;
  event_failure_ = about("the record cannot be written", cause_of(why));
  if (on_failure_)
    on_failure_(event_failure_);
}

core::error run_store::cause_of(const core::error& why) const {
  const auto there = writer_ ? writer_->check_place() : core::result<void>{};
  return there ? why : there.error();
}

core::result<void> run_store::healthy(core::result<void> ok) const {
  return ok && !event_failure_.text.empty() ? core::result<void>(event_failure_) : ok;
}

void run_store::sync_point(std::shared_ptr<const sync_point_event> x, done then) {
  thread_.post([this, x = std::move(x), then = std::move(then)] {
    then(healthy(writer_ ? writer_->sync_point(x->index, x->reports, x->decisions) : core::result<void>{}));
  });
}

void run_store::event(std::string kind, nlohmann::json details) {
  if (!writer_)
    return;
  thread_.post([this, kind = std::move(kind), details = std::move(details)] {
    if (auto ok = writer_->event(kind, details); !ok)
      failed(ok.error());
  });
}

void run_store::slots(nlohmann::json list, bool at_end) {
  if (!writer_)
    return;
  thread_.post([this, list = std::move(list), at_end] {
    if (auto there = writer_->check_place(); !there)
      return failed(there.error());
    const auto ok = writer_->slots(list, at_end);
    if (ok || std::exchange(slots_failed_, true))
      return;
    if (auto noted = writer_->event("slots_not_written", {{"reason", ok.error().text}}); !noted)
      failed(noted.error());
  });
}

void run_store::flush(done then) {
  thread_.post([this, then = std::move(then)] { then(healthy(writer_ ? writer_->flush() : core::result<void>{})); });
}

void run_store::save_set(std::optional<core::sync_index> k, std::vector<part> parts, std::uint32_t keep,
                         std::vector<core::checkpoint_set> pinned,
                         std::function<void(core::result<core::checkpoint_set>)> then) {
  thread_.post([this, k, parts = std::move(parts), keep, pinned = std::move(pinned), then = std::move(then)] {
    auto set = write_set(k, parts, keep, pinned);
    then(set ? std::move(set) : core::result<core::checkpoint_set>{cause_of(set.error())});
  });
}

core::result<core::checkpoint_set> run_store::write_set(std::optional<core::sync_index> k,
                                                        const std::vector<part>& parts, std::uint32_t keep,
                                                        const std::vector<core::checkpoint_set>& pinned) {
  core::checkpoint_set set;
  set.sync = k;
  if (!writer_)
    return core::error{core::errc::refused, "this run keeps no files"};
  if (auto ok = healthy(writer_->check_place()); !ok)
    return ok.error();
  std::uint64_t room = room_for_record;
  for (const auto& p : parts)
    room += p.state ? core::checkpoint_room(*p.state) : 0;
  if (auto ok = core::check_room(directory_, room, "a set of " + std::to_string(parts.size()) + " states"); !ok)
    return ok.error();
  const auto number = core::begin_checkpoint_set(directory_, next_set_);
  if (!number)
    return number.error();
  set.number = *number;
  next_set_ = *number + 1;
  std::vector<std::pair<std::string, core::checkpoint_ptr>> files;
  for (const auto& p : parts) {
    auto who = p.who;
    if (p.state) {
      who.file = core::checkpoint_file(set.number, who.name);
      files.emplace_back(directory_ + "/" + who.file, p.state);
    } else if (const auto* newer = newest_of(who.trainer); newer && newer->file != who.file) {
      who = *newer; // a set that was on its way when this one was ordered has taken its place
    }
    names_.insert(who.name);
    set.trainers.push_back(std::move(who));
  }
  if (auto ok = core::write_checkpoints(files); !ok) {
    core::discard_checkpoint_set(directory_, set);
    return ok.error();
  }
  // Should its line be on disk all the same, a resumption finds that files are missing and takes the set before.
  if (auto ok = writer_->checkpoint_set(set); !ok) {
    core::discard_checkpoint_set(directory_, set);
    return ok.error();
  }
  sets_.push_back(set);
  const auto kept = std::max<std::size_t>(keep, 1);
  if (sets_.size() > kept)
    sets_.erase(sets_.begin(), sets_.end() - static_cast<std::ptrdiff_t>(kept));
  auto used = sets_;
  used.insert(used.end(), pinned.begin(), pinned.end());
  if (auto ok = core::prune_checkpoints(directory_, used, names_); !ok) // the set itself is good
    if (auto noted = writer_->event("checkpoints_not_pruned", {{"error", ok.error().text}}); !noted)
      failed(noted.error());
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
    together.emplace_back(x.path, x.state);
  }
  if (waiting.empty())
    return;
  const auto all = core::write_checkpoints(together);
  // After a failure one by one, so that each has its own outcome.
  for (auto& x : waiting) {
    auto ok = all ? core::result<void>{} : core::write_checkpoint(x.path, *x.state);
    x.then(ok ? std::move(ok) : core::result<void>{cause_of(ok.error())});
  }
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

void run_store::known_sets(std::vector<core::checkpoint_set> sets, std::uint32_t next_set) {
  thread_.post([this, sets = std::move(sets), next_set]() mutable {
    sets_ = std::move(sets);
    next_set_ = next_set;
    for (const auto& set : sets_)
      for (const auto& t : set.trainers)
        names_.insert(t.name);
  });
}

} // namespace troupe::actors::internal
