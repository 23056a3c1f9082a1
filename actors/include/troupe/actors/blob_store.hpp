#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "troupe/actors/messages.hpp"
#include "troupe/core/checkpoint.hpp"

namespace troupe::actors {

/// The states that a process keeps for others: exported by its trainers, read by trainers of the same process and by the tensor
/// transport. Thread-safe. States are immutable and shared, so one that is dropped lives on with those who still hold it.
///
/// A state stays until whoever asked for it drops it; nothing is evicted. `pin` keeps a dropped one findable, and counted, while
/// it is being sent.
class blob_store : public std::enable_shared_from_this<blob_store> {
public:
  /// `node`: of this process, for the refs it gives out.
  explicit blob_store(std::uint32_t node = 0) : node_(node) {}

  /// Where the process's tensor transport listens; in every ref given out from now on.
  void set_address(std::string host, std::uint16_t port);
  /// The number that this process was given when it joined.
  void set_node(std::uint32_t node);
  std::uint32_t node() const;

  /// Holds `x` under a new number. Reads all its bytes once, for the hash. Precondition: not null.
  state_ref put(core::checkpoint_ptr x);
  /// Null if there is none of this number.
  core::checkpoint_ptr get(std::uint64_t blob) const;
  /// False if there is none of this number.
  bool drop(std::uint64_t blob);

  /// Keeps a state findable while it lives. Movable.
  class pin {
  public:
    pin() = default;
    pin(pin&& other) noexcept = default;
    pin& operator=(pin&& other) noexcept;
    ~pin() { release(); }
    const core::checkpoint_ptr& state() const noexcept { return state_; } ///< null: there was none
    explicit operator bool() const noexcept { return state_ != nullptr; }

  private:
    friend class blob_store;
    void release() noexcept;
    std::shared_ptr<blob_store> owner_;
    core::checkpoint_ptr state_;
    std::uint64_t blob_ = 0;
  };
  /// Precondition: the store is owned by a shared_ptr.
  pin hold(std::uint64_t blob);

  struct counters {
    std::uint64_t blobs = 0, bytes = 0; ///< held now, pinned ones included
    std::uint64_t peak_bytes = 0;
    std::uint64_t put = 0, dropped = 0; ///< so far
  };
  counters snapshot() const;

private:
  struct entry {
    core::checkpoint_ptr state;
    std::uint64_t bytes = 0;
    std::uint32_t pins = 0;
    bool dropped = false;
  };
  using table = std::map<std::uint64_t, entry>;
  void erase(table::iterator i, core::checkpoint_ptr& last); // with the lock

  mutable std::mutex mutex_;
  std::uint32_t node_;
  std::string host_;
  std::uint16_t port_ = 0;
  std::uint64_t next_ = 1;
  table entries_;
  counters count_;
};

} // namespace troupe::actors
