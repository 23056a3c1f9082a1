#include "troupe/core/checkpoint_set.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>

#include <nlohmann/json.hpp>

#include "files.hpp"
#include "json_path.hpp"
#include "object_reader.hpp"

namespace troupe::core {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr std::string_view folder = "checkpoints";

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
  out += ".safetensors";
  return out;
}

result<std::uint32_t> begin_checkpoint_set(const std::string& run) {
  auto parent = fs::path{run} / folder;
  std::error_code failure;
  std::uint32_t next = 0;
  for (fs::directory_iterator i{parent, failure}, end; !failure && i != end; i.increment(failure))
    if (auto n = number_of(i->path()))
      next = std::max(next, *n + 1);
  auto made = parent / std::to_string(next);
  if (!failure)
    fs::create_directory(made, failure);
  if (failure)
    return internal::file_error("make folder", made.string(), failure.value());
  if (auto ok = internal::sync_parent_folder(made.string()); !ok)
    return ok.error();
  return next;
}

result<void> prune_checkpoints(const std::string& run, std::span<const checkpoint_set> used) {
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
    if (auto n = number_of(i->path()); n && *n <= newest)
      folders.push_back(i->path());
  for (auto& set_folder : folders) {
    bool empty = true;
    std::vector<fs::path> unused;
    for (fs::directory_iterator i{set_folder, failure}, end; !failure && i != end; i.increment(failure)) {
      auto relative = std::string{folder} + "/" + set_folder.filename().string() + "/" + i->path().filename().string();
      if (keep.contains(relative))
        empty = false;
      else
        unused.push_back(i->path());
    }
    for (auto& file : unused)
      fs::remove(file, failure);
    if (empty && !failure)
      fs::remove(set_folder, failure);
    if (failure)
      return internal::file_error("remove old checkpoints in", set_folder.string(), failure.value());
  }
  if (failure)
    return internal::file_error("read folder", parent.string(), failure.value());
  return {};
}

} // namespace troupe::core
