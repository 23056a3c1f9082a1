#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

/// A `troupe` process of its own, with what it prints.
class child {
public:
  /// Starts it in `folder`; standard input is empty.
  child(const std::string& folder, std::vector<std::string> arguments);
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
  /// Reads the rest of the output and waits; returns the exit status (128 + n after signal n).
  int wait();

  std::string out() const { return out_; } ///< all that was read
  std::string err() const;

private:
  void start(const std::string& folder, std::vector<std::string> words);

  pid_t pid_ = -1;
  int pipe_ = -1;
  std::string out_, pending_, err_file_;
};

struct finished {
  int status;
  std::string out, err;
};
/// Runs it to its end.
finished troupe(const std::string& folder, std::vector<std::string> arguments);
finished shell(const std::string& folder, const std::string& script);
