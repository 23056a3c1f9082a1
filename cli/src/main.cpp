#include <exception>
#include <iostream>

#include <string_view>

#include <unistd.h>

#include "commands.hpp"
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

} // namespace

int main(int argc, char** argv) {
  try {
    if (argc == 2 && argv[1] == std::string_view{"worker"})
      return worker();
    auto parsed = parse_arguments(argc, argv, std::cout, std::cerr);
    return parsed.what ? execute(*parsed.what, {std::cout, std::cerr}) : parsed.status;
  } catch (const std::exception& e) {
    std::cerr << "troupe: " << e.what() << "\n";
    return exit_failed;
  }
}
