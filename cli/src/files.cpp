#include "files.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>

namespace troupe::cli {

core::result<std::string> read_text(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    return core::error{core::errc::invalid_argument, "cannot read '" + path + "': it is a directory"};
  std::ifstream file;
  if (path != "-") {
    errno = 0;
    file.open(path, std::ios::binary);
    if (!file)
      return core::error{core::errc::not_found, "cannot read '" + path + "': " + std::strerror(errno ? errno : EIO)};
  }
  std::istream& in = path == "-" ? std::cin : file;
  std::string text;
  for (std::string block(1 << 16, '\0'); in;) {
    in.read(block.data(), static_cast<std::streamsize>(block.size()));
    text.append(block, 0, static_cast<std::size_t>(in.gcount()));
    if (text.size() > (256u << 20))
      return core::error{core::errc::invalid_argument, "cannot read '" + path + "': larger than 256 MiB"};
  }
  return text;
}

std::string free_run_directory(const std::string& name) {
  std::error_code ignored;
  for (unsigned n = 1;; ++n)
    if (auto path = "runs/" + name + "-" + std::to_string(n); !std::filesystem::exists(path, ignored))
      return path;
}

} // namespace troupe::cli
