#include "troupe/core/checkpoint_set.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <cerrno>
#include <set>

#include <sys/statvfs.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "checkpoint_files.hpp"
#include "files.hpp"
#include "json_path.hpp"
#include "object_reader.hpp"
#include "run_files.hpp"
#include "troupe/core/checkpoint.hpp"

namespace troupe::core {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr std::string_view folder = internal::checkpoints_folder;

std::optional<std::uint32_t> number_of(const fs::path& set_folder) {
  auto name = set_folder.filename().string();
  std::uint32_t x = 0;
  auto [end, failure] = std::from_chars(name.data(), name.data() + name.size(), x);
  return failure == std::errc{} && end == name.data() + name.size() ? std::optional{x} : std::nullopt;
}

/// A record may have been edited: nothing outside of the run's checkpoints is read or removed on its word.
bool is_checkpoint_file(std::string_view file) {
  fs::path p{file};
  auto part = p.begin();
  return std::distance(p.begin(), p.end()) == 3 && *part++ == folder && number_of(*part++) && *part != ".." && *part != ".";
}

} // namespace

json to_json(const checkpoint_set& x) {
  json out{{"number", x.number}, {"trainers", json::array()}};
  if (x.sync)
    out["sync"] = *x.sync;
  for (auto& t : x.trainers)
    out["trainers"].push_back(
        {{"trainer", t.trainer}, {"name", t.name}, {"incarnation", t.incarnation}, {"step", t.step}, {"file", t.file}});
  return out;
}

result<checkpoint_set> checkpoint_set_from_json(const json& j, std::string_view where) {
  std::vector<error> faults;
  internal::object_reader in{j, std::string{where}, faults};
  checkpoint_set out;
  for (auto key : {"number", "trainers"})
    if (!in.has(key))
      in.fault(key, "is missing");
  in.whole("number", out.number, 0, UINT32_MAX);
  if (in.has("sync"))
    in.whole("sync", out.sync.emplace(), 0, UINT32_MAX);
  if (auto* list = in.raw("trainers"); list && list->is_array())
    for (std::size_t i = 0; i < list->size(); ++i) {
      internal::object_reader entry{(*list)[i], json_child(in.pointer("trainers"), i), faults};
      auto& t = out.trainers.emplace_back();
      entry.whole("trainer", t.trainer, 0, UINT32_MAX);
      entry.text("name", t.name);
      entry.whole("incarnation", t.incarnation, 0, UINT32_MAX);
      entry.whole("step", t.step, 0, UINT64_MAX);
      entry.text("file", t.file);
      if (!is_checkpoint_file(t.file))
        entry.fault("file", "'" + t.file + "' is no file of the run's checkpoints");
    }
  else if (list)
    in.fault("trainers", "must be a list, but is " + std::string{internal::kind_of(*list)});
  if (!faults.empty())
    return faults.front();
  return out;
}

std::string checkpoint_file(std::uint32_t set, std::string_view trainer_name) {
  std::string out{folder};
  out += '/';
  out += std::to_string(set);
  out += '/';
  out += trainer_name;
  out += internal::state_ending;
  return out;
}

std::uint64_t checkpoint_room(const checkpoint& x) {
  // The header has a name, a type, a shape and offsets for each tensor; files end at a block.
  std::uint64_t header = 4096;
  for (const auto& t : x.tensors())
    header += t.name.size() + 24 * t.shape.size() + 128;
  for (const auto& [key, text] : x.texts())
    header += key.size() + text.size() + 16;
  return x.bytes() + header + 4096;
}

result<void> check_room(const std::string& folder, std::uint64_t bytes, std::string_view what) {
  struct statvfs st {};
  if (::statvfs(folder.c_str(), &st) != 0)
    return internal::file_error("look at the file system of", folder, errno);
  if (st.f_blocks == 0) // some network file systems do not say
    return {};
  const auto blocks = ::geteuid() == 0 ? st.f_bfree : st.f_bavail;
  const auto free = std::uint64_t{blocks} * st.f_frsize;
  if (free >= bytes)
    return {};
  return error{errc::io, "there is no room for " + std::string{what} + " in '" + folder + "': it takes up to " + std::to_string(bytes) +
                             " bytes, and " + std::to_string(free) + " are free on its file system"};
}

bool internal::is_set_folder(const fs::directory_entry& x) {
  std::error_code failure;
  return number_of(x.path()) && x.symlink_status(failure).type() == fs::file_type::directory;
}

result<std::uint32_t> begin_checkpoint_set(const std::string& run, std::uint32_t at_least) {
  auto parent = fs::path{run} / folder;
  std::error_code failure;
  std::uint32_t next = at_least;
  for (fs::directory_iterator i{parent, failure}, end; !failure && i != end; i.increment(failure))
    if (auto n = number_of(i->path()))
      next = std::max(next, *n + 1);
  auto made = parent / std::to_string(next);
  if (!failure)
    fs::create_directory(made, failure);
  if (failure)
    return internal::file_error("make folder", made.string(), failure.value());
  if (auto ok = internal::sync_parent_folder(made.string()); !ok) {
    fs::remove(made, failure);
    return ok.error();
  }
  return next;
}

void discard_checkpoint_set(const std::string& run, const checkpoint_set& set) {
  std::error_code ignored;
  const auto made = fs::path{run} / folder / std::to_string(set.number);
  for (auto& t : set.trainers)
    if (auto file = fs::path{run} / t.file; file.parent_path() == made)
      fs::remove(file, ignored);
  fs::remove(made, ignored);
}

namespace {

/// What a set's folder has of Troupe's that no set uses any more, and whether anything else stays in it.
struct leftovers {
  std::vector<fs::path> unused;
  bool empty = true;
};

leftovers look_through(const fs::path& set_folder, const std::set<std::string>& used, const std::set<std::string, std::less<>>& names,
                       std::error_code& failure) {
  leftovers out;
  for (fs::directory_iterator i{set_folder, failure}, end; !failure && i != end; i.increment(failure)) {
    const auto name = i->path().filename().string();
    const auto relative = std::string{folder} + "/" + set_folder.filename().string() + "/" + name;
    const bool ours = name.ends_with(internal::state_ending) &&
                      names.contains(std::string_view{name}.substr(0, name.size() - internal::state_ending.size())) &&
                      i->symlink_status(failure).type() == fs::file_type::regular;
    if (ours && !used.contains(relative))
      out.unused.push_back(i->path());
    else
      out.empty = false;
  }
  return out;
}

} // namespace

result<void> prune_checkpoints(const std::string& run, std::span<const checkpoint_set> used,
                               const std::set<std::string, std::less<>>& names) {
  if (used.empty())
    return {};
  std::set<std::string> keep;
  std::uint32_t newest = 0;
  for (auto& set : used) {
    newest = std::max(newest, set.number);
    for (auto& t : set.trainers)
      keep.insert(t.file);
  }
  std::error_code failure;
  std::vector<fs::path> folders;
  auto parent = fs::path{run} / folder;
  for (fs::directory_iterator i{parent, failure}, end; !failure && i != end; i.increment(failure))
    if (auto n = number_of(i->path()); n && *n <= newest && internal::is_set_folder(*i))
      folders.push_back(i->path());
  if (failure)
    return internal::file_error("read folder", parent.string(), failure.value());
  for (auto& set_folder : folders) {
    const auto found = look_through(set_folder, keep, names, failure);
    for (auto& file : found.unused)
      if (!failure)
        fs::remove(file, failure);
    if (found.empty && !failure)
      fs::remove(set_folder, failure);
    if (failure)
      return internal::file_error("remove old checkpoints in", set_folder.string(), failure.value());
  }
  return {};
}

} // namespace troupe::core
