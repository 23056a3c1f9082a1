#include <exception>
#include <iostream>

#include "commands.hpp"

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

} // namespace

int main(int argc, char** argv) {
  try {
    auto parsed = parse_arguments(argc, argv, std::cout, std::cerr);
    return parsed.what ? execute(*parsed.what, {std::cout, std::cerr}) : parsed.status;
  } catch (const std::exception& e) {
    std::cerr << "troupe: " << e.what() << "\n";
    return exit_failed;
  }
}
