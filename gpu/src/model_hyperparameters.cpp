#include "model_hyperparameters.hpp"

#include <array>
#include <cmath>
#include <string_view>

#include "option_reader.hpp"

namespace troupe::gpu::internal {

namespace {

using core::value;

enum class form : std::uint8_t { real, whole, flag, word };
enum class user : std::uint8_t { both, sgd, adamw };

/// One hyperparameter: its form and range. Ends are included unless `open` says otherwise.
struct rule {
  std::string_view name;
  form is;
  user of;
  double low, high;
  bool low_open, high_open;
  double fallback;
};

constexpr double most_steps = 1 << 24; // whole numbers that a float holds exactly

constexpr std::array rules{
  rule{"lr", form::real, user::both, 0, 1e6, false, false, 0.01},
  rule{"weight_decay", form::real, user::both, 0, 1e6, false, false, 0},
  rule{"clip_norm", form::real, user::both, 0, 1e30, false, false, 0},
  rule{"dropout", form::real, user::both, 0, 1, false, true, 0},
  rule{"label_smoothing", form::real, user::both, 0, 1, false, true, 0},
  rule{"momentum", form::real, user::sgd, 0, 1, false, true, 0.9},
  rule{"nesterov", form::flag, user::sgd, 0, 1, false, false, 0},
  rule{"beta1", form::real, user::adamw, 0, 1, false, true, 0.9},
  rule{"beta2", form::real, user::adamw, 0, 1, false, true, 0.999},
  rule{"epsilon", form::real, user::adamw, 0, 1, true, false, 1e-8},
  rule{"schedule", form::word, user::both, 0, 0, false, false, 0},
  rule{"schedule_every", form::whole, user::both, 1, most_steps, false, false, 1000},
  rule{"schedule_factor", form::real, user::both, 0, 1, true, false, 0.1},
  rule{"schedule_steps", form::whole, user::both, 1, most_steps, false, false, 1000},
  rule{"schedule_warmup", form::whole, user::both, 0, most_steps, false, false, 0},
  rule{"schedule_final", form::real, user::both, 0, 1, false, false, 0},
};

constexpr std::array<std::string_view, 4> schedules{"constant", "step", "cosine", "warmup_cosine"};

bool serves(const rule& r, optimizer_kind optimizer) {
  return r.of == user::both || (r.of == user::sgd) == (optimizer == optimizer_kind::sgd);
}

double fallback_of(const rule& r, optimizer_kind optimizer) {
  if (r.name == "lr" && optimizer == optimizer_kind::adamw)
    return 0.001;
  if (r.name == "weight_decay" && optimizer == optimizer_kind::adamw)
    return 0.01;
  return r.fallback;
}

const rule* find_rule(std::string_view name) {
  for (const auto& r : rules)
    if (r.name == name)
      return &r;
  return nullptr;
}

std::string known_names(optimizer_kind optimizer) {
  std::string list;
  for (const auto& r : rules)
    if (serves(r, optimizer))
      list += (list.empty() ? "" : ", ") + std::string(r.name);
  return list;
}

std::string range_text(const rule& r) {
  return "must be a " + std::string(r.is == form::whole ? "whole number" : "number") + (r.low_open ? " above " : " from ")
         + bound_text(r.low) + (r.high_open ? " to below " : " to ") + bound_text(r.high);
}

std::string value_fault(const rule& r, const value& x) {
  const auto shown = ", not " + core::to_string(x);
  switch (r.is) {
  case form::flag: return std::holds_alternative<bool>(x) ? "" : "must be true or false" + shown;
  case form::word: {
    const auto* text = std::get_if<std::string>(&x);
    for (auto s : schedules)
      if (text != nullptr && *text == s)
        return {};
    return "must be one of constant, step, cosine, warmup_cosine" + shown;
  }
  case form::real:
  case form::whole: break;
  }
  const auto n = core::as_number(x);
  // Written so that NaN fails.
  const bool inside = n && (r.low_open ? *n > r.low : *n >= r.low) && (r.high_open ? *n < r.high : *n <= r.high);
  // A float that rounds up to 1 would leave its range.
  const bool survives = inside && (!r.high_open || static_cast<float>(*n) < static_cast<float>(r.high))
                        && (!r.low_open || static_cast<float>(*n) > static_cast<float>(r.low));
  if (!survives || (r.is == form::whole && *n != std::floor(*n)))
    return range_text(r) + shown;
  return {};
}

/// The value in effect: given, or the default.
double number_of(optimizer_kind optimizer, const core::hyperparameters& hp, std::string_view name) {
  const auto* x = hp.find(name);
  if (x != nullptr) {
    if (const auto n = core::as_number(*x))
      return *n;
    if (const auto* b = std::get_if<bool>(x))
      return *b ? 1 : 0;
  }
  return fallback_of(*find_rule(name), optimizer);
}

std::size_t schedule_of(const core::hyperparameters& hp) {
  const auto* x = hp.find("schedule");
  const auto* text = x != nullptr ? std::get_if<std::string>(x) : nullptr;
  for (std::size_t i = 0; i < schedules.size(); ++i)
    if (text != nullptr && *text == schedules[i])
      return i;
  return 0;
}

} // namespace

core::hyperparameters default_hyperparameters(optimizer_kind optimizer) {
  core::hyperparameters out;
  for (const auto& r : rules) {
    if (!serves(r, optimizer))
      continue;
    const auto x = fallback_of(r, optimizer);
    switch (r.is) {
    case form::real: out.set(r.name, x); break;
    case form::whole: out.set(r.name, static_cast<std::int64_t>(x)); break;
    case form::flag: out.set(r.name, x != 0); break;
    case form::word: out.set(r.name, std::string("constant")); break;
    }
  }
  return out;
}

std::vector<std::pair<std::string, std::string>> hyperparameter_faults(optimizer_kind optimizer,
                                                                       const core::hyperparameters& hp) {
  std::vector<std::pair<std::string, std::string>> faults;
  for (const auto& [key, x] : hp) {
    const auto* r = find_rule(key);
    if (r == nullptr)
      faults.emplace_back(key, "is no hyperparameter; known are " + known_names(optimizer));
    else if (!serves(*r, optimizer))
      faults.emplace_back(key, "belongs to another optimizer; " + std::string(to_string(optimizer)) + " has "
                                 + known_names(optimizer));
    else if (!std::holds_alternative<std::monostate>(x))
      if (auto fault = value_fault(*r, x); !fault.empty())
        faults.emplace_back(key, std::move(fault));
  }
  if (faults.empty() && schedule_of(hp) == 3
      && number_of(optimizer, hp, "schedule_warmup") >= number_of(optimizer, hp, "schedule_steps"))
    faults.emplace_back("schedule_warmup", "must be below schedule_steps");
  return faults;
}

member_params to_params(optimizer_kind optimizer, const core::hyperparameters& hp) {
  auto number = [&](std::string_view name) { return static_cast<float>(number_of(optimizer, hp, name)); };
  member_params p;
  p.lr = number("lr");
  p.weight_decay = number("weight_decay");
  p.clip_norm = number("clip_norm");
  p.dropout = number("dropout");
  p.label_smoothing = number("label_smoothing");
  if (optimizer == optimizer_kind::sgd) {
    p.momentum = number("momentum");
    p.nesterov = number("nesterov");
  } else {
    p.beta1 = number("beta1");
    p.beta2 = number("beta2");
    p.epsilon = number("epsilon");
  }
  const auto schedule = schedule_of(hp);
  p.schedule = static_cast<float>(schedule);
  if (schedule == 1) {
    p.schedule_a = number("schedule_every");
    p.schedule_b = number("schedule_factor");
  } else if (schedule == 2) {
    p.schedule_a = number("schedule_steps");
    p.schedule_b = number("schedule_final");
  } else if (schedule == 3) {
    p.schedule_a = number("schedule_warmup");
    p.schedule_b = number("schedule_steps");
    p.schedule_c = number("schedule_final");
  }
  return p;
}

} // namespace troupe::gpu::internal
