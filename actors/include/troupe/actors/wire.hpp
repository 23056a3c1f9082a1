#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/actors/caf.hpp"
#include "troupe/core/experiment.hpp"
#include "troupe/core/metadata.hpp"
#include "troupe/core/policy.hpp"
#include "troupe/core/value.hpp"

/// Core's values as messages carry them: reals as bit patterns, maps as lists, optionals as flags.
///
/// `to_wire` and `from_wire` are exact inverses. `from_wire` never fails: what a peer of the same message format cannot have
/// sent (an unknown kind, a repeated key) becomes null, the default, or the last one given.
namespace troupe::actors {

/// No control message is longer; who builds one from a user's values checks with `fits_control_plane`.
inline constexpr std::size_t max_control_bytes = 64 * 1024;

/// A `core::value`.
struct wire_value {
  std::uint8_t kind = 0;  ///< index into core::value: 0 null, 1 bool, 2 integer, 3 real, 4 text
  std::uint64_t bits = 0; ///< bool, integer or the real's bit pattern
  std::string text;
  bool operator==(const wire_value&) const = default;
};
TROUPE_INSPECT(wire_value, kind, bits, text)

struct wire_entry {
  std::string name;
  wire_value what;
  bool operator==(const wire_entry&) const = default;
};
TROUPE_INSPECT(wire_entry, name, what)

struct wire_hyperparameters {
  std::vector<wire_entry> entries;
  bool operator==(const wire_hyperparameters&) const = default;
};
TROUPE_INSPECT(wire_hyperparameters, entries)

struct wire_number {
  std::string name;
  wire_real what;
  bool operator==(const wire_number&) const = default;
};
TROUPE_INSPECT(wire_number, name, what)

/// A `core::metadata`.
struct wire_metadata {
  std::uint32_t trainer = 0;
  std::string name;
  std::uint32_t incarnation = 0;
  std::uint32_t sync = 0;
  std::uint64_t step = 0;
  wire_real epoch;
  std::uint64_t samples = 0;
  wire_real loss, accuracy, grad_norm, compute_seconds, wait_seconds, sync_seconds;
  std::uint64_t memory_bytes = 0;
  std::vector<wire_number> numbers;
  wire_hyperparameters hp;
  bool operator==(const wire_metadata&) const = default;
};
TROUPE_INSPECT(wire_metadata, trainer, name, incarnation, sync, step, epoch, samples, loss, accuracy, grad_norm,
               compute_seconds, wait_seconds, sync_seconds, memory_bytes, numbers, hp)

/// A `core::decision`.
struct wire_decision {
  std::uint8_t act = 0;
  wire_hyperparameters changes;
  bool copies = false;
  std::uint32_t copy_from = 0;
  std::vector<std::uint32_t> average_of;
  std::string reason;
  bool operator==(const wire_decision&) const = default;
};
TROUPE_INSPECT(wire_decision, act, changes, copies, copy_from, average_of, reason)

/// A `core::sync_schedule`.
struct wire_schedule {
  std::uint64_t every_steps = 0;
  std::vector<std::uint64_t> at_steps;
  wire_real every_seconds;
  bool operator==(const wire_schedule&) const = default;
};
TROUPE_INSPECT(wire_schedule, every_steps, at_steps, every_seconds)

/// A `core::error`; no text: none.
struct wire_error {
  std::uint8_t code = 0;
  std::string text;
  bool operator==(const wire_error&) const = default;
  explicit operator bool() const noexcept { return !text.empty(); }
};
TROUPE_INSPECT(wire_error, code, text)

wire_value to_wire(const core::value& x);
wire_hyperparameters to_wire(const core::hyperparameters& x);
wire_metadata to_wire(const core::metadata& x);
wire_decision to_wire(const core::decision& x);
wire_schedule to_wire(const core::sync_schedule& x);
wire_error to_wire(const core::error& x);

core::value from_wire(const wire_value& x);
core::hyperparameters from_wire(const wire_hyperparameters& x);
core::metadata from_wire(const wire_metadata& x);
core::decision from_wire(const wire_decision& x);
core::sync_schedule from_wire(const wire_schedule& x);
core::error from_wire(const wire_error& x);

/// About how many bytes these take in a message (at least as many as they do).
std::size_t wire_size(const core::hyperparameters& x);
std::size_t wire_size(const core::metadata& x);
std::size_t wire_size(const core::decision& x);

/// Refuses, with the size and the limit in the text, what would not fit a control message next to its other fields.
/// `what` names it: "the hyperparameters of trainer a".
core::result<void> fits_control_plane(std::size_t bytes, const std::string& what);

} // namespace troupe::actors
