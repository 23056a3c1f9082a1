#include "files.hpp"

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace troupe::cli {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t max_bytes = std::size_t{256} << 20;

core::error file_error(const std::string& what, const std::string& path, int error, core::errc code) {
  return {code, "cannot " + what + " '" + path + "': " + std::generic_category().message(error)};
}

/// What another name or other rights would mend, as opposed to a full disk.
bool is_wrong_use(int error) {
  return error == ENOTDIR || error == EEXIST || error == ENOENT || error == ENAMETOOLONG || error == ELOOP || error == EACCES ||
         error == EPERM || error == EROFS || error == EINVAL;
}

core::error cannot_make(const std::string& path, int error) {
  return file_error("make folder", path, error, is_wrong_use(error) ? core::errc::invalid_argument : core::errc::io);
}

/// An errno; 0: it is there now, `made` by this call or before it.
int make_folder(const std::string& path, bool& made) {
  made = ::mkdir(path.c_str(), 0777) == 0;
  if (made || errno != EEXIST)
    return made ? 0 : errno;
  struct stat s {};
  if (::stat(path.c_str(), &s) != 0)
    return errno; // a link to something that is not there
  return S_ISDIR(s.st_mode) ? 0 : ENOTDIR;
}

core::result<void> make_parents(const std::string& path) {
  std::error_code failure;
  const auto parent = fs::path{path}.parent_path();
  if (!parent.empty())
    fs::create_directories(parent, failure);
  if (failure)
    return cannot_make(parent.string(), failure.value());
  return {};
}

class open_file {
public:
  explicit open_file(const std::string& path) : fd_(path == "-" ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  open_file(const open_file&) = delete;
  open_file& operator=(const open_file&) = delete;
  ~open_file() {
    if (fd_ > STDIN_FILENO)
      ::close(fd_);
  }
  int get() const noexcept { return fd_; }

private:
  int fd_;
};

} // namespace

core::result<std::string> read_text(const std::string& path) {
  const open_file file{path};
  const auto name = path == "-" ? "standard input" : path;
  std::string text;
  for (std::size_t used = 0;;) {
    text.resize(used + (1 << 16));
    const auto n = file.get() < 0 ? ssize_t{-1} : ::read(file.get(), text.data() + used, text.size() - used);
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      return file_error("read", name, errno, errno == ENOENT ? core::errc::not_found : core::errc::io);
    used += static_cast<std::size_t>(n);
    text.resize(used);
    if (n == 0)
      return text;
    if (used > max_bytes)
      return core::error{core::errc::io, "cannot read '" + name + "': larger than 256 MiB"};
  }
}

std::string folder_of(const std::string& path) {
  struct stat s {};
  const bool lies_somewhere = path != "-" && ::stat(path.c_str(), &s) == 0 && S_ISREG(s.st_mode);
  const auto parent = lies_somewhere ? fs::path{path}.parent_path() : fs::path{};
  std::error_code failure;
  const auto folder = parent.empty() ? fs::current_path(failure) : fs::absolute(parent, failure);
  return failure ? "." : folder.string();
}

core::result<void> check_run_directory(const std::string& path) {
  struct stat s {};
  if (::stat(path.c_str(), &s) != 0) {
    const auto error = errno;
    if (error != ENOENT)
      return file_error("look at", path, error, core::errc::invalid_argument);
    if (::lstat(path.c_str(), &s) == 0)
      return core::error{core::errc::not_found, "'" + path + "' is a link to something that is not there"};
    return core::error{core::errc::not_found, "there is no run directory '" + path + "'"};
  }
  if (!S_ISDIR(s.st_mode))
    return core::error{core::errc::invalid_argument, "'" + path + "' is no directory; a run is named by its directory"};
  if (::access(path.c_str(), R_OK | X_OK) != 0)
    return file_error("look into", path, errno, core::errc::invalid_argument);
  return {};
}

core::result<claimed_directory> claimed_directory::claim(const std::string& wanted, const std::string& name) {
  bool made = false;
  if (!wanted.empty()) {
    struct stat s {};
    if (::stat(wanted.c_str(), &s) == 0 && !S_ISDIR(s.st_mode))
      return core::error{core::errc::invalid_argument,
                         "'" + wanted + "' is no directory: --out names the run's directory, which is made if it is not there"};
    if (auto ok = make_parents(wanted); !ok)
      return ok.error();
    if (const auto error = make_folder(wanted, made); error != 0)
      return cannot_make(wanted, error);
    if (::access(wanted.c_str(), R_OK | W_OK | X_OK) != 0)
      return file_error("write into", wanted, errno, core::errc::invalid_argument);
    return claimed_directory{wanted, made};
  }
  if (const auto error = make_folder("runs", made); error != 0)
    return cannot_make("runs", error);
  for (unsigned n = 1;; ++n) {
    auto path = "runs/" + name + "-" + std::to_string(n);
    if (::mkdir(path.c_str(), 0777) == 0)
      return claimed_directory{std::move(path), true};
    if (errno != EEXIST)
      return cannot_make(path, errno);
  }
}

claimed_directory::claimed_directory(claimed_directory&& other) noexcept
    : path_(std::move(other.path_)), made_(std::exchange(other.made_, false)) {}

claimed_directory::~claimed_directory() {
  if (made_)
    (void)::rmdir(path_.c_str()); // fails where there is anything in it
}

} // namespace troupe::cli
