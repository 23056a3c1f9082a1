#include "troupe/gpu/basic_workload.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <stdexcept>
#include <utility>

#include "option_reader.hpp"
#include "troupe/gpu/slot_worker.hpp"

namespace troupe::gpu {

namespace {

/// All that is wrong with a configuration, each fault with its place.
class configuration_error final : public std::invalid_argument {
public:
  explicit configuration_error(std::vector<std::string> faults) : std::invalid_argument(joined(faults)), faults(std::move(faults)) {}
  std::vector<std::string> faults;

private:
  static std::string joined(const std::vector<std::string>& faults) {
    std::string out;
    for (const auto& f : faults)
      out += (out.empty() ? "" : "; ") + f;
    return out;
  }
};

} // namespace

basic_workload::basic_workload(std::string kind, const workload_config& cfg)
  : kind_(std::move(kind)), seed_(cfg.seed), initial_(cfg.hp), options_(cfg.options) {
}

template <class Read>
auto basic_workload::read_option(std::string_view name, Read read) {
  static const auto none = nlohmann::json::object();
  std::vector<core::error> faults;
  internal::option_reader in(options_ != nullptr ? *options_ : none, "/workload", faults);
  auto x = read(in);
  for (auto& f : faults)
    faults_.push_back(std::move(f.text));
  known_options_.emplace_back(name);
  return x;
}

std::int64_t basic_workload::integer_option(std::string_view name, std::int64_t fallback, std::int64_t low,
                                            std::int64_t high) {
  return read_option(name, [&](auto& in) { return in.integer(name, fallback, low, high); });
}
double basic_workload::number_option(std::string_view name, double fallback, double low, double high) {
  return read_option(name, [&](auto& in) { return in.number(name, fallback, low, high); });
}
std::string basic_workload::text_option(std::string_view name, std::string_view fallback) {
  return read_option(name, [&](auto& in) { return in.text(name, fallback); });
}
bool basic_workload::flag_option(std::string_view name, bool fallback) {
  return read_option(name, [&](auto& in) { return in.boolean(name, fallback); });
}
const nlohmann::json* basic_workload::json_option(std::string_view name) {
  return read_option(name, [&](auto& in) { return in.raw(name); });
}

std::size_t basic_workload::entry::count() const {
  return host != nullptr ? host->size() : device->size() / sizeof(float);
}

void basic_workload::add(std::string name, std::vector<float>* host, buffer* device, std::vector<std::int64_t> shape) {
  entry e{std::move(name), std::move(shape), host, device};
  if (e.shape.empty())
    e.shape = {static_cast<std::int64_t>(e.count())};
  std::int64_t product = 1;
  for (auto n : e.shape)
    product *= n;
  if (product != static_cast<std::int64_t>(e.count()))
    throw std::invalid_argument(kind_ + ": the shape of " + e.name + " does not fit its " + std::to_string(e.count())
                                + " numbers");
  tensors_.push_back(std::move(e));
}

void basic_workload::weights(std::string_view name, std::vector<float>& values, std::vector<std::int64_t> shape) {
  add("weights." + std::string(name), &values, nullptr, std::move(shape));
}
void basic_workload::weights(std::string_view name, buffer& values, std::vector<std::int64_t> shape) {
  add("weights." + std::string(name), nullptr, &values, std::move(shape));
}
void basic_workload::state(std::string_view name, std::vector<float>& values, std::vector<std::int64_t> shape) {
  add("state." + std::string(name), &values, nullptr, std::move(shape));
}
void basic_workload::state(std::string_view name, buffer& values, std::vector<std::int64_t> shape) {
  add("state." + std::string(name), nullptr, &values, std::move(shape));
}

void basic_workload::counter(std::string_view name, std::uint64_t& value) {
  counters_.push_back({"counters." + std::string(name), &value});
}

void basic_workload::tunable(std::string_view name, double& value, double low, double high) {
  tunables_.push_back({std::string(name), &value, low, high});
  const auto* given = initial_.find(name);
  if (given == nullptr || std::holds_alternative<std::monostate>(*given))
    return;
  if (auto fault = fault_of(name, *given); !fault.empty())
    faults_.push_back("/hyperparameters/" + fault);
  else
    value = *core::as_number(*given);
}

const basic_workload::tunable_entry* basic_workload::find(std::string_view name) const {
  for (const auto& t : tunables_)
    if (t.name == name)
      return &t;
  return nullptr;
}

std::string basic_workload::fault_of(std::string_view key, const core::value& x) const {
  const auto* t = find(key);
  if (t == nullptr) {
    std::string list;
    for (const auto& known : tunables_)
      list += (list.empty() ? "" : ", ") + known.name;
    return std::string(key) + ": is no hyperparameter of " + kind_ + "; known are " + (list.empty() ? "none" : list);
  }
  const auto n = core::as_number(x);
  if (n && *n >= t->low && *n <= t->high)
    return {};
  return t->name + ": must be a number from " + internal::bound_text(t->low) + " to "
         + internal::bound_text(t->high) + ", not " + core::to_string(x);
}

workload_registry::checker basic_workload::trial_of(workload_registry::factory make) {
  return [make = std::move(make)](const nlohmann::json& options, const core::hyperparameters& hp, std::string_view where,
                                  std::vector<core::error>& faults) {
    workload_config cfg;
    cfg.options = &options;
    cfg.hp = hp;
    try {
      context ctx{slot_options{}};
      make(ctx, cfg);
    } catch (const configuration_error& e) {
      for (const auto& f : e.faults)
        faults.push_back({core::errc::invalid_argument, std::string(where) + f});
    } catch (...) {
      auto e = current_error();
      const bool placed = e.text.starts_with("/workload/") || e.text.starts_with("/hyperparameters/");
      faults.push_back({core::errc::invalid_argument, std::string(where) + (placed ? "" : "/workload: ") + e.text});
    }
  };
}

void basic_workload::refuse_unknown(const workload_config& cfg) {
  if (const auto* given = std::exchange(options_, nullptr))
    for (const auto& [key, x] : given->items())
      if (std::find(known_options_.begin(), known_options_.end(), key) == known_options_.end()) {
        std::string list;
        for (const auto& known : known_options_)
          list += (list.empty() ? "" : ", ") + known;
        faults_.push_back("/workload/" + internal::pointer_token(key) + ": is no option of " + kind_
                          + (list.empty() ? "; it has none" : "; known are " + list));
      }
  for (const auto& [key, x] : cfg.hp)
    if (find(key) == nullptr)
      faults_.push_back("/hyperparameters/" + fault_of(key, x));
  refuse_faults();
}

void basic_workload::refuse_faults() const {
  if (!faults_.empty())
    throw configuration_error(faults_);
}

core::result<void> basic_workload::check(const core::hyperparameters& changes) const {
  std::string text;
  for (const auto& [key, x] : changes)
    if (auto fault = fault_of(key, x); !fault.empty())
      text += (text.empty() ? "" : "; ") + fault;
  if (!text.empty())
    return core::error{core::errc::invalid_argument, std::move(text)};
  return {};
}

void basic_workload::set(context&, const core::hyperparameters& changes) {
  if (auto ok = check(changes); !ok)
    throw std::invalid_argument(ok.error().text);
  for (const auto& [key, x] : changes)
    *find(key)->value = *core::as_number(x);
}

void basic_workload::save(context& ctx, core::checkpoint& out) {
  for (const auto& e : tensors_) {
    std::vector<float> copy;
    if (e.device != nullptr) {
      copy.resize(e.count());
      ctx.download(copy.data(), e.device->data(), copy.size() * sizeof(float));
    }
    out.add(e.name, core::dtype::f32, e.shape, std::span<const float>(e.host != nullptr ? *e.host : copy));
  }
  for (const auto& c : counters_) {
    const std::array<std::uint64_t, 1> value{*c.value};
    out.add(c.name, core::dtype::u64, {1}, std::span<const std::uint64_t>(value));
  }
}

void basic_workload::load(context& ctx, const core::checkpoint& in, load_mode mode) {
  constexpr std::array<std::int64_t, 1> one{1};
  auto require = [&](const std::string& name, core::dtype type, std::span<const std::int64_t> shape) {
    if (auto t = in.expect(name, type, shape); !t)
      throw std::invalid_argument(t.error().text);
  };
  for (const auto& e : tensors_)
    require(e.name, core::dtype::f32, e.shape);
  const bool everything = mode == load_mode::everything;
  if (everything)
    for (const auto& c : counters_)
      require(c.name, core::dtype::u64, one);

  for (const auto& e : tensors_) {
    const auto values = in.find(e.name)->as<float>();
    if (e.host != nullptr)
      e.host->assign(values.begin(), values.end());
    else
      ctx.upload(e.device->data(), values);
  }
  if (everything)
    for (const auto& c : counters_)
      *c.value = in.find(c.name)->as<std::uint64_t>().front();
}

std::string basic_workload::signature() const {
  refuse_faults(); // of one that no `factory` made: nobody trains with what was refused
  auto out = kind_;
  for (const auto& e : tensors_) {
    out += " " + e.name;
    for (std::size_t i = 0; i < e.shape.size(); ++i)
      out += (i == 0 ? " " : "x") + std::to_string(e.shape[i]);
  }
  return out;
}

std::uint64_t basic_workload::memory_bytes() const {
  std::uint64_t sum = 0;
  for (const auto& e : tensors_)
    sum += e.count() * sizeof(float);
  return sum;
}

} // namespace troupe::gpu
