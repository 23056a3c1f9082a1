#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe::core {

/// Something that a slot trains, as far as the rule needs to know it.
struct run_load {
  std::uint64_t id = 0;      ///< comes back in slot_move
  bool movable = false;
  double left_seconds = 0;   ///< of computing, to its next sync point or its end; 0: not measured yet
  double move_seconds = 0;   ///< what a move costs, measured or estimated
  /// What it has computed since it came to this slot by a move; without end where it was placed there.
  double settled_seconds = std::numeric_limits<double>::infinity();
  std::vector<std::size_t> not_to; ///< slots that could not take it
};

struct slot_load {
  std::string kind;           ///< moves lead only to slots of the same kind
  bool idle = false;          ///< it has nothing to do, and could take something
  std::vector<run_load> runs; ///< that have its device or wait for it, in the order of their turns
};

struct slot_move {
  std::size_t from = 0, to = 0; ///< indices into the slots
  std::uint64_t id = 0;
  double gain_seconds = 0;      ///< by which the slot's runs are over sooner
};

struct rebalance_options {
  double worth = 20; ///< a move gains at least so many times what it costs
};

/// The move that is worth most, if any is worth its cost: from a slot where at least two share the device to one of the same kind
/// that is idle.
///
/// A slot that shares its time among runs of w1, w2, … seconds is done with them after their sum S; without run m, it is done
/// after S - wm, and the other slot with m after its cost c + wm. The gain is S - max(S - wm, c + wm), and must be `worth` times c.
/// So what is moved in vain, because something happened that nobody could know, costs little beside what it did before; and
/// nothing bounces: what came by a move stays until it has computed `worth` times what its next move would cost. Of equal moves
/// the one of the run whose turn is last, and to the first slot. Deterministic.
std::optional<slot_move> choose_move(std::span<const slot_load> slots, const rebalance_options& o = {});

} // namespace troupe::core
