#include <algorithm>
#include <ostream>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "files.hpp"
#include "troupe/gpu/dataset.hpp"

namespace troupe::cli {

registries registries::builtin() {
  return {std::make_shared<gpu::workload_registry>(gpu::builtin_workloads()),
          std::make_shared<core::policy_registry>(core::builtin_policies())};
}

core::experiment_checkers registries::checkers() const {
  core::experiment_checkers out;
  out.policies = policies.get();
  out.known_workload = [w = workloads](std::string_view type) { return w->contains(type); };
  out.workload_names = [w = workloads] { return w->names(); };
  out.check_workload = [w = workloads](std::string_view type, const nlohmann::json& options, const core::hyperparameters& hp,
                                       std::string_view where, std::vector<core::error>& faults) {
    w->check(type, options, hp, where, faults);
  };
  return out;
}

namespace {

/// The text with the seed that counts, and with paths that mean the same from every folder: what a run keeps and a resumption reads.
std::string settled(std::string text, const std::string& folder, std::optional<std::uint64_t> seed) {
  auto j = nlohmann::ordered_json::parse(text, nullptr, false, true);
  if (!j.is_object())
    return text;
  bool changed = seed.has_value();
  const auto anchor = [&](nlohmann::ordered_json& entry) {
    if (entry.is_object() && entry.contains("workload") && gpu::anchor_data_path(entry["workload"], folder))
      changed = true;
  };
  if (const auto x = j.find("defaults"); x != j.end())
    anchor(*x);
  if (const auto x = j.find("trainers"); x != j.end() && x->is_array())
    std::ranges::for_each(*x, anchor);
  if (seed)
    j["seed"] = *seed;
  return changed ? j.dump(2) + "\n" : text;
}

} // namespace

core::result<std::string> read_trainer_entry(const std::string& given) {
  const bool is_text = given.find('{') != std::string::npos;
  if (!is_text && ::access(given.c_str(), F_OK) != 0)
    return core::error{core::errc::not_found, "'" + given + "' is neither a file nor a trainer's JSON, which begins with '{'"};
  auto text = is_text ? core::result<std::string>{given} : read_text(given);
  if (!text || !core::document_faults(*text).empty()) // the run says what is wrong
    return text;
  auto j = nlohmann::ordered_json::parse(*text, nullptr, false, true);
  if (!j.is_object() || !j.contains("workload") || !gpu::anchor_data_path(j["workload"], folder_of(is_text ? "-" : given)))
    return text;
  return j.dump();
}

std::variant<core::experiment, std::vector<core::error>> load_experiment(const std::string& path,
                                                                         std::optional<std::uint64_t> seed,
                                                                         const registries& with) {
  auto text = read_text(path);
  if (!text)
    return std::vector{text.error()};
  if (text->find_first_not_of(" \t\r\n") == std::string::npos)
    return std::vector{core::error{core::errc::invalid_argument, "the file is empty"}};
  if (auto faults = core::document_faults(*text); !faults.empty())
    return faults;
  auto exp = core::parse_experiment(settled(*std::move(text), folder_of(path), seed), with.checkers());
  if (auto* faults = std::get_if<std::vector<core::error>>(&exp))
    for (auto& e : *faults) // such as a data set that is not there: the file could be read, and this is what is wrong with it
      e.code = core::errc::invalid_argument;
  return exp;
}

void print_faults(std::ostream& err, const std::string& file, const std::vector<core::error>& faults) {
  const auto name = file == "-" ? "standard input" : file;
  for (auto& e : faults) // one of another kind is that it cannot be read, and says so with its name
    err << (e.code == core::errc::invalid_argument ? name + ": " : "troupe: ") << e.text << "\n";
}

void print_json(std::ostream& out, const nlohmann::json& j) {
  out << j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
}

nlohmann::json failed_result(const std::string& text, const std::vector<core::error>& faults) {
  nlohmann::json out{{"kind", "result"}, {"ok", false}, {"outcome", "failed"}, {"error", text}};
  for (auto& e : faults)
    out["faults"].push_back(e.text);
  return out;
}

} // namespace troupe::cli
