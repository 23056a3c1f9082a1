#include "troupe/actors/wire.hpp"

#include <bit>

namespace troupe::actors {
namespace {

// Per string: a length of up to 10 bytes. Per entry: kind and bits besides.
std::size_t size_of(const std::string& x) { return x.size() + 10; }

std::size_t size_of(const core::value& x) {
  const auto* text = std::get_if<std::string>(&x);
  return 9 + (text ? size_of(*text) : 10);
}

} // namespace

wire_value to_wire(const core::value& x) {
  wire_value out;
  out.kind = static_cast<std::uint8_t>(x.index());
  if (auto b = std::get_if<bool>(&x))
    out.bits = *b;
  else if (auto i = std::get_if<std::int64_t>(&x))
    out.bits = static_cast<std::uint64_t>(*i);
  else if (auto d = std::get_if<double>(&x))
    out.bits = std::bit_cast<std::uint64_t>(*d);
  else if (auto s = std::get_if<std::string>(&x))
    out.text = *s;
  return out;
}

core::value from_wire(const wire_value& x) {
  switch (x.kind) {
  case 1: return x.bits != 0;
  case 2: return static_cast<std::int64_t>(x.bits);
  case 3: return std::bit_cast<double>(x.bits);
  case 4: return x.text;
  default: return std::monostate{};
  }
}

wire_hyperparameters to_wire(const core::hyperparameters& x) {
  wire_hyperparameters out;
  out.entries.reserve(x.size());
  for (const auto& [name, what] : x)
    out.entries.push_back({name, to_wire(what)});
  return out;
}

core::hyperparameters from_wire(const wire_hyperparameters& x) {
  core::hyperparameters out;
  for (const auto& e : x.entries)
    out.set(e.name, from_wire(e.what));
  return out;
}

wire_metadata to_wire(const core::metadata& x) {
  wire_metadata out;
  out.trainer = x.trainer;
  out.name = x.name;
  out.incarnation = x.incarnation;
  out.sync = x.sync;
  out.step = x.step;
  out.epoch = x.epoch;
  out.samples = x.samples;
  out.loss = x.loss;
  out.accuracy = x.accuracy;
  out.grad_norm = x.grad_norm;
  out.compute_seconds = x.compute_seconds;
  out.wait_seconds = x.wait_seconds;
  out.sync_seconds = x.sync_seconds;
  out.memory_bytes = x.memory_bytes;
  for (const auto& [name, what] : x.numbers)
    out.numbers.push_back({name, what});
  out.hp = to_wire(x.hp);
  return out;
}

core::metadata from_wire(const wire_metadata& x) {
  core::metadata out;
  out.trainer = x.trainer;
  out.name = x.name;
  out.incarnation = x.incarnation;
  out.sync = x.sync;
  out.step = x.step;
  out.epoch = x.epoch;
  out.samples = x.samples;
  out.loss = x.loss;
  out.accuracy = x.accuracy;
  out.grad_norm = x.grad_norm;
  out.compute_seconds = x.compute_seconds;
  out.wait_seconds = x.wait_seconds;
  out.sync_seconds = x.sync_seconds;
  out.memory_bytes = x.memory_bytes;
  for (const auto& n : x.numbers)
    out.numbers.insert_or_assign(n.name, n.what);
  out.hp = from_wire(x.hp);
  return out;
}

wire_decision to_wire(const core::decision& x) {
  wire_decision out;
  out.act = static_cast<std::uint8_t>(x.act);
  out.changes = to_wire(x.changes);
  out.copies = x.copy_from.has_value();
  out.copy_from = x.copy_from.value_or(0);
  out.average_of = x.average_of;
  out.reason = x.reason;
  return out;
}

core::decision from_wire(const wire_decision& x) {
  core::decision out;
  using action = core::decision::action;
  if (x.act <= static_cast<std::uint8_t>(action::hold))
    out.act = static_cast<action>(x.act);
  out.changes = from_wire(x.changes);
  if (x.copies)
    out.copy_from = x.copy_from;
  out.average_of = x.average_of;
  out.reason = x.reason;
  return out;
}

wire_schedule to_wire(const core::sync_schedule& x) { return {x.every_steps, x.at_steps, x.every_seconds}; }

core::sync_schedule from_wire(const wire_schedule& x) { return {x.every_steps, x.at_steps, x.every_seconds}; }

wire_error to_wire(const core::error& x) { return {static_cast<std::uint8_t>(x.code), x.text}; }

core::error from_wire(const wire_error& x) {
  auto code = x.code <= static_cast<std::uint8_t>(core::errc::internal) ? static_cast<core::errc>(x.code)
                                                                        : core::errc::internal;
  return {code, x.text};
}

std::size_t wire_size(const core::hyperparameters& x) {
  std::size_t n = 10;
  for (const auto& [name, what] : x)
    n += size_of(name) + size_of(what);
  return n;
}

std::size_t wire_size(const core::metadata& x) {
  std::size_t n = 130 + size_of(x.name) + wire_size(x.hp);
  for (const auto& [name, what] : x.numbers)
    n += size_of(name) + sizeof(what);
  return n;
}

std::size_t wire_size(const core::decision& x) {
  return 20 + wire_size(x.changes) + 4 * x.average_of.size() + size_of(x.reason);
}

core::result<void> fits_control_plane(std::size_t bytes, const std::string& what) {
  constexpr std::size_t rest = 4 * 1024; // the message's other fields
  if (bytes + rest <= max_control_bytes)
    return {};
  return core::error{core::errc::invalid_argument,
                     what + " take " + std::to_string(bytes) + " bytes; a control message holds " +
                         std::to_string(max_control_bytes - rest) + ". Use fewer or shorter values"};
}

} // namespace troupe::actors
