#include "troupe/core/search_space.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "json_path.hpp"

namespace troupe::core {

namespace {

using json = nlohmann::json;

std::string shown(double x) { return to_string(value{x}); }

// -- grids and casts -----

/// The number of quanta that fit; a last one that only rounding keeps out is in.
std::int64_t grid_size(const uniform_domain& d) noexcept {
  return static_cast<std::int64_t>(std::floor((d.high - d.low) / d.quantum * (1 + 1e-12)));
}

double grid_value(const uniform_domain& d, std::int64_t k) noexcept {
  return std::min(d.low + static_cast<double>(k) * d.quantum, d.high);
}

std::int64_t nearest_on_grid(const uniform_domain& d, double x) noexcept {
  const double k = std::round((x - d.low) / d.quantum);
  return static_cast<std::int64_t>(std::clamp(k, 0.0, static_cast<double>(grid_size(d))));
}

std::int64_t to_whole(double x, std::int64_t low, std::int64_t high) noexcept {
  // A bound above 2^53 may have been rounded: compared first, so that the cast is always in range.
  if (!(x > static_cast<double>(low)))
    return low;
  if (x >= static_cast<double>(high))
    return high;
  return std::clamp(static_cast<std::int64_t>(std::llround(x)), low, high);
}

std::optional<std::int64_t> as_whole(const value& x) {
  if (const auto* i = std::get_if<std::int64_t>(&x))
    return *i;
  if (const auto* d = std::get_if<double>(&x);
      d != nullptr && std::trunc(*d) == *d && *d >= -0x1p63 && *d < 0x1p63)
    return static_cast<std::int64_t>(*d);
  return std::nullopt;
}

/// Equal but for the number's type; whole numbers are compared as such, since not all of them are doubles.
bool same(const value& a, const value& b) {
  if (a == b)
    return true;
  if (const auto i = as_whole(a), k = as_whole(b); i && k)
    return *i == *k;
  const auto x = as_number(a), y = as_number(b);
  return x && y && *x == *y;
}

// -- what a domain can do -----

struct drawn {
  random_stream& rng;

  value operator()(const uniform_domain& d) const {
    if (d.quantum > 0)
      return grid_value(d,
                        static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(grid_size(d)) + 1)));
    return rng.uniform(d.low, d.high);
  }
  value operator()(const log_uniform_domain& d) const {
    return std::clamp(std::exp(rng.uniform(std::log(d.low), std::log(d.high))), d.low, d.high);
  }
  value operator()(const integer_domain& d) const {
    if (d.log) {
      // Half a unit beyond each end, so that the ends are as likely as their neighbours in the logarithm.
      const double low = static_cast<double>(d.low), high = static_cast<double>(d.high);
      return to_whole(std::exp(rng.uniform(std::log(low - 0.5), std::log(high + 0.5))), d.low, d.high);
    }
    const std::uint64_t width = static_cast<std::uint64_t>(d.high) - static_cast<std::uint64_t>(d.low);
    const std::uint64_t k =
        width == std::numeric_limits<std::uint64_t>::max() ? rng.next_u64() : rng.below(width + 1);
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(d.low) + k);
  }
  value operator()(const choice_domain& d) const { return d.values[rng.below(d.values.size())]; }
};

/// The value in the domain's own type; nullopt if it is not in the domain.
struct contained {
  const value& x;

  std::optional<value> operator()(const uniform_domain& d) const {
    const auto n = as_number(x);
    if (!n || !(*n >= d.low && *n <= d.high))
      return std::nullopt;
    if (d.quantum > 0) {
      const double g = grid_value(d, nearest_on_grid(d, *n));
      // Somebody's 0.3 is not 3 * 0.1.
      return std::abs(g - *n) <= 1e-6 * d.quantum ? std::optional<value>{g} : std::nullopt;
    }
    return value{*n};
  }
  std::optional<value> operator()(const log_uniform_domain& d) const {
    const auto n = as_number(x);
    return n && *n >= d.low && *n <= d.high ? std::optional<value>{*n} : std::nullopt;
  }
  std::optional<value> operator()(const integer_domain& d) const {
    const auto n = as_whole(x);
    return n && *n >= d.low && *n <= d.high ? std::optional<value>{*n} : std::nullopt;
  }
  std::optional<value> operator()(const choice_domain& d) const {
    const auto it =
        std::find_if(d.values.begin(), d.values.end(), [this](const value& v) { return same(v, x); });
    return it == d.values.end() ? std::nullopt : std::optional<value>{*it};
  }
};

double scaled(double x, double factor, bool up) noexcept { return up == (x > 0) ? x * factor : x / factor; }

/// Moves a value that the domain contains, in the domain's own type.
struct moved {
  const value& x;
  double factor;
  random_stream& rng;

  value operator()(const uniform_domain& d) const {
    const double at = std::get<double>(x);
    if (d.low == d.high)
      return at;
    const double top = d.quantum > 0 ? grid_value(d, grid_size(d)) : d.high;
    const bool up = direction(at<top, at> d.low);
    const double step = (d.high - d.low) * (factor - 1) / 20;
    const double target = std::clamp(at == 0 ? (up ? step : -step) : scaled(at, factor, up), d.low, top);
    if (!(d.quantum > 0))
      return target;
    const auto from = nearest_on_grid(d, at), to = nearest_on_grid(d, target);
    return grid_value(d, up ? std::max(to, from + 1) : std::min(to, from - 1));
  }
  value operator()(const log_uniform_domain& d) const {
    const double at = std::get<double>(x);
    return std::clamp(scaled(at, factor, direction(at<d.high, at> d.low)), d.low, d.high);
  }
  value operator()(const integer_domain& d) const {
    const auto at = std::get<std::int64_t>(x);
    if (d.low == d.high)
      return at;
    const bool up = direction(at<d.high, at> d.low);
    const auto to = to_whole(scaled(static_cast<double>(at), factor, up), d.low, d.high);
    return up ? std::max(to, at + 1) : std::min(to, at - 1);
  }
  value operator()(const choice_domain& d) const {
    const auto n = d.values.size();
    if (n == 1)
      return x;
    const auto at =
        static_cast<std::size_t>(std::find(d.values.begin(), d.values.end(), x) - d.values.begin());
    if (d.ordered)
      return d.values[direction(at + 1 < n, at > 0) ? at + 1 : at - 1];
    const auto other = rng.below(n - 1);
    return d.values[other < at ? other : other + 1];
  }

  /// Up? Drawn even where only one way is open, so that one key's bounds do not shift the others' draws.
  bool direction(bool can_rise, bool can_fall) const noexcept {
    const bool up = rng.below(2) == 0;
    if (can_rise == can_fall)
      return up;
    return can_rise;
  }
};

/// A place on the domain's own scale, 0 to 1, as a value.
struct placed {
  double unit;

  double between(double low, double high) const { return std::clamp(low + unit * (high - low), low, high); }
  value operator()(const uniform_domain& d) const {
    const double x = between(d.low, d.high);
    return d.quantum > 0 ? grid_value(d, nearest_on_grid(d, x)) : x;
  }
  value operator()(const log_uniform_domain& d) const {
    return std::clamp(std::exp(between(std::log(d.low), std::log(d.high))), d.low, d.high);
  }
  value operator()(const integer_domain& d) const {
    const double low = static_cast<double>(d.low), high = static_cast<double>(d.high);
    return to_whole(d.log ? std::exp(between(std::log(low), std::log(high))) : between(low, high), d.low, d.high);
  }
  value operator()(const choice_domain& d) const {
    const auto last = static_cast<double>(d.values.size() - 1);
    return d.values[static_cast<std::size_t>(std::llround(unit * last))];
  }
};

/// Where a value that the domain contains lies.
struct located {
  const value& x;

  static double share(double at, double low, double high) {
    return high > low ? std::clamp((at - low) / (high - low), 0.0, 1.0) : 0.5;
  }
  double operator()(const uniform_domain& d) const { return share(std::get<double>(x), d.low, d.high); }
  double operator()(const log_uniform_domain& d) const {
    return share(std::log(std::get<double>(x)), std::log(d.low), std::log(d.high));
  }
  double operator()(const integer_domain& d) const {
    const auto at = static_cast<double>(std::get<std::int64_t>(x));
    const double low = static_cast<double>(d.low), high = static_cast<double>(d.high);
    return d.log ? share(std::log(at), std::log(low), std::log(high)) : share(at, low, high);
  }
  double operator()(const choice_domain& d) const {
    const auto i = std::find(d.values.begin(), d.values.end(), x) - d.values.begin();
    return share(static_cast<double>(i), 0, static_cast<double>(d.values.size() - 1));
  }
};

struct described {
  std::string operator()(const uniform_domain& d) const {
    const auto grid = d.quantum > 0 ? " in steps of " + shown(d.quantum) : "";
    return "a number from " + shown(d.low) + " to " + shown(d.high) + grid;
  }
  std::string operator()(const log_uniform_domain& d) const {
    return "a number from " + shown(d.low) + " to " + shown(d.high);
  }
  std::string operator()(const integer_domain& d) const {
    return "a whole number from " + std::to_string(d.low) + " to " + std::to_string(d.high);
  }
  std::string operator()(const choice_domain& d) const {
    std::string out = "one of";
    for (const auto& v : d.values)
      out += (&v == &d.values.front() ? " " : ", ") + to_string(v);
    return out;
  }
};

// -- parsing -----

class parser {
public:
  parser(const json& j, std::string where, std::vector<error>& faults)
      : j_(j), where_(std::move(where)), faults_(faults) {}

  std::optional<domain> parse() {
    if (!j_.is_object()) {
      fault("must be an object with a \"type\"");
      return std::nullopt;
    }
    const auto type = j_.find("type");
    if (type == j_.end() || !type->is_string()) {
      fault("needs a \"type\": " + types);
      return std::nullopt;
    }
    const auto& name = type->get_ref<const std::string&>();
    const auto before = faults_.size();
    domain out;
    if (name == "uniform")
      out = uniform();
    else if (name == "log_uniform")
      out = log_uniform();
    else if (name == "integer")
      out = integer();
    else if (name == "choice")
      out = choice();
    else
      fault("type", "\"" + name + "\" is no type of domain; there are " + types);
    return faults_.size() == before ? std::optional{std::move(out)} : std::nullopt;
  }

private:
  static inline const std::string types = "\"uniform\", \"log_uniform\", \"integer\" and \"choice\"";

  void fault(const std::string& text) { faults_.push_back({errc::invalid_argument, where_ + ": " + text}); }
  void fault(std::string_view key, const std::string& text) {
    faults_.push_back({errc::invalid_argument, json_child(where_, key) + ": " + text});
  }

  void only(std::initializer_list<std::string_view> keys) {
    for (const auto& [key, unused] : j_.items())
      if (key != "type" && std::find(keys.begin(), keys.end(), key) == keys.end())
        fault(key, "is no key of this type of domain");
  }

  /// The member as a value; a fault if it is missing.
  std::optional<value> member(std::string_view key) {
    const auto it = j_.find(key);
    if (it == j_.end()) {
      fault(key, "is missing");
      return std::nullopt;
    }
    auto x = value_from_json(*it, json_child(where_, key));
    if (x)
      return std::move(*x);
    faults_.push_back(x.error());
    return std::nullopt;
  }

  std::optional<double> real(std::string_view key) {
    const auto x = member(key);
    if (!x)
      return std::nullopt;
    const auto n = as_number(*x);
    if (n && std::isfinite(*n))
      return n;
    fault(key, "must be a finite number, but is " + to_string(*x));
    return std::nullopt;
  }

  std::optional<std::int64_t> whole(std::string_view key) {
    const auto x = member(key);
    if (!x)
      return std::nullopt;
    if (const auto n = as_whole(*x))
      return n;
    fault(key, "must be a whole number, but is " + to_string(*x));
    return std::nullopt;
  }

  bool flag(std::string_view key) {
    const auto it = j_.find(key);
    if (it == j_.end())
      return false;
    if (!it->is_boolean()) {
      fault(key, "must be true or false");
      return false;
    }
    return it->get<bool>();
  }

  template <class T>
  void ordered(const std::optional<T>& low, const std::optional<T>& high) {
    if (low && high && *high < *low)
      fault("\"low\" (" + to_string(value{*low}) + ") is above \"high\" (" + to_string(value{*high}) + ")");
  }

  template <class T>
  void positive(const std::optional<T>& low) {
    if (low && !(*low > 0))
      fault("low", "must be above 0, as the logarithm is taken, but is " + to_string(value{*low}));
  }

  domain uniform() {
    only({"low", "high", "quantum"});
    const auto low = real("low"), high = real("high");
    ordered(low, high);
    std::optional<double> quantum = 0.0;
    if (j_.contains("quantum")) {
      quantum = real("quantum");
      if (quantum && !(*quantum > 0))
        fault("quantum", "must be above 0; leave it out for a domain without a grid");
    }
    if (!low || !high || !quantum || *high < *low)
      return {};
    const double width = *high - *low;
    if (!std::isfinite(width))
      fault("is too wide: \"high\" - \"low\" overflows");
    else if (*quantum > 0 && *quantum > width)
      fault("quantum", "is larger than \"high\" - \"low\"");
    else if (*quantum > 0 && width / *quantum > 0x1p50)
      fault("quantum", "is too small for these bounds");
    return uniform_domain{*low, *high, *quantum};
  }

  domain log_uniform() {
    only({"low", "high"});
    const auto low = real("low"), high = real("high");
    ordered(low, high);
    positive(low);
    return low && high ? log_uniform_domain{*low, *high} : log_uniform_domain{};
  }

  domain integer() {
    only({"low", "high", "log"});
    const auto low = whole("low"), high = whole("high");
    ordered(low, high);
    const bool log = flag("log");
    if (log)
      positive(low);
    return low && high ? integer_domain{*low, *high, log} : integer_domain{};
  }

  domain choice() {
    only({"values", "ordered"});
    choice_domain out;
    out.ordered = flag("ordered");
    const auto values = j_.find("values");
    if (values == j_.end() || !values->is_array() || values->empty()) {
      fault("values", "must be an array of at least one value");
      return out;
    }
    const auto at = json_child(where_, "values");
    for (std::size_t i = 0; i < values->size(); ++i) {
      auto x = value_from_json((*values)[i], json_child(at, i));
      if (!x) {
        faults_.push_back(x.error());
        continue;
      }
      const auto* d = std::get_if<double>(&*x);
      if (d != nullptr && std::isnan(*d))
        faults_.push_back(
            {errc::invalid_argument, json_child(at, i) + ": NaN equals nothing and cannot be chosen"});
      else if (std::any_of(out.values.begin(), out.values.end(), [&](const value& v) { return same(v, *x); }))
        faults_.push_back(
            {errc::invalid_argument, json_child(at, i) + ": " + to_string(*x) + " is there twice"});
      else
        out.values.push_back(std::move(*x));
    }
    return out;
  }

  const json& j_;
  std::string where_;
  std::vector<error>& faults_;
};

} // namespace

std::optional<double> unit_of(const domain& d, const value& x) {
  const auto own = std::visit(contained{x}, d);
  return own ? std::optional{std::visit(located{*own}, d)} : std::nullopt;
}

value value_at(const domain& d, double unit) { return std::visit(placed{std::clamp(unit, 0.0, 1.0)}, d); }

std::variant<search_space, std::vector<error>> search_space::from_json(const json& j,
                                                                       std::string_view where) {
  std::vector<error> faults;
  search_space out;
  if (!j.is_object()) {
    faults.push_back({errc::invalid_argument, std::string{where} + ": must be an object of domains, but is " +
                                                  std::string{j.type_name()}});
    return faults;
  }
  for (const auto& [name, x] : j.items()) {
    if (name.empty())
      faults.push_back({errc::invalid_argument, std::string{where} + "/: a hyperparameter needs a name"});
    else if (auto d = parser{x, json_child(where, name), faults}.parse())
      out.domains_.emplace(name, std::move(*d));
  }
  if (!faults.empty())
    return faults;
  return out;
}

hyperparameters search_space::sample(random_stream& rng) const {
  hyperparameters out;
  for (const auto& [name, d] : domains_)
    out.set(name, std::visit(drawn{rng}, d));
  return out;
}

hyperparameters search_space::perturb(const hyperparameters& hp, const perturbation& how,
                                      random_stream& rng) const {
  if (!(how.factor > 1) || !std::isfinite(how.factor))
    throw std::invalid_argument("a perturbation's factor must be finite and above 1, but is " +
                                shown(how.factor));
  if (!(how.resample_probability >= 0 && how.resample_probability <= 1))
    throw std::invalid_argument("a resample probability must be from 0 to 1, but is " +
                                shown(how.resample_probability));
  hyperparameters out = hp;
  for (const auto& [name, d] : domains_) {
    const bool resample = rng.uniform() < how.resample_probability;
    const value* old = hp.find(name);
    const auto at = old == nullptr ? std::nullopt : std::visit(contained{*old}, d);
    out.set(name, resample || !at ? std::visit(drawn{rng}, d) : std::visit(moved{*at, how.factor, rng}, d));
  }
  return out;
}

std::vector<error> search_space::check(const hyperparameters& hp, std::string_view where) const {
  std::vector<error> out;
  for (const auto& [name, d] : domains_) {
    const value* x = hp.find(name);
    if (x != nullptr && !std::visit(contained{*x}, d))
      out.push_back({errc::invalid_argument, json_child(where, name) + ": is " + to_string(*x) +
                                                 ", but the search space allows only " +
                                                 std::visit(described{}, d)});
  }
  return out;
}

} // namespace troupe::core
