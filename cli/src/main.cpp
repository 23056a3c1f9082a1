#include <cerrno>
#include <exception>
#include <iostream>
#include <optional>
#include <ostream>
#include <string_view>
#include <variant>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "signals.hpp"
#include "standard_streams.hpp"
#include "troupe/net/cluster.hpp"

using namespace troupe::cli;

namespace {

int execute(const command& what, output to) {
  struct visitor {
    output to;
    int operator()(const run_arguments& a) const { return run_experiment_file(a, registries::builtin(), to); }
    int operator()(const resume_arguments& a) const { return resume_run(a, registries::builtin(), to); }
    int operator()(const control_arguments& a) const { return control_run(a, to); }
    int operator()(const doctor_arguments& a) const { return doctor(a, to); }
    int operator()(const check_arguments& a) const { return check_experiment(a, registries::builtin(), to); }
    int operator()(const show_arguments& a) const { return show_run(a, to); }
  };
  return std::visit(visitor{to}, what);
}

/// What `troupe run --workers N` starts: it speaks with its head through standard input.
int worker() {
  if (::isatty(STDIN_FILENO) == 1) {
    std::cerr << "troupe: workers are started by `troupe run --workers N`\n";
    return exit_wrong_use;
  }
  troupe::net::worker_options options;
  options.workloads = registries::builtin().workloads;
  options.input = STDIN_FILENO;
  return troupe::net::run_worker(options);
}

/// A command whose whole work is what it prints has failed if that is lost; a run goes on, and what was asked of one is done.
enum class purpose { to_print, to_do };

purpose purpose_of(const std::optional<command>& what) {
  if (!what)
    return purpose::to_print; // help, a complaint
  if (auto* control = std::get_if<control_arguments>(&*what))
    return control->what == control_arguments::verb::status ? purpose::to_print : purpose::to_do;
  return std::holds_alternative<run_arguments>(*what) || std::holds_alternative<resume_arguments>(*what) ? purpose::to_do
                                                                                                       : purpose::to_print;
}

int command_line(int argc, char** argv) {
  auto why_here = purpose::to_print;
  descriptor_buffer buffer{STDOUT_FILENO, [&](int why) {
    if (why_here == purpose::to_do)
      std::cerr << "troupe: standard output cannot be written: " + reason_of(why) +
                     "; nothing more is printed, a run goes on all the same\n";
    else if (why != EPIPE) // who left has read what it wanted, as with `| head`
      std::cerr << "troupe: standard output cannot be written: " + reason_of(why) + "\n";
  }};
  std::ostream out{&buffer};
  auto status = static_cast<int>(exit_done);
  auto parsed = parse_arguments(argc, argv, out, std::cerr);
  why_here = purpose_of(parsed.what);
  try {
    status = parsed.what ? execute(*parsed.what, {out, std::cerr}) : parsed.status;
  } catch (const std::exception& e) {
    status = exit_failed;
    if (parsed.json)
      print_json(out, failed_result(e.what()));
    else
      std::cerr << "troupe: " << e.what() << "\n";
  }
  out.flush();
  return buffer.failure() != 0 && why_here == purpose::to_print && status == exit_done ? exit_failed : status;
}

} // namespace

int main(int argc, char** argv) {
  ignore_broken_pipes();
  open_closed_standard_streams();
  try {
    return argc == 2 && argv[1] == std::string_view{"worker"} ? worker() : command_line(argc, argv);
  } catch (const std::exception& e) {
    std::cerr << "troupe: " << e.what() << "\n";
    return exit_failed;
  }
}
