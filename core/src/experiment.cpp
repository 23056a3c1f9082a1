#include "troupe/core/experiment.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>

#include <nlohmann/json.hpp>

#include "experiment_search.hpp"
#include "json_path.hpp"
#include "object_reader.hpp"
#include "troupe/core/random.hpp"
#include "troupe/core/suggest.hpp"

namespace troupe::core {

namespace {

using internal::fault_at;
using internal::grid;
using internal::json;
using internal::kind_of;
using internal::max_trainers;
using internal::object_reader;
using internal::read_search;
using internal::take_point;

constexpr std::uint64_t max_steps = std::uint64_t{1} << 53;
constexpr double max_seconds = 1e9;

/// Names become file and folder names and words of a command line. Empty: fine.
std::string name_fault(std::string_view name) {
  if (name.empty())
    return "must not be empty";
  if (name.size() > 64)
    return "'" + std::string{name.substr(0, 16)} + "…' is longer than 64 bytes";
  if (name.front() == '.' || name.front() == '-')
    return "'" + std::string{name} + "' must not begin with '.' or '-'";
  for (unsigned char c : name)
    if (c < 0x20 || c == 0x7F || c == '/' || c == '\\')
      return "must not contain '/', '\\' or control characters";
  return {};
}

/// What entries of "trainers" share.
struct trainer_defaults {
  json workload = json::object();
  hyperparameters hp;
  std::uint64_t stop_step = 0; ///< 0: none
  stop_rules stop;
};

/// Reads hyperparameters key by key, so that each fault has its own pointer.
hyperparameters read_hyperparameters(object_reader& in, std::string_view key, std::vector<error>& faults) {
  hyperparameters out;
  auto* j = in.raw(key);
  if (!j)
    return out;
  if (!j->is_object()) {
    in.fault(key, "must be an object of hyperparameters, but is " + std::string{kind_of(*j)});
    return out;
  }
  for (auto& [name, x] : j->items()) {
    auto where = json_child(in.pointer(key), name);
    if (name.empty())
      faults.push_back(fault_at(where, "a hyperparameter needs a name"));
    else if (auto parsed = value_from_json(x, where))
      out.set(name, *std::move(parsed));
    else
      faults.push_back(parsed.error());
  }
  return out;
}

json read_workload(object_reader& in, std::vector<error>& faults) {
  auto* j = in.raw("workload");
  if (!j)
    return json::object();
  if (j->is_object()) {
    if (auto type = j->find("type"); type != j->end() && !type->is_string()) {
      faults.push_back(fault_at(in.pointer("workload") + "/type", "must be a text, but is " + std::string{kind_of(*type)}));
      return json::object();
    }
    return *j;
  }
  in.fault("workload", "must be an object such as {\"type\": \"mlp\"}, but is " + std::string{kind_of(*j)});
  return json::object();
}

trainer_defaults read_defaults(const json& j, std::vector<error>& faults) {
  trainer_defaults out;
  object_reader in{j, "/defaults", faults};
  out.workload = read_workload(in, faults);
  out.hp = read_hyperparameters(in, "hyperparameters", faults);
  in.whole("stop_step", out.stop_step, 1, max_steps);
  if (auto* stop = in.raw("stop"))
    read_stop_rules(*stop, in.pointer("stop"), out.stop, faults);
  in.finish();
  return out;
}

/// True if trainers ever meet.
bool any_sync_points(const sync_schedule& x) { return x.every_steps > 0 || !x.at_steps.empty() || x.every_seconds > 0; }

constexpr std::string_view needs_sync_points =
    "is looked at at sync points, and /sync gives none: add every_steps, at_steps or every_seconds there";

/// Makes trainers of entries, one after the other.
class trainer_reader {
public:
  /// `meets`: there are sync points.
  trainer_reader(std::uint64_t seed, const search_space& space, const trainer_defaults& defaults,
                 const experiment_checkers& with, bool meets, std::vector<error>& faults, std::size_t first_number = 0)
      : seed_(seed), space_(space), defaults_(defaults), with_(with), meets_(meets), faults_(faults),
        first_number_(first_number) {}

  /// Appends the entry's trainers; a faulty entry's trainers keep what could be read, for the checks that follow.
  void read(const json& j, const std::string& where, bool allow_count, std::vector<trainer_spec>& into) {
    object_reader in{j, where, faults_};
    if (!in.is_object())
      return;
    trainer_spec base;
    base.where = where;
    base.name = "trainer";
    in.text("name", base.name);
    std::uint64_t count = 1;
    if (allow_count)
      in.whole("count", count, 1, max_trainers);
    bool counted = allow_count && in.has("count");
    auto faults_before = faults_.size();
    auto own_workload = read_workload(in, faults_);
    auto workload = merged(own_workload);
    base.hp = defaults_.hp;
    base.hp.update(read_hyperparameters(in, "hyperparameters", faults_));
    grid points;
    if (auto* search = allow_count ? in.raw("search") : nullptr) {
      if (counted)
        in.fault("search", "says how many trainers there are, so it cannot be combined with count");
      count = read_search(*search, in.pointer("search"), space_, base.hp, points, faults_);
      counted = true;
    }
    bool readable = faults_.size() == faults_before; // whatever else is wrong with the entry
    base.stop_step = defaults_.stop_step;
    in.whole("stop_step", base.stop_step, 1, max_steps);
    if (base.stop_step == 0 && !in.has("stop_step"))
      in.fault("stop_step", "is missing: give it here or in /defaults/stop_step");
    std::optional<std::uint64_t> seed;
    if (in.has("seed")) {
      seed = 0;
      in.whole("seed", *seed, 0, UINT64_MAX);
    }
    read_slot(in, base);
    read_priority(in, base);
    base.stop = defaults_.stop;
    if (auto* stop = in.raw("stop"))
      read_stop_rules(*stop, in.pointer("stop"), base.stop, faults_);
    check_stop(base.stop, j, where);
    in.finish();
    check_name(counted ? base.name + "-" + std::to_string(count - 1) : base.name, where);
    if (first_number_ + into.size() + count > max_trainers) {
      faults_.push_back(fault_at(where, "makes more than 1,000,000 trainers"));
      return;
    }
    bool known = resolve_type(workload, where);
    if (known)
      base.workload_type = workload["type"].get<std::string>();
    workload.erase("type");
    base.workload_options = workload.dump();
    faults_before = faults_.size();
    for (auto& e : space_.check(base.hp, json_child(where, "hyperparameters")))
      faults_.push_back(relocated(std::move(e), j, where));
    bool good = readable && faults_.size() == faults_before;

    for (std::uint64_t i = 0; i < count; ++i) {
      auto t = base;
      if (counted)
        t.name += "-" + std::to_string(i);
      t.seed = seed ? *seed + i : derive_seed(seed_, "trainer/" + t.name);
      take_point(points, i, t.hp);
      draw_missing(t.hp, first_number_ + into.size());
      auto [first, fresh] = names_.emplace(t.name, where);
      if (!fresh && faults_.size() < 1000)
        faults_.push_back(fault_at(json_child(where, "name"), "'" + t.name + "' is also the name of " + first->second));
      // Equal trainers have equal faults; drawn values may differ from one to the next.
      if (good && known && with_.check_workload && (i == 0 || !space_.empty() || !points.empty()) && faults_.size() < 1000)
        check_workload(t, workload, j, where);
      into.push_back(std::move(t));
    }
  }

  void take_name(const std::string& name, const std::string& owner) { names_.emplace(name, owner); }

  /// Draws what the search space has and `hp` has not; `index`: the trainer's number.
  void draw_missing(hyperparameters& hp, std::size_t index) const {
    if (space_.empty())
      return;
    random_stream rng{seed_, "initial", index};
    for (auto& [key, x] : space_.sample(rng))
      if (!hp.find(key))
        hp.set(key, x);
  }

private:
  json merged(const json& own) const {
    auto type = own.find("type");
    auto usual = defaults_.workload.find("type");
    if (type != own.end() && usual != defaults_.workload.end() && *type != *usual)
      return own; // options of another type of workload mean nothing here
    auto out = defaults_.workload;
    out.update(own);
    return out;
  }

  static void read_slot(object_reader& in, trainer_spec& into) {
    auto* j = in.raw("slot");
    if (!j)
      return;
    if (j->is_number()) {
      if (const auto n = in.whole_number(*j, in.pointer("slot"), 0, UINT32_MAX))
        into.slot = std::to_string(*n);
    } else if (j->is_string()) {
      into.slot = j->get<std::string>();
      if (into.slot.empty())
        in.fault("slot", "must not be empty: without it any slot will do");
    } else {
      in.fault("slot", "must be a slot's number or a device such as \"cuda:0\", but is " + std::string{kind_of(*j)});
    }
  }

  void read_priority(object_reader& in, trainer_spec& into) {
    auto* j = in.raw("priority");
    if (!j)
      return;
    if (!j->is_number_integer() || j->get<std::int64_t>() < -1000 || j->get<std::int64_t>() > 1000)
      in.fault("priority", "must be a whole number from -1000 to 1000");
    else
      into.priority = j->get<std::int32_t>();
  }

  void check_stop(const stop_rules& x, const json& entry, const std::string& where) {
    const auto check = [&](const char* key, bool given) {
      if (!given || meets_)
        return;
      const auto own = entry.find("stop");
      const bool is_own = own != entry.end() && own->contains(key);
      faults_.push_back(fault_at((is_own ? where : "/defaults") + "/stop/" + key, std::string{needs_sync_points}));
    };
    check("target", x.target.has_value());
    check("plateau", x.plateau.has_value());
  }

  void check_name(const std::string& name, const std::string& where) {
    if (auto fault = name_fault(name); !fault.empty())
      faults_.push_back(fault_at(json_child(where, "name"), fault));
  }

  bool resolve_type(const json& workload, const std::string& where) {
    auto names = with_.workload_names ? with_.workload_names() : std::vector<std::string>{};
    auto at = json_child(where, "workload");
    auto type = workload.find("type");
    if (type == workload.end()) {
      faults_.push_back(fault_at(json_child(at, "type"), "is missing" + suggestion("", names)));
      return false;
    }
    auto name = type->get<std::string>();
    if (!with_.known_workload || with_.known_workload(name))
      return true;
    faults_.push_back(fault_at(json_child(at, "type"), "'" + name + "' is no known workload" + suggestion(name, names)));
    return false;
  }

  void check_workload(const trainer_spec& t, const json& options, const json& entry, const std::string& where) {
    std::vector<error> found;
    with_.check_workload(t.workload_type, options, t.hp, where, found);
    for (auto& e : found)
      faults_.push_back(relocated(std::move(e), entry, where));
  }

  /// A fault in a value that the entry has from the defaults points there.
  error relocated(error e, const json& entry, const std::string& where) const {
    auto moved = [&](std::string_view part, const auto& has_default) {
      auto prefix = where + "/" + std::string{part} + "/";
      if (!e.text.starts_with(prefix))
        return false;
      auto end = e.text.find_first_of("/:", prefix.size());
      auto key = e.text.substr(prefix.size(), end == std::string::npos ? end : end - prefix.size());
      auto own = entry.find(part);
      if ((own != entry.end() && own->contains(key)) || !has_default(key))
        return false;
      e.text = "/defaults" + e.text.substr(where.size());
      return true;
    };
    moved("workload", [&](auto& key) { return defaults_.workload.contains(key); }) ||
        moved("hyperparameters", [&](auto& key) { return defaults_.hp.find(key) != nullptr; });
    return e;
  }

  std::uint64_t seed_;
  const search_space& space_;
  const trainer_defaults& defaults_;
  const experiment_checkers& with_;
  bool meets_;
  std::vector<error>& faults_;
  std::size_t first_number_;
  std::unordered_map<std::string, std::string> names_;
};

/// Steps that grow by a factor, as rungs do; they join those of "at_steps".
void read_geometric(const json& j, const std::string& where, sync_schedule& into, std::vector<error>& faults) {
  object_reader in{j, where, faults};
  std::uint64_t first = 0, factor = 3, count = 64;
  in.whole("first", first, 1, max_steps);
  if (in.is_object() && !in.has("first"))
    in.fault("first", "is missing: the step of the first sync point");
  in.whole("factor", factor, 2, 1'000'000);
  in.whole("count", count, 1, 64);
  in.finish();
  for (auto step = first; first > 0 && count > 0; step *= factor, --count) {
    into.at_steps.push_back(step);
    if (step > max_steps / factor)
      break;
  }
  std::ranges::sort(into.at_steps);
  const auto repeated = std::ranges::unique(into.at_steps);
  into.at_steps.erase(repeated.begin(), repeated.end());
}

void read_sync(const json& j, sync_options& into, std::vector<error>& faults) {
  object_reader in{j, "/sync", faults};
  auto& schedule = into.schedule;
  in.whole("every_steps", schedule.every_steps, 1, max_steps);
  if (auto* list = in.raw("at_steps")) {
    if (!list->is_array())
      in.fault("at_steps", "must be a list of steps, but is " + std::string{kind_of(*list)});
    else
      for (std::size_t i = 0; i < list->size(); ++i) {
        auto where = json_child(in.pointer("at_steps"), i);
        auto step = in.whole_number((*list)[i], where, 1, max_steps);
        if (step && !schedule.at_steps.empty() && *step <= schedule.at_steps.back())
          faults.push_back(fault_at(where, std::to_string(*step) + " does not come after " +
                                               std::to_string(schedule.at_steps.back())));
        else if (step)
          schedule.at_steps.push_back(*step);
      }
  }
  in.real("every_seconds", schedule.every_seconds, 0, max_seconds, true);
  if (auto* j = in.raw("geometric"))
    read_geometric(*j, in.pointer("geometric"), schedule, faults);
  if (schedule.every_seconds > 0 && (in.has("geometric") || in.has("every_steps") || in.has("at_steps")))
    in.fault("every_seconds", "cannot be combined with every_steps, at_steps or geometric");
  in.boolean("asynchronous", into.asynchronous);
  in.real("quorum", into.quorum, 0, 1, true);
  in.real("deadline_seconds", into.deadline_seconds, 0, max_seconds);
  std::string stragglers{to_string(into.stragglers)};
  in.text("stragglers", stragglers);
  constexpr std::array treatments{straggler_treatment::wait, straggler_treatment::go_on_without, straggler_treatment::stop};
  std::vector<std::string> names;
  bool known = false;
  for (auto t : treatments) {
    names.emplace_back(to_string(t));
    if (stragglers == names.back()) {
      into.stragglers = t;
      known = true;
    }
  }
  if (!known)
    in.fault("stragglers", "'" + stragglers + "' is no known treatment" + suggestion(stragglers, names));
  else if (into.stragglers != straggler_treatment::wait && into.quorum == 1 && into.deadline_seconds == 0)
    in.fault("stragglers", "has no effect without a quorum below 1 or deadline_seconds, because nobody is ever late");
  if (into.asynchronous && (into.quorum < 1 || into.deadline_seconds > 0))
    in.fault("asynchronous", "does not wait for anyone, so quorum and deadline_seconds have no effect");
  in.finish();
}

void read_slots(const json& j, std::vector<slot_request>& into, std::vector<error>& faults) {
  if (!j.is_array()) {
    faults.push_back(fault_at("/slots", "must be a list, but is " + std::string{kind_of(j)}));
    return;
  }
  std::unordered_map<std::string, std::uint64_t> shares;
  for (std::size_t i = 0; i < j.size(); ++i) {
    auto where = json_child("/slots", i);
    object_reader in{j[i], where, faults};
    slot_request r;
    in.text("device", r.device);
    if (r.device.empty())
      in.fault("device", "must not be empty; write \"cpu\", \"cuda\", \"cuda:1\" or a GPU's UUID");
    in.whole("count", r.count, 1, 4096);
    in.whole("milli_share", r.milli_share, 1, 1000);
    in.whole("memory_bytes", r.memory_bytes, 1, max_steps);
    in.whole("pinned_bytes", r.pinned_bytes, 1, max_steps);
    in.boolean("capture", r.capture);
    in.finish();
    auto& share = shares[r.device] += std::uint64_t{r.milli_share} * r.count;
    if (share > 1000)
      in.fault("milli_share", "makes the slots of '" + r.device + "' take " + std::to_string(share) +
                                  " thousandths of the device; it has 1000");
    into.push_back(std::move(r));
  }
}

void read_policy(const json& j, const experiment_checkers& with, experiment& into, bool can_check, std::vector<error>& faults) {
  if (!j.is_object()) {
    faults.push_back(fault_at("/policy", "must be an object such as {\"type\": \"pbt\"}, but is " + std::string{kind_of(j)}));
    return;
  }
  auto names = with.policies ? with.policies->names() : std::vector<std::string>{};
  auto type = j.find("type");
  if (type == j.end() || !type->is_string()) {
    faults.push_back(fault_at("/policy/type", (type == j.end() ? "is missing" : "must be a text") + suggestion("", names)));
    return;
  }
  into.policy_type = type->get<std::string>();
  auto options = j;
  options.erase("type");
  into.policy_options = options.dump();
  if (!with.policies)
    return;
  if (std::ranges::find(names, into.policy_type) == names.end()) {
    faults.push_back(fault_at("/policy/type",
                              "'" + into.policy_type + "' is no known policy" + suggestion(into.policy_type, names)));
    return;
  }
  std::vector<std::string> trainers;
  trainers.reserve(into.trainers.size());
  for (auto& t : into.trainers)
    trainers.push_back(t.name);
  std::unique_ptr<policy> made;
  if (can_check)
    made = with.policies->make(into.policy_type, options, into.space, trainers, "/policy", faults);
  if (made)
    made->check(into, faults);
  if (into.policy_type != "none" && !any_sync_points(into.sync.schedule))
    faults.push_back(fault_at("/policy", "'" + into.policy_type +
                                             "' decides at sync points, and /sync gives none: add every_steps, at_steps, "
                                             "geometric or every_seconds there"));
}

/// Keeps the first of equal faults: one wrong default is a fault of every trainer.
void drop_repeated(std::vector<error>& faults) {
  std::set<std::string, std::less<>> seen;
  std::erase_if(faults, [&](const error& e) { return !seen.insert(e.text).second; });
}

} // namespace

std::variant<experiment, std::vector<error>> parse_experiment(std::string_view text, const experiment_checkers& with) {
  std::vector<error> faults;
  auto document = internal::parse_document(text, faults);
  if (!document)
    return faults;
  experiment out;
  out.name = "experiment";
  out.text = text;
  object_reader in{*document, "", faults};
  if (!in.is_object())
    return faults;

  in.text("name", out.name);
  if (auto fault = name_fault(out.name); !fault.empty())
    in.fault("name", fault);
  in.whole("seed", out.seed, 0, UINT64_MAX);
  trainer_defaults defaults;
  if (auto* j = in.raw("defaults"))
    defaults = read_defaults(*j, faults);
  bool space_known = true;
  if (auto* j = in.raw("search_space")) {
    auto space = search_space::from_json(*j, "/search_space");
    if (auto* good = std::get_if<search_space>(&space))
      out.space = std::move(*good);
    else {
      space_known = false;
      std::ranges::move(std::get<std::vector<error>>(space), std::back_inserter(faults));
    }
  }
  const auto faults_before_sync = faults.size();
  if (auto* j = in.raw("sync"))
    read_sync(*j, out.sync, faults);
  const bool meets = any_sync_points(out.sync.schedule) || faults.size() > faults_before_sync;

  auto* trainers = in.raw("trainers");
  if (!trainers)
    in.fault("trainers", "is missing: an experiment needs at least one trainer");
  else if (!trainers->is_array() || trainers->empty())
    in.fault("trainers", "must be a list of at least one trainer");
  else {
    trainer_reader reader{out.seed, out.space, defaults, with, meets, faults};
    for (std::size_t i = 0; i < trainers->size(); ++i)
      reader.read((*trainers)[i], json_child("/trainers", i), true, out.trainers);
  }

  if (auto* j = in.raw("checkpoints")) {
    object_reader part{*j, "/checkpoints", faults};
    part.whole("every_syncs", out.checkpoints.every_syncs, 0, 1'000'000'000);
    part.real("every_seconds", out.checkpoints.every_seconds, 0, 1e9);
    part.whole("keep", out.checkpoints.keep, 1, 1'000'000);
    part.finish();
  }
  if (auto* j = in.raw("record")) {
    object_reader part{*j, "/record", faults};
    part.whole("max_unwritten", out.record.max_unwritten, 1, 1'000'000'000);
    part.whole("max_unwritten_bytes", out.record.max_unwritten_bytes, 1, UINT64_MAX);
    part.finish();
  }
  if (auto* j = in.raw("failures")) {
    object_reader part{*j, "/failures", faults};
    part.whole("max_restarts", out.failures.max_restarts, 0, 1'000'000);
    part.boolean("fail_fast", out.failures.fail_fast);
    part.boolean("refill", out.failures.refill);
    part.finish();
  }
  if (auto* j = in.raw("stop")) {
    read_run_stop_rules(*j, "/stop", out.stop, faults);
    if (out.stop.target && !meets)
      faults.push_back(fault_at("/stop/target", std::string{needs_sync_points}));
    if (out.stop.steps > 0 && !meets)
      faults.push_back(fault_at("/stop/steps", std::string{needs_sync_points}));
  }
  if (auto* j = in.raw("policy")) // it may have conditions to the whole
    read_policy(*j, with, out, space_known && !out.trainers.empty(), faults);
  if (auto* j = in.raw("slots"))
    read_slots(*j, out.slots, faults);
  in.real("quantum_ms", out.quantum_ms, 0, 10'000, true);
  in.boolean("fusion", out.fusion);
  in.boolean("rebalance", out.rebalance);
  in.text("math", out.math);
  if (out.math != "fp32" && out.math != "tf32")
    in.fault("math", "'" + out.math + "' is no known mode; known are fp32, tf32");
  in.finish();
  drop_repeated(faults);
  if (!faults.empty())
    return faults;
  return out;
}

std::vector<error> document_faults(std::string_view text) {
  std::vector<error> faults;
  (void)internal::parse_document(text, faults);
  return faults;
}

std::variant<trainer_spec, std::vector<error>> parse_trainer(std::string_view text, const experiment& of,
                                                             const experiment_checkers& with) {
  std::vector<error> faults;
  auto document = internal::parse_document(text, faults);
  if (!document)
    return faults;
  trainer_defaults defaults;
  std::vector<error> known_faults; // of the experiment, which was accepted
  if (auto whole = internal::parse_document(of.text, known_faults); whole && whole->is_object())
    if (auto j = whole->find("defaults"); j != whole->end())
      defaults = read_defaults(*j, known_faults);
  trainer_reader reader{of.seed,     of.space, defaults, with, any_sync_points(of.sync.schedule), faults,
                        of.trainers.size()};
  for (std::size_t i = 0; i < of.trainers.size(); ++i)
    reader.take_name(of.trainers[i].name, "trainer " + std::to_string(i));
  std::vector<trainer_spec> trainers;
  reader.read(*document, "", false, trainers);
  drop_repeated(faults);
  if (!faults.empty())
    return faults;
  return std::move(trainers.back());
}

} // namespace troupe::core
