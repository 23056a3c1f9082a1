#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace troupe::cli {

/// Exit statuses of the command.
enum exit_status : int { exit_done = 0, exit_failed = 1, exit_wrong_use = 2 };

/// Where trainers live, and how much is said: common to `run` and `resume`.
struct session_arguments {
  std::optional<unsigned> slots;
  std::vector<std::string> devices; ///< selectors; empty: GPUs if there are any, else the CPU
  unsigned workers = 0;
  bool json = false;
  bool quiet = false;
  std::vector<std::string> given; ///< those of the above that were given, but --json: "--slots" …
};

struct run_arguments {
  std::string experiment;
  std::string out; ///< empty: runs/NAME-<n>
  std::optional<std::uint64_t> seed;
  session_arguments session;
};

struct resume_arguments {
  std::string run;
  std::string trainer; ///< to unpause; empty: all
  bool from_start = false;
  session_arguments session;
};

/// A request to a run that is going on.
struct control_arguments {
  enum class verb { status, pause, push, stop, add };
  verb what = verb::status;
  std::string run;
  std::string trainer;                  ///< empty: all
  std::vector<std::string> assignments; ///< of push
  std::string entry;                    ///< of add: a file, or the JSON itself
  double timeout_seconds = 60;
  bool json = false;
};

struct doctor_arguments { bool json = false; };
struct check_arguments { std::string experiment; bool json = false; };
struct show_arguments {
  std::string run;
  bool json = false;
  bool slots = false; ///< what is known of them too
};

using command = std::variant<run_arguments, resume_arguments, control_arguments, doctor_arguments, check_arguments,
                             show_arguments>;

/// Reads the command line. Help, version and complaints are printed here; then `what` is empty and `status` is the exit
/// status. A complaint is JSON on `out` where --json is among the words, text on `err` else.
struct parsed_arguments {
  std::optional<command> what;
  int status = exit_done;
  bool json = false; ///< --json is among the words
};
parsed_arguments parse_arguments(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

} // namespace troupe::cli
