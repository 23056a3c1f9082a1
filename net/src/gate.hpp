#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "troupe/core/result.hpp"
#include "cluster_messages.hpp"
#include "troupe/net/token.hpp"

namespace troupe::net {

/// What this build presents, and expects of others.
struct build_versions {
  std::uint32_t format = message_format;
  std::uint32_t caf = CAF_VERSION;
  std::string troupe;
  static build_versions current();
};

/// Decides who gets in. Plain rules; the gatekeeper actor asks them.
///
///   expected ──knock──► challenged ──answer──► admitted ──presentation──► present
///       ▲                   │ wrong proof, or gone
///       └───────────────────┘
///
/// A worker number is admitted once: who comes later under the same number is refused.
class gate {
public:
  struct worker {
    std::uint64_t process_id = 0; ///< 0: not known yet, any
    admission terms;
  };
  gate(token secret, std::vector<worker> workers); ///< worker i has number i + 1

  /// The process behind a worker is known now.
  void expect_process(std::uint32_t worker, std::uint64_t process_id);

  /// `who`: names the process, for later.
  core::result<challenge> on_knock(const std::string& who, const knock& x);
  core::result<admission> on_answer(const std::string& who, const answer& x);
  /// The worker's number, if `who` was admitted under this session.
  core::result<std::uint32_t> admitted(const std::string& who, std::uint64_t session) const;
  /// The process is gone: a pending challenge is void.
  void gone(const std::string& who);

private:
  struct pending {
    std::string who;
    std::uint32_t worker = 0;
    std::string head_nonce, worker_nonce;
    bool in = false;
  };
  token secret_;
  build_versions versions_ = build_versions::current();
  std::vector<worker> workers_;
  std::vector<bool> taken_;
  std::map<std::uint64_t, pending> sessions_;
  std::uint64_t next_ = 1;
};

} // namespace troupe::net
