#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/actors/run.hpp"
#include "troupe/core/result.hpp"
#include "troupe/gpu/context.hpp"
#include "troupe/gpu/workload.hpp"

/// Several processes, one run. The head starts the workers, lets them in and hands their slots to the run; everything else is
/// the same as in one process.
///
///     net::cluster_options c;
///     c.command = {"/proc/self/exe", "worker"};      // a program that calls run_worker
///     c.slots = net::deal_slots(slots, 3);           // three workers
///     auto cluster = net::cluster_head::start(std::move(c));
///     (*cluster)->prepare(options);                  // actors::run_options
///     auto run = actors::run_session::start(std::move(options));
///     (*cluster)->attach(**run);
///     auto summary = (*run)->wait();                 // the run must end before the cluster does
namespace troupe::net {

struct cluster_options {
  /// Program (a path) and arguments of a worker process.
  std::vector<std::string> command;
  /// One list per worker; each must have at least one slot.
  std::vector<std::vector<gpu::slot_options>> slots;
  /// What the workers' matrix products use (gpu::gemm_plan::to_json), frozen; empty: the default library for all.
  std::string plan;
  std::chrono::microseconds slice{2000};                    ///< a trainer's turn on a slot while others wait
  std::string address = "127.0.0.1";                        ///< loopback only, so far
  std::chrono::milliseconds join_timeout{30'000};           ///< for all workers to come
  std::chrono::milliseconds leave_timeout{5'000};           ///< after the run, before workers are killed
  std::chrono::milliseconds heartbeat_interval{1'000};      ///< between two signs of life of a worker
  std::chrono::milliseconds connection_timeout{5'000};      ///< a worker that was silent for so long is lost
  /// One line about something that happened, on any thread; may be null.
  std::function<void(const std::string&)> log;
};

/// Deals slots out to `workers` lists in turn and numbers them anew. Fewer slots than workers: the last workers get none.
std::vector<std::vector<gpu::slot_options>> deal_slots(const std::vector<gpu::slot_options>& slots, unsigned workers);

/// Where a worker stands.
enum class worker_state : std::uint8_t {
  starting, ///< the process runs
  admitted, ///< showed that it belongs to this run
  present,  ///< its slots can be used
  left,     ///< the run is over for it
  lost      ///< ended or fell silent; it does not come back
};
std::string_view to_string(worker_state x) noexcept;

struct worker_info {
  std::uint32_t node = 0;       ///< 1, 2, …: what run_status prints before the slash
  std::int64_t process_id = 0;
  worker_state state = worker_state::starting;
  std::string note;             ///< why it is lost
};

/// The head's side: worker processes, the gatekeeper they present themselves to, and this process's tensor transport.
///
/// Only who was started by this head, knows the run's token (256 random bits, handed over in a pipe), and has the same versions of
/// Troupe, CAF and message format gets in; everyone else is refused with the reason. A worker that is lost is killed, so that
/// no trainer runs twice. Workers end with the head, however it ends, and wait for one that is stopped for a while (Ctrl-Z).
class cluster_head {
public:
  /// Returns when all workers are present. Errors name the worker and why it is not there; nothing is left running then.
  static core::result<std::unique_ptr<cluster_head>> start(cluster_options options);
  /// As `stop()`.
  ~cluster_head();

  /// Fills in what a run needs to use the workers: the actor system, the number of nodes, states and their transport.
  void prepare(actors::run_options& into);
  /// Presents the workers to a run that was prepared. Once.
  void attach(const actors::run_session& run);

  std::vector<worker_info> workers() const; ///< any thread

  /// Stops the workers' processes, and lets them go on: for a head that stops itself in between (Ctrl-Z). Any thread.
  void suspend();
  void resume();

  struct traffic {
    std::uint64_t states_sent = 0, state_bytes_sent = 0;         ///< by this process
    std::uint64_t states_received = 0, state_bytes_received = 0;
  };
  traffic snapshot() const; ///< any thread
  /// Of the gatekeeper.
  std::uint16_t port() const noexcept;

  /// Lets the workers leave, kills those that do not, and closes everything. The run must be over. Idempotent.
  void stop();

private:
  struct impl;
  explicit cluster_head(std::unique_ptr<impl> x);
  std::unique_ptr<impl> impl_;
};

struct worker_options {
  std::shared_ptr<const gpu::workload_registry> workloads; ///< the same as the head's
  int input = 0;                                           ///< the socket between head and worker
  std::chrono::milliseconds join_timeout{20'000};          ///< for each step of joining
};

/// The whole life of a worker process: joins the head that started it, hosts trainers until the run is over or the head is
/// gone, and returns the process's exit status (0: it was let go). Writes what goes wrong to standard error. Call it from
/// main, on the main thread: it asks the kernel to kill this process when the head ends. It leaves SIGTERM, SIGINT, SIGHUP and
/// what stops a job (SIGTSTP, SIGTTIN, SIGTTOU) to the head: this process ignores them, and SIGPIPE, from here on; before, the
/// first six are blocked.
int run_worker(const worker_options& options);

} // namespace troupe::net
