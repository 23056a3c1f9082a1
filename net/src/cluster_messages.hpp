#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "troupe/actors/caf.hpp"
#include "troupe/actors/caf_io.hpp"
#include "troupe/actors/messages.hpp"

/// How a worker process joins.
///
///   worker                                   gatekeeper (the head's only published actor)
///   knock (versions, who, nonce)        ──►  versions and identity are as expected
///                                       ◄──  challenge (its proof that it knows the run's token, its nonce)
///   answer (proof of the token)         ──►  right: the worker is in
///                                       ◄──  admission (its number, slots, matrix libraries)
///   opens slots, starts agent and tensor server
///   presentation (node_up)              ──►  passed on to the run
///   or withdrawal (why it cannot)       ──►  told to the user
///   slot_report (slot_lost), later      ──►  passed on to the run
///
/// knock and answer are requests; a refusal is an error whose text says why. The token itself never travels. A run that is over
/// ends the node agents, and the head closes the workers' standard input.
namespace troupe::net {

/// Rises whenever a message of the control plane changes its form. Worker and head must have the same.
inline constexpr std::uint32_t message_format = 5;

/// The form of this one message stays as it is for ever: it is what different versions understand of each other.
struct knock {
  std::uint32_t format = 0;
  std::uint32_t caf_version = 0;
  std::string troupe_version;
  std::uint32_t worker = 0; ///< the number that it was started with
  std::uint64_t process_id = 0;
  std::string nonce;
};
TROUPE_INSPECT(knock, format, caf_version, troupe_version, worker, process_id, nonce)

struct challenge {
  std::uint64_t session = 0;
  std::string nonce;
  std::string proof; ///< role "head"
};
TROUPE_INSPECT(challenge, session, nonce, proof)

struct answer {
  std::uint64_t session = 0;
  std::string proof; ///< role "worker"
};
TROUPE_INSPECT(answer, session, proof)

/// One slot to open; the worker finds the device anew.
struct slot_order {
  std::string device; ///< id
  std::vector<std::int32_t> cores;
  std::uint64_t memory_budget = 0, pinned_budget = 0;
  std::uint8_t math = 0, capture = 0;
};
TROUPE_INSPECT(slot_order, device, cores, memory_budget, pinned_budget, math, capture)

struct admission {
  std::uint32_t node = 0;
  std::vector<slot_order> slots;
  std::string plan;            ///< gemm_plan's JSON, to be used frozen; empty: the default library for all
  std::uint64_t slice_us = 0;  ///< a run's turn on a slot while others wait
};
TROUPE_INSPECT(admission, node, slots, plan, slice_us)

struct presentation {
  std::uint64_t session = 0;
  actors::node_up what;
};
TROUPE_INSPECT(presentation, session, what)

struct withdrawal {
  std::uint64_t session = 0;
  std::string reason;
};
TROUPE_INSPECT(withdrawal, session, reason)

struct slot_report {
  std::uint64_t session = 0;
  actors::slot_lost what;
};
TROUPE_INSPECT(slot_report, session, what)

/// The head's own messages; they do not travel.
struct expect_process { ///< the process behind a worker's number
  std::uint32_t worker = 0;
  std::uint64_t process_id = 0;
};
TROUPE_LOCAL_MESSAGE(expect_process)

struct watch_nodes { ///< to whom nodes are presented from now on
  actors::node_observer observer;
};
TROUPE_LOCAL_MESSAGE(watch_nodes)

} // namespace troupe::net

CAF_BEGIN_TYPE_ID_BLOCK(troupe_cluster, caf::first_custom_type_id + 120)
  CAF_ADD_TYPE_ID(troupe_cluster, (troupe::net::knock))
  CAF_ADD_TYPE_ID(troupe_cluster, (troupe::net::challenge))
  CAF_ADD_TYPE_ID(troupe_cluster, (troupe::net::answer))
  CAF_ADD_TYPE_ID(troupe_cluster, (troupe::net::slot_order))
  CAF_ADD_TYPE_ID(troupe_cluster, (troupe::net::admission))
  CAF_ADD_TYPE_ID(troupe_cluster, (troupe::net::presentation))
  CAF_ADD_TYPE_ID(troupe_cluster, (troupe::net::withdrawal))
  CAF_ADD_TYPE_ID(troupe_cluster, (troupe::net::slot_report))
  CAF_ADD_TYPE_ID(troupe_cluster, (troupe::net::expect_process))
  CAF_ADD_TYPE_ID(troupe_cluster, (troupe::net::watch_nodes))
CAF_END_TYPE_ID_BLOCK(troupe_cluster)

namespace troupe::net {

static_assert(caf::id_block::troupe_cluster::end <= actors::first_user_type_id, "the cluster's type ids run into the users'");

/// What head and worker start their actor systems with.
using cluster_config = actors::config<caf::id_block::troupe_cluster>;

/// CAF's own cannot be told that a process sleeps (Ctrl-Z, SIGSTOP), and a head that wakes would drop every worker. Workers give
/// signs of life on their input instead (child_processes); the end of a process ends its connections in any case.
inline constexpr actors::network_options no_heartbeats{std::chrono::milliseconds{0}, std::chrono::milliseconds{0}};

} // namespace troupe::net
