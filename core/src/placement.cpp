#include "troupe/core/placement.hpp"

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <tuple>

namespace troupe::core {

// -- share_ledger -----

share_ledger::share_ledger(std::size_t devices, std::uint32_t capacity)
    : free_(devices, capacity), capacity_(capacity) {}

void share_ledger::add_devices(std::size_t n) { free_.insert(free_.end(), n, capacity_); }

std::optional<std::size_t> share_ledger::take(std::uint32_t milli) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < free_.size(); ++i)
    if (free_[i] >= milli && (!best || free_[i] < free_[*best]))
      best = i;
  if (best)
    free_[*best] -= milli;
  return best;
}

result<void> share_ledger::give_back(std::size_t device, std::uint32_t milli) {
  if (device >= free_.size())
    return error{errc::not_found, "no device " + std::to_string(device) +
                                      " to give a share back to; there are " + std::to_string(free_.size())};
  const auto taken = capacity_ - free_[device];
  if (milli > taken)
    return error{errc::refused, "device " + std::to_string(device) + " cannot take back " +
                                    std::to_string(milli) + " thousandths: only " + std::to_string(taken) +
                                    " are taken"};
  free_[device] += milli;
  return {};
}

std::uint32_t share_ledger::free_share(std::size_t device) const { return free_.at(device); }

// -- placement -----

namespace {

std::optional<std::uint64_t> whole_number(std::string_view text) {
  std::uint64_t n = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (fault != std::errc{} || end != text.data() + text.size())
    return std::nullopt;
  return n;
}

bool is_gpu(std::string_view id) { return id.starts_with("GPU-") || id.starts_with("MIG-"); }

bool matches(std::string_view pin, const slot_place& s, std::size_t index) {
  if (pin.empty())
    return true;
  if (const auto n = whole_number(pin))
    return *n == index;
  if (const auto slash = pin.find('/'); slash != std::string_view::npos) {
    const auto node = whole_number(pin.substr(0, slash)), slot = whole_number(pin.substr(slash + 1));
    if (node && slot)
      return *node == s.node && *slot == s.slot;
  }
  if (pin == "cuda")
    return is_gpu(s.device);
  return pin == s.device || (is_gpu(pin) && std::string_view{s.device}.starts_with(pin));
}

} // namespace

placement::placement(std::vector<slot_place> slots) {
  for (auto& s : slots)
    add_slot(std::move(s));
}

void placement::add_slot(slot_place s) {
  const auto known = std::find_if(slots_.begin(), slots_.end(), [&s](const slot_place& other) {
    return other.node == s.node && other.slot == s.slot;
  });
  if (known == slots_.end()) {
    slots_.push_back(std::move(s));
    on_slot_.emplace_back();
    return;
  }
  if (known->alive)
    throw std::invalid_argument("slot " + std::to_string(s.slot) + " of node " + std::to_string(s.node) +
                                " is there already");
  const auto at = static_cast<std::size_t>(known - slots_.begin());
  std::erase_if(too_many_, [at](const auto& x) { return x.first.second == at; }); // it may be another device
  *known = std::move(s);
}

void placement::lose(std::size_t i, std::vector<trainer_id>& out) {
  slots_[i].alive = false;
  out.insert(out.end(), on_slot_[i].begin(), on_slot_[i].end());
  on_slot_[i].clear();
}

std::vector<trainer_id> placement::lose_node(std::uint32_t node) {
  std::vector<trainer_id> out;
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].node == node)
      lose(i, out);
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<trainer_id> placement::lose_slot(std::uint32_t node, std::uint32_t slot) {
  std::vector<trainer_id> out;
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].node == node && slots_[i].slot == slot)
      lose(i, out);
  std::sort(out.begin(), out.end());
  return out;
}

result<std::size_t> placement::place(trainer_id t, const std::string& name, const std::string& pin) {
  const auto rank = [&](std::size_t i) {
    return std::tuple{others_on(i, t), slots_[i].node, slots_[i].slot};
  };
  std::optional<std::size_t> best;
  std::string crowded;
  bool lost = false;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!matches(pin, slots_[i], i))
      continue;
    if (!slots_[i].alive)
      lost = true;
    else if (!has_room(i, t))
      crowded += (crowded.empty() ? " " : ", ") + std::to_string(slots_[i].node) + "/" +
                 std::to_string(slots_[i].slot) + " (beside " + std::to_string(too_many_.at({t, i})) +
                 " others; there are " + std::to_string(others_on(i, t)) + " now)";
    else if (!best || rank(i) < rank(*best))
      best = i;
  }
  if (best) {
    remove(t);
    on_slot_[*best].push_back(t);
    return *best;
  }
  if (!crowded.empty())
    return error{errc::out_of_memory,
                 "there is no room for trainer \"" + name + "\": it ran out of memory on slot" + crowded};
  if (pin.empty())
    return error{errc::refused, "trainer \"" + name + "\" cannot be placed: there is no living slot"};
  if (lost)
    return error{errc::refused, "trainer \"" + name + "\" is pinned to \"" + pin +
                                    "\", but no slot of that kind is left alive"};
  std::string there;
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].alive)
      there += (there.empty() ? " " : ", ") + std::to_string(i) + " (" + slots_[i].device + ")";
  return error{errc::not_found, "trainer \"" + name + "\" is pinned to \"" + pin +
                                    "\", which is no slot; there are" +
                                    (there.empty() ? std::string{" none"} : there)};
}

void placement::remove(trainer_id t) {
  for (auto& trainers : on_slot_)
    std::erase(trainers, t);
}

bool placement::moved(trainer_id t, std::uint32_t to_slot) {
  const auto from = where(t);
  if (!from)
    return false;
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].node == slots_[*from].node && slots_[i].slot == to_slot && slots_[i].alive) {
      remove(t);
      on_slot_[i].push_back(t);
      return true;
    }
  return false;
}

std::size_t placement::others_on(std::size_t i, trainer_id t) const {
  const auto& all = on_slot_[i];
  return all.size() - static_cast<std::size_t>(std::count(all.begin(), all.end(), t));
}

bool placement::has_room(std::size_t i, trainer_id t) const {
  const auto x = too_many_.find({t, i});
  return x == too_many_.end() || others_on(i, t) < x->second;
}

std::optional<std::size_t> placement::crowded(trainer_id t) {
  const auto i = where(t);
  if (!i)
    return std::nullopt;
  const auto others = others_on(*i, t);
  const auto [x, fresh] = too_many_.try_emplace({t, *i}, others);
  x->second = std::min(x->second, others);
  remove(t);
  return others;
}

void placement::forget_crowding(trainer_id t) {
  std::erase_if(too_many_, [t](const auto& x) { return x.first.first == t; });
}

placement::room placement::room_for(trainer_id t, const std::string& pin) const {
  auto out = room::never;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].alive || !matches(pin, slots_[i], i))
      continue;
    if (has_room(i, t))
      return room::now;
    if (too_many_.at({t, i}) > 0)
      out = room::later;
  }
  return out;
}

std::optional<std::size_t> placement::where(trainer_id t) const {
  for (std::size_t i = 0; i < on_slot_.size(); ++i)
    if (std::find(on_slot_[i].begin(), on_slot_[i].end(), t) != on_slot_[i].end())
      return i;
  return std::nullopt;
}

std::size_t placement::load(std::size_t slot) const { return on_slot_.at(slot).size(); }

} // namespace troupe::core
