#pragma once

#include <chrono>
#include <cstdint>

#include "troupe/core/experiment.hpp"
#include "troupe/core/trainer_machine.hpp"

namespace troupe::core {

/// How many reports may wait for the disk before those who make them wait with them.
///
/// In rounds nobody goes on before its report is written. Trainers that report and go on could fill the queue
/// of a slow disk without end; so while more than `record_options` allows is unwritten, each further report is
/// held back: whoever made it is told only when that very report is written that it was taken. A trainer has
/// at most `reports_ahead` reports that were not taken, so there are never more than the limit and
/// `reports_ahead` of each trainer in the queue, and as each of them is written sometime, nobody waits for ever.
class report_gate {
public:
  using time_point = std::chrono::steady_clock::time_point;

  explicit report_gate(record_options limits) : limits_(limits) {}

  /// A report of so many bytes goes to the store. True: taken; false: it is held back until `written`.
  bool sent(std::uint64_t bytes, time_point now) {
    const bool taken = unwritten_ < limits_.max_unwritten && unwritten_bytes_ < limits_.max_unwritten_bytes;
    ++unwritten_;
    unwritten_bytes_ += bytes;
    most_ = most_ < unwritten_ ? unwritten_ : most_;
    if (!taken && held_back_++ == 0) {
      since_ = now;
      ++times_;
    }
    return taken;
  }

  /// One that was sent is on record; `taken`: as `sent` said.
  void written(std::uint64_t bytes, bool taken, time_point now) {
    --unwritten_;
    unwritten_bytes_ -= bytes;
    if (!taken && --held_back_ == 0)
      before_ += std::chrono::duration<double>(now - since_).count();
  }

  std::uint64_t unwritten() const noexcept { return unwritten_; }
  std::uint64_t unwritten_bytes() const noexcept { return unwritten_bytes_; }
  std::uint64_t most_unwritten() const noexcept { return most_; }
  std::uint64_t held_back() const noexcept { return held_back_; } ///< of the unwritten ones
  std::uint64_t times() const noexcept { return times_; }         ///< how often it began to hold back
  double held_back_seconds(time_point now) const {                ///< in which at least one was held back
    return before_ + (held_back_ > 0 ? std::chrono::duration<double>(now - since_).count() : 0);
  }

private:
  record_options limits_;
  std::uint64_t unwritten_ = 0, unwritten_bytes_ = 0, most_ = 0, held_back_ = 0, times_ = 0;
  double before_ = 0;
  time_point since_{};
};

} // namespace troupe::core
