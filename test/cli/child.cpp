#include "child.hpp"

#include <csignal>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <utility>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

child::child(const std::string& folder, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), TROUPE_COMMAND);
  start(folder, std::move(arguments));
}

child::child(const std::string& folder, const script& what) { start(folder, {"/bin/sh", "-c", what.text, TROUPE_COMMAND}); }

void child::start(const std::string& folder, std::vector<std::string> words) {
  static int number = 0; // of this test process, to tell the files apart
  err_file_ = folder + "/stderr-" + std::to_string(number++);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw std::runtime_error("cannot make a pipe");
  std::vector<char*> argv;
  for (auto& word : words)
    argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  ::posix_spawn_file_actions_addopen(&actions, 2, err_file_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  auto rc = ::posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  pipe_ = ends[0];
  if (rc != 0)
    throw std::runtime_error("cannot start " + words[0]);
}

child::~child() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(pipe_);
}

std::string child::read_line() {
  for (;;) {
    if (auto end = pending_.find('\n'); end != std::string::npos) {
      auto line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      out_ += line + "\n";
      return line;
    }
    char block[4096];
    auto n = ::read(pipe_, block, sizeof block);
    if (n <= 0) {
      out_ += pending_;
      return std::exchange(pending_, {});
    }
    pending_.append(block, static_cast<std::size_t>(n));
  }
}

std::string child::read_until(const std::string& text) {
  for (auto line = read_line();; line = read_line())
    if (line.empty() || line.find(text) != std::string::npos)
      return line;
}

void child::signal(int number) { ::kill(pid_, number); }

int child::wait() {
  char block[4096];
  out_ += pending_;
  pending_.clear();
  for (ssize_t n; (n = ::read(pipe_, block, sizeof block)) > 0;)
    out_.append(block, static_cast<std::size_t>(n));
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::string child::err() const {
  std::ifstream in{err_file_};
  return {std::istreambuf_iterator<char>{in}, {}};
}

finished shell(const std::string& folder, const std::string& script) {
  child c{folder, child::script{script}};
  auto status = c.wait();
  return {status, c.out(), c.err()};
}

finished troupe(const std::string& folder, std::vector<std::string> arguments) {
  child c{folder, std::move(arguments)};
  auto status = c.wait();
  return {status, c.out(), c.err()};
}
