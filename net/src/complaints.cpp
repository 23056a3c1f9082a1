#include "complaints.hpp"

namespace troupe::net {

std::string complaints::about(kind what, const std::string& who, const std::string& text) {
  ++(what == kind::unknown ? unknown_ : refused_);
  const auto name = who.empty() ? std::string{"this process"} : who;
  if (told_.size() >= max_lines || !told_.emplace(what, who).second)
    return {};
  if (what == kind::refused)
    return "refused " + name + ": " + text;
  return "dropped " + text + ", of " + name + "; more of them are only counted";
}

std::string complaints::summary() const {
  if (unknown_ + refused_ <= told_.size())
    return {};
  return "in all, dropped " + std::to_string(unknown_) + " messages and refused " + std::to_string(refused_) + " attempts to join";
}

} // namespace troupe::net
