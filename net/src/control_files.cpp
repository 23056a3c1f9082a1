#include "control_files.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
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

std::string record_path(const std::string& run_dir) {
  return run_dir + "/control.json";
}

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

core::result<void> write_control_record(const std::string& run_dir, const control_record& x) {
  const auto path = record_path(run_dir), temporary = path + ".new";
  const auto text = nlohmann::json{{"pid", x.pid}, {"socket", x.socket}}.dump() + "\n";
  ::unlink(temporary.c_str());
  const unique_fd fd{::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)};
  if (!fd || ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())
      || ::rename(temporary.c_str(), path.c_str()) != 0)
    return core::error{core::errc::io, "cannot write " + path + ": " + reason()};
  return {};
}

core::result<control_record> read_control_record(const std::string& run_dir) {
  const auto path = record_path(run_dir);
  std::ifstream in{path};
  if (!in)
    return core::error{core::errc::not_found, "there is no " + path};
  const std::string text{std::istreambuf_iterator<char>{in}, {}};
  const auto j = nlohmann::json::parse(text, nullptr, false);
  const auto pid = j.is_object() ? j.find("pid") : j.end();
  const auto socket = j.is_object() ? j.find("socket") : j.end();
  if (pid == j.end() || socket == j.end() || !pid->is_number_integer() || !socket->is_string())
    return core::error{core::errc::io, path + " is damaged: it should hold a pid and a socket's path"};
  return control_record{pid->get<long>(), socket->get<std::string>()};
}

void remove_control_record(const std::string& run_dir) noexcept {
  ::unlink(record_path(run_dir).c_str());
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
