#include "troupe/core/result.hpp"

namespace troupe::core {

std::string_view to_string(errc code) noexcept {
  switch (code) {
  case errc::invalid_argument: return "invalid argument";
  case errc::not_found: return "not found";
  case errc::refused: return "refused";
  case errc::out_of_memory: return "out of memory";
  case errc::stale: return "stale";
  case errc::timeout: return "timeout";
  case errc::cancelled: return "cancelled";
  case errc::io: return "input/output error";
  case errc::device: return "device error";
  case errc::failed: return "failed";
  case errc::internal: return "internal error";
  }
  return "unknown error";
}

} // namespace troupe::core
