#include "child.hpp"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace {

int status_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

/// What /proc/PID/stat says behind the name: its state, its parent.
std::pair<char, pid_t> state_and_parent(pid_t who) {
  std::ifstream in{"/proc/" + std::to_string(who) + "/stat"};
  const std::string text{std::istreambuf_iterator<char>{in}, {}};
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos)
    return {'X', 0};
  char state = 'X';
  pid_t parent = 0;
  std::istringstream{text.substr(name_end + 1)} >> state >> parent;
  return {state, parent};
}

} // namespace

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> out;
  for (const auto& entry : std::filesystem::directory_iterator{"/proc"}) {
    const auto name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos)
      continue;
    const auto who = static_cast<pid_t>(std::stol(name));
    if (const auto [state, of] = state_and_parent(who); of == parent && state != 'Z' && state != 'X')
      out.push_back(who);
  }
  return out;
}

void wait_until_stopped(pid_t who) {
  while (state_and_parent(who).first != 'T')
    std::this_thread::yield();
}

child::child(const std::string& folder, std::vector<std::string> arguments, child_start how) {
  arguments.insert(arguments.begin(), TROUPE_COMMAND);
  start(folder, std::move(arguments), how);
}

child::child(const std::string& folder, const script& what) { start(folder, {"/bin/sh", "-c", what.text, TROUPE_COMMAND}, {}); }

void child::start(const std::string& folder, std::vector<std::string> words, child_start how) {
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
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t defaults, none;
  ::sigfillset(&defaults); // however this test was started
  ::sigemptyset(&none);
  const auto before = how.ignores_hangup ? ::signal(SIGHUP, SIG_IGN) : SIG_DFL;
  if (how.ignores_hangup)
    ::sigdelset(&defaults, SIGHUP);
  ::posix_spawnattr_setsigdefault(&attributes, &defaults);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(&attributes, static_cast<short>(POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK
                                                             | (how.own_group ? POSIX_SPAWN_SETPGROUP : 0)));
  if (how.nobody_reads)
    ::close(std::exchange(ends[0], -1));
  auto rc = ::posix_spawn(&pid_, argv[0], &actions, &attributes, argv.data(), environ);
  if (how.ignores_hangup)
    ::signal(SIGHUP, before);
  ::posix_spawnattr_destroy(&attributes);
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
  close_output();
}

void child::close_output() {
  if (pipe_ >= 0)
    ::close(std::exchange(pipe_, -1));
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

int child::signal_until_over(int number) {
  int status = 0;
  do
    signal(number);
  while (::waitpid(pid_, &status, WNOHANG) == 0);
  pid_ = -1;
  return status_of(status);
}

void child::wait_until_stopped() {
  int status = 0;
  ::waitpid(pid_, &status, WUNTRACED);
  if (!WIFSTOPPED(status))
    throw std::runtime_error("it is over, not stopped");
}

int child::wait() {
  char block[4096];
  out_ += pending_;
  pending_.clear();
  for (ssize_t n; (n = ::read(pipe_, block, sizeof block)) > 0;)
    out_.append(block, static_cast<std::size_t>(n));
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  return status_of(status);
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
