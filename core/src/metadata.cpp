#include "troupe/core/metadata.hpp"

#include <cmath>
#include <set>
#include <type_traits>

#include <nlohmann/json.hpp>

#include "json_path.hpp"

namespace troupe::core {

namespace {

using json = nlohmann::json;

/// Calls `f(name, member)` for every plain number of a metadata, in the order in which they are written.
template <class Metadata, class F>
void each_number(Metadata& x, F f) {
  f("trainer", x.trainer);
  f("incarnation", x.incarnation);
  f("sync", x.sync);
  f("step", x.step);
  f("epoch", x.epoch);
  f("samples", x.samples);
  f("loss", x.loss);
  f("accuracy", x.accuracy);
  f("grad_norm", x.grad_norm);
  f("compute_seconds", x.compute_seconds);
  f("wait_seconds", x.wait_seconds);
  f("sync_seconds", x.sync_seconds);
  f("memory_bytes", x.memory_bytes);
}

/// Reads members and gathers all faults into one text; `at` is a member's JSON pointer.
class reader {
public:
  void fault(std::string_view at, std::string_view text) {
    faults_ += (faults_.empty() ? "" : "; ") + std::string{at} + ": " + std::string{text};
  }

  void number(std::string_view at, const json& from, double& to) {
    const auto parsed = value_from_json(from, at);
    if (const auto d = parsed ? as_number(*parsed) : std::nullopt)
      to = *d;
    else if (from.is_number_unsigned())
      to = from.get<double>();
    else
      fault(at, "must be a number, or \"nan\", \"inf\" or \"-inf\"");
  }

  template <class UInt>
  requires std::is_unsigned_v<UInt>
  void number(std::string_view at, const json& from, UInt& to) {
    // A parsed number that is not negative is unsigned; one built in memory may be a signed integer.
    const bool whole =
        from.is_number_unsigned() || (from.is_number_integer() && from.get<std::int64_t>() >= 0);
    if (!whole || from.get<std::uint64_t>() > std::numeric_limits<UInt>::max())
      fault(at, "must be a whole number from 0 to " + std::to_string(std::numeric_limits<UInt>::max()));
    else
      to = from.get<UInt>();
  }

  const std::string& faults() const noexcept { return faults_; }

private:
  std::string faults_;
};

} // namespace

double metadata::number(std::string_view key) const {
  if (key == "loss")
    return loss;
  if (key == "accuracy")
    return accuracy;
  if (key == "grad_norm")
    return grad_norm;
  if (key == "step")
    return static_cast<double>(step);
  if (key == "epoch")
    return epoch;
  const auto it = numbers.find(key);
  return it == numbers.end() ? std::numeric_limits<double>::quiet_NaN() : it->second;
}

std::string metadata::lacks(std::string_view key) const {
  std::set<std::string_view> known{"accuracy", "epoch", "grad_norm", "loss", "step"};
  for (const auto& [name, number] : numbers)
    known.insert(name);
  if (known.contains(key))
    return {};
  std::string list;
  for (const auto name : known)
    list += (list.empty() ? "" : ", ") + std::string{name};
  return "it reports no number \"" + std::string{key} + "\", only " + list;
}

json to_json(const metadata& x) {
  auto out = json::object();
  each_number(x, [&out](const char* key, auto n) {
    if constexpr (std::is_same_v<decltype(n), double>)
      out[key] = to_json(value{n});
    else
      out[key] = n;
  });
  out["name"] = x.name;
  auto& numbers = out["numbers"] = json::object();
  for (const auto& [key, n] : x.numbers)
    numbers[key] = to_json(value{n});
  out["hyperparameters"] = to_json(x.hp);
  return out;
}

result<metadata> metadata_from_json(const json& j, std::string_view where) {
  if (!j.is_object())
    return error{errc::invalid_argument, std::string{where} + ": must be an object, but is " + j.type_name()};
  metadata out;
  reader in;
  for (const auto& [key, from] : j.items()) {
    const auto at = json_child(where, key);
    if (key == "name") {
      if (from.is_string())
        out.name = from.get<std::string>();
      else
        in.fault(at, "must be a string");
    } else if (key == "numbers") {
      if (!from.is_object()) {
        in.fault(at, "must be an object of numbers");
        continue;
      }
      for (const auto& [name, n] : from.items())
        in.number(json_child(at, name), n, out.numbers[name]);
    } else if (key == "hyperparameters") {
      auto hp = hyperparameters_from_json(from, at);
      if (hp)
        out.hp = std::move(*hp);
      else
        in.fault(at, hp.error().text);
    } else {
      bool known = false;
      each_number(out, [&](std::string_view name, auto& to) {
        if (name == key) {
          known = true;
          in.number(at, from, to);
        }
      });
      if (!known)
        in.fault(at, "is no key of a trainer's metadata");
    }
  }
  for (const char* key : {"trainer", "sync", "step"})
    if (!j.contains(key))
      in.fault(json_child(where, key), "is missing");
  if (!in.faults().empty())
    return error{errc::invalid_argument, in.faults()};
  return out;
}

} // namespace troupe::core
