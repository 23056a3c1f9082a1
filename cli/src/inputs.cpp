#include <ostream>

#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "files.hpp"

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

std::variant<core::experiment, std::vector<core::error>> load_experiment(const std::string& path,
                                                                         std::optional<std::uint64_t> seed,
                                                                         const registries& with) {
  auto text = read_text(path);
  if (!text)
    return std::vector{text.error()};
  auto exp = core::parse_experiment(*text, with.checkers());
  if (auto* faults = std::get_if<std::vector<core::error>>(&exp))
    for (auto& e : *faults) // such as a data set that is not there: the file could be read, and this is what is wrong with it
      e.code = core::errc::invalid_argument;
  if (!seed || !std::holds_alternative<core::experiment>(exp))
    return exp;
  // Into the text too: it is what the run directory keeps and a resumption reads.
  auto j = nlohmann::ordered_json::parse(*text, nullptr, true, true);
  j["seed"] = *seed;
  return core::parse_experiment(j.dump(2) + "\n", with.checkers());
}

void print_faults(std::ostream& err, const std::string& file, const std::vector<core::error>& faults) {
  for (auto& e : faults)
    err << (e.text.find(file) == std::string::npos ? file + ": " : "") << e.text << "\n";
}

void print_json(std::ostream& out, const nlohmann::json& j) {
  out << j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
}

nlohmann::json failed_result(const std::string& text, const std::vector<core::error>& faults) {
  nlohmann::json out{{"kind", "result"}, {"outcome", "failed"}, {"error", text}};
  for (auto& e : faults)
    out["faults"].push_back(e.text);
  return out;
}

} // namespace troupe::cli
