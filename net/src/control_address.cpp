#include "control_address.hpp"

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "troupe/net/token.hpp"

namespace troupe::net {

core::result<control_address> control_address::of(const std::string& run_dir, std::string socket_dir) {
  auto run = run_folder::open(run_dir);
  if (!run)
    return run.error();
  return control_address{std::move(*run), std::move(socket_dir)};
}

core::result<unique_fd> control_address::listen() {
  const auto dir = private_socket_dir(socket_dir_);
  if (!dir)
    return dir.error();
  const auto path = *dir + "/troupe-" + std::to_string(::getpid()) + "-" + token::random().to_hex().substr(0, 8) + ".sock";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return core::error{core::errc::invalid_argument, "the control socket's path " + path
                                                       + " is too long: name a shorter folder in XDG_RUNTIME_DIR"};
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  unique_fd fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  struct stat s {};
  const bool bound = fd && ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  // Its mode before it listens, so that nobody has come before.
  if (!bound || ::chmod(path.c_str(), 0600) != 0 || ::listen(fd.get(), SOMAXCONN) != 0 || ::lstat(path.c_str(), &s) != 0) {
    const auto why = std::generic_category().message(errno);
    if (bound)
      remove_control_socket(*dir, path);
    return core::error{core::errc::io, "cannot listen on the control socket " + path + ": " + why};
  }
  path_ = path;
  device_ = s.st_dev;
  inode_ = s.st_ino;
  return fd;
}

core::result<void> control_address::announce() const {
  return run_.write({::getpid(), path_});
}

bool control_address::socket_is_there() const {
  struct stat s {};
  return ::lstat(path_.c_str(), &s) == 0 && s.st_dev == device_ && s.st_ino == inode_;
}

bool control_address::is_announced() const {
  const auto x = run_.read();
  return x && x->pid == ::getpid() && x->socket == path_;
}

void control_address::remove() const noexcept {
  if (is_announced())
    run_.remove();
  if (socket_is_there())
    ::unlink(path_.c_str());
}

} // namespace troupe::net
