#include "control_files.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <system_error>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

namespace troupe::net {

namespace {

std::string reason() {
  return std::generic_category().message(errno);
}

constexpr const char* record_name = "control.json";
constexpr const char* temporary_name = "control.json.new";
constexpr std::size_t max_record_bytes = 64 << 10;

/// Empty if `dir` is a real folder of ours that nobody else may enter; otherwise what is wrong with it.
std::string why_not_private(const std::string& dir) {
  struct stat s {};
  if (::lstat(dir.c_str(), &s) != 0)
    return reason();
  if (!S_ISDIR(s.st_mode))
    return "it is no folder";
  if (s.st_uid != ::geteuid())
    return "it belongs to user " + std::to_string(s.st_uid);
  if ((s.st_mode & 077) != 0)
    return "others may enter it (its mode must be 0700)";
  return {};
}

} // namespace

core::result<run_folder> run_folder::open(const std::string& path) {
  unique_fd fd{::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)};
  if (!fd)
    return core::error{errno == ENOENT ? core::errc::not_found : core::errc::io,
                       "cannot open the run directory " + path + ": " + reason()};
  return run_folder{std::move(fd), path};
}

core::result<void> run_folder::write(const control_record& x) const {
  const auto text = nlohmann::json{{"pid", x.pid}, {"socket", x.socket}}.dump() + "\n";
  ::unlinkat(fd_.get(), temporary_name, 0);
  const unique_fd fd{::openat(fd_.get(), temporary_name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600)};
  if (!fd || ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())
      || ::renameat(fd_.get(), temporary_name, fd_.get(), record_name) != 0) {
    const auto why = reason();
    ::unlinkat(fd_.get(), temporary_name, 0);
    return core::error{core::errc::io, "cannot write " + path_ + "/" + record_name + ": " + why};
  }
  return {};
}

core::result<control_record> run_folder::read() const {
  const auto path = path_ + "/" + record_name;
  // Not blocking: a FIFO in its place would hold us up for ever.
  const unique_fd fd{::openat(fd_.get(), record_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)};
  if (!fd && errno == ENOENT)
    return core::error{core::errc::not_found, "there is no " + path};
  struct stat s {};
  if (!fd || ::fstat(fd.get(), &s) != 0)
    return core::error{core::errc::io, "cannot read " + path + ": " + (errno == ELOOP ? "it is a symbolic link" : reason())};
  std::string text(max_record_bytes, '\0');
  const auto n = S_ISREG(s.st_mode) ? ::read(fd.get(), text.data(), text.size()) : 0;
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  const auto j = nlohmann::json::parse(text, nullptr, false);
  const auto pid = j.is_object() ? j.find("pid") : j.end();
  const auto socket = j.is_object() ? j.find("socket") : j.end();
  if (pid == j.end() || socket == j.end() || !pid->is_number_integer() || !socket->is_string())
    return core::error{core::errc::io, path + " is damaged: it should hold a pid and a socket's path"};
  return control_record{pid->get<long>(), socket->get<std::string>()};
}

void run_folder::remove() const noexcept {
  ::unlinkat(fd_.get(), record_name, 0);
}

namespace {

bool is_control_socket(int folder, const std::string& path) noexcept {
  const auto name = std::string_view{path}.substr(path.rfind('/') + 1);
  struct stat s {};
  return name.starts_with("troupe-") && name.ends_with(".sock")
         && ::fstatat(folder, path.c_str(), &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISSOCK(s.st_mode) && s.st_uid == ::geteuid();
}

} // namespace

bool is_control_socket(const std::string& path) noexcept {
  return is_control_socket(AT_FDCWD, path);
}

void remove_control_socket(const std::string& dir, const std::string& path) noexcept {
  if (!path.starts_with(dir + "/") || path.find('/', dir.size() + 1) != std::string::npos)
    return;
  const unique_fd folder{::open(dir.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)};
  const auto name = path.substr(dir.size() + 1);
  if (folder && is_control_socket(folder.get(), name))
    ::unlinkat(folder.get(), name.c_str(), 0);
}

core::result<std::string> private_socket_dir(const std::string& wanted) {
  std::string dir = wanted;
  if (dir.empty()) {
    const char* runtime = std::getenv("XDG_RUNTIME_DIR");
    if (runtime && *runtime && why_not_private(runtime).empty())
      return std::string{runtime};
    dir = "/tmp/troupe-" + std::to_string(::geteuid());
  }
  if (::mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST)
    return core::error{core::errc::io, "cannot make the folder " + dir + " for the control socket: " + reason()};
  if (const auto why = why_not_private(dir); !why.empty())
    return core::error{core::errc::refused, "will not put a control socket into " + dir + ": " + why};
  return dir;
}

core::result<unique_fd> connect_unix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return core::error{core::errc::invalid_argument, "the socket's path " + path + " is too long"};
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  unique_fd fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (!fd)
    return core::error{core::errc::io, "no socket: " + reason()};
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    const bool nobody = errno == ECONNREFUSED || errno == ENOENT;
    return core::error{nobody ? core::errc::refused : core::errc::io, "cannot connect to " + path + ": " + reason()};
  }
  return fd;
}

} // namespace troupe::net
