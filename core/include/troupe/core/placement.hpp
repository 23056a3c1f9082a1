#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "troupe/core/metadata.hpp"
#include "troupe/core/result.hpp"

namespace troupe::core {

/// Shares of devices in thousandths: exact sums, no rounding (a float's 0.18 five times is not 0.9).
class share_ledger {
public:
  static constexpr std::uint32_t whole = 1000;
  /// Each device gets `capacity` thousandths (normally `whole`).
  explicit share_ledger(std::size_t devices, std::uint32_t capacity = whole);
  void add_devices(std::size_t n);
  /// Takes `milli` from the device with the least but sufficient free share (best fit; lowest number on a
  /// tie); nullopt: none has that much.
  std::optional<std::size_t> take(std::uint32_t milli);
  /// An error, and nothing changes, if there is no such device or more comes back than was taken.
  result<void> give_back(std::size_t device, std::uint32_t milli);
  /// Throws `std::out_of_range` if there is no such device.
  std::uint32_t free_share(std::size_t device) const;
  std::size_t devices() const noexcept { return free_.size(); }

private:
  std::vector<std::uint32_t> free_;
  std::uint32_t capacity_;
};

/// A place where trainers can live.
struct slot_place {
  std::uint32_t node = 0; ///< 0: this process
  std::uint32_t slot = 0; ///< within the node
  std::string device;     ///< id, for pins
  bool alive = true;
};

/// Which slot each trainer lives on: pins first, then to the slot with the fewest trainers (lowest node and
/// slot on a tie). Deterministic. A pin that matches no living slot is an error naming trainer and pin.
///
/// A trainer that ran out of memory on a slot (`crowded`) does not come back to it beside as many others: that would fail again,
/// at once and until nobody lets it try any more. It goes where it has fewer, or waits. As every further failure there leaves it
/// fewer still, it either fits in the end or was alone everywhere.
class placement {
public:
  explicit placement(std::vector<slot_place> slots);
  /// A lost slot of the same node and number comes back to life in its old place; a living one throws
  /// `std::invalid_argument`.
  void add_slot(slot_place s);
  /// Its trainers are unplaced; they are returned in order.
  std::vector<trainer_id> lose_node(std::uint32_t node);
  /// Takes no more trainers; its own are unplaced and returned in order.
  std::vector<trainer_id> lose_slot(std::uint32_t node, std::uint32_t slot);
  /// An index into slots(). `pin`: "" any; "3" the slot of that index; "2/0" node and slot; a device's id or,
  /// of a GPU's id, its beginning ("GPU-8a"); "cuda" any GPU. ("cuda:1" is a matter of one machine: resolve
  /// it to an id first.) Of several slots that match and have room, the one with the fewest trainers; none has: an
  /// error of code out_of_memory. A trainer that is placed already moves, or stays where it is after an error.
  result<std::size_t> place(trainer_id t, const std::string& name, const std::string& pin);
  void remove(trainer_id t);
  /// `t` has gone to another slot of its node by itself. False, and nothing changes, if it is not placed or there is no such living
  /// slot.
  bool moved(trainer_id t, std::uint32_t to_slot);
  /// `t` ran out of memory where it is: it is unplaced, and from now on there is room for it on that slot only beside fewer others.
  /// Returns how many there were; nullopt, and nothing changes, if it is not placed.
  std::optional<std::size_t> crowded(trainer_id t);
  /// What `crowded` said of `t` is forgotten.
  void forget_crowding(trainer_id t);
  enum class room : std::uint8_t {
    now,   ///< `place` finds a slot
    later, ///< when others have left one
    never  ///< it was alone wherever it may live, or no such slot is alive
  };
  room room_for(trainer_id t, const std::string& pin) const;
  std::optional<std::size_t> where(trainer_id t) const;
  const std::vector<slot_place>& slots() const noexcept { return slots_; }
  /// Trainers on that slot. Throws `std::out_of_range` if there is no such slot.
  std::size_t load(std::size_t slot) const;

private:
  void lose(std::size_t i, std::vector<trainer_id>& out);
  std::size_t others_on(std::size_t i, trainer_id t) const;
  bool has_room(std::size_t i, trainer_id t) const;

  std::vector<slot_place> slots_;
  std::vector<std::vector<trainer_id>> on_slot_;
  std::map<std::pair<trainer_id, std::size_t>, std::size_t> too_many_; ///< others on a slot, for a trainer
};

} // namespace troupe::core
