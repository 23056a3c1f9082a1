#pragma once

#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "arguments.hpp"
#include "troupe/core/experiment.hpp"
#include "troupe/core/policy.hpp"
#include "troupe/gpu/workload.hpp"

namespace troupe::cli {

/// What experiments can be made of.
struct registries {
  std::shared_ptr<const gpu::workload_registry> workloads;
  std::shared_ptr<const core::policy_registry> policies;

  static registries builtin();
  core::experiment_checkers checkers() const;
};

/// Where a command writes.
struct output {
  std::ostream& out;
  std::ostream& err;
};

/// Each command; returns the exit status.
int run_experiment_file(const run_arguments& a, const registries& with, output to);
int resume_run(const resume_arguments& a, const registries& with, output to);
int control_run(const control_arguments& a, output to);
int doctor(const doctor_arguments& a, output to);
int check_experiment(const check_arguments& a, const registries& with, output to);
int show_run(const show_arguments& a, output to);

/// Reads and checks an experiment file ("-": standard input). `seed`, where given, replaces the file's. A relative path of data counts
/// against the folder of the file and is made absolute. Faults of the content are `errc::invalid_argument`; others: it cannot be read.
std::variant<core::experiment, std::vector<core::error>> load_experiment(const std::string& path,
                                                                         std::optional<std::uint64_t> seed,
                                                                         const registries& with);

/// An entry of "trainers" to be added: the JSON itself, or a file that has it; its data's path is made absolute in the same way.
core::result<std::string> read_trainer_entry(const std::string& given);

/// "FILE: fault" for each.
void print_faults(std::ostream& err, const std::string& file, const std::vector<core::error>& faults);
/// One line of JSON; malformed UTF-8 is replaced.
void print_json(std::ostream& out, const nlohmann::json& j);
/// {"kind": "result", "ok": false, "outcome": "failed", "error": …}: what any command prints that could not do what it was asked for.
nlohmann::json failed_result(const std::string& text, const std::vector<core::error>& faults = {});

} // namespace troupe::cli
