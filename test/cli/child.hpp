#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

/// How a child begins, where that matters.
struct child_start {
  bool own_group = false;       ///< a job of its own, which SIGTSTP can stop
  bool ignores_hangup = false;  ///< as under nohup
  bool nobody_reads = false;    ///< its standard output is a pipe whose reader has left
};

/// A `troupe` process of its own, with what it prints.
class child {
public:
  /// Starts it in `folder`; standard input is empty.
  child(const std::string& folder, std::vector<std::string> arguments, child_start how = {});
  /// Starts a shell with this text, in which "$0" is the command: for other inputs and outputs than a pipe.
  struct script {
    std::string text;
  };
  child(const std::string& folder, const script& what);
  child(const child&) = delete;
  child& operator=(const child&) = delete;
  /// Kills it if it is still there.
  ~child();

  /// The next line of its standard output without its end; empty at the end of the output.
  std::string read_line();
  /// Reads lines until one contains `text`; returns it, or an empty text if the output ended.
  std::string read_until(const std::string& text);
  void signal(int number);
  pid_t pid() const { return pid_; }
  int output() const { return pipe_; } ///< where its standard output is read
  void close_output();
  /// Sends it the signal until it is over; returns the exit status.
  int signal_until_over(int number);
  /// Waits until it is stopped.
  void wait_until_stopped();
  /// Reads the rest of the output and waits; returns the exit status (128 + n after signal n).
  int wait();

  std::string out() const { return out_; } ///< all that was read
  std::string err() const;

private:
  void start(const std::string& folder, std::vector<std::string> words, child_start how);

  pid_t pid_ = -1;
  int pipe_ = -1;
  std::string out_, pending_, err_file_;
};

struct finished {
  int status;
  std::string out, err;
};
/// Processes that `parent` has started and that are not over.
std::vector<pid_t> children_of(pid_t parent);
/// Waits until it is stopped ('T'), wherever it comes from.
void wait_until_stopped(pid_t who);

/// Runs it to its end.
finished troupe(const std::string& folder, std::vector<std::string> arguments);
finished shell(const std::string& folder, const std::string& script);
