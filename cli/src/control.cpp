#include "control.hpp"

#include <array>
#include <chrono>
#include <future>

#include <nlohmann/json.hpp>

namespace troupe::cli {

using nlohmann::json;

namespace {

json refused(const std::string& text) { return {{"ok", false}, {"error", text}}; }

json to_json(const actors::acknowledgements& xs) {
  json list = json::array();
  for (auto& x : xs)
    list.push_back({{"trainer", x.trainer}, {"name", x.name}, {"step", x.step}});
  return {{"ok", true}, {"acknowledged", std::move(list)}};
}

constexpr std::array states{actors::trainer_state::starting,   actors::trainer_state::running,  actors::trainer_state::parked,
                            actors::trainer_state::held,       actors::trainer_state::paused,   actors::trainer_state::restarting,
                            actors::trainer_state::finished,   actors::trainer_state::stopped,  actors::trainer_state::failed,
                            actors::trainer_state::interrupted};

/// What is known of a slot whose process has answered: f(key, a reference to it), for one that is written and for one that is read.
template <class Slot, class F>
void each_counter(Slot& s, F f) {
  f("trainers", s.trainers);
  f("running", s.running);
  f("waiting", s.waiting);
  f("steps", s.steps);
  f("slices", s.slices);
  f("fused_steps", s.fused_steps);
  f("fused_slices", s.fused_slices);
  f("fused_members", s.fused_members);
  f("busy_seconds", s.busy_seconds);
  f("idle_seconds", s.idle_seconds);
  f("memory_used", s.memory_used);
  f("memory_peak", s.memory_peak);
  f("pinned_used", s.pinned_used);
  f("pinned_budget", s.pinned_budget);
  f("pages_out", s.pages_out);
  f("pages_in", s.pages_in);
  f("paged_bytes", s.paged_bytes);
  f("staged_bytes", s.staged_bytes);
  f("captures", s.captures);
  f("launches", s.launches);
}

json to_json(const actors::slot_info& s) {
  json x{{"slot", s.name},   {"node", s.node},   {"device", s.device},       {"device_id", s.device_id},
         {"model", s.model}, {"alive", s.alive}, {"answered", s.answered}, {"memory_budget", s.memory_budget}};
  if (s.answered)
    each_counter(s, [&x](const char* key, auto value) { x[key] = value; });
  if (!s.capture_fault.empty())
    x["capture_fault"] = s.capture_fault;
  return x;
}

actors::slot_info slot_from_json(const json& x) {
  actors::slot_info s;
  s.name = x.at("slot").get<std::string>();
  s.node = x.at("node").get<std::uint32_t>();
  s.device = x.at("device").get<std::string>();
  s.device_id = x.at("device_id").get<std::string>();
  s.model = x.at("model").get<std::string>();
  s.alive = x.at("alive").get<bool>();
  s.answered = x.at("answered").get<bool>();
  s.memory_budget = x.at("memory_budget").get<std::uint64_t>();
  if (!s.answered)
    return s;
  each_counter(s, [&x](const char* key, auto& to) { x.at(key).get_to(to); });
  s.capture_fault = x.value("capture_fault", std::string{});
  return s;
}

} // namespace

json status_to_json(const actors::run_status& s) {
  json out{{"experiment", s.experiment}, {"rounds", s.rounds}, {"dropped", s.dropped}, {"seconds", s.seconds},
           {"trainers", json::array()}, {"slots", json::array()}};
  if (s.open_round)
    out["open_sync_point"] = *s.open_round;
  for (auto& t : s.trainers) {
    json x{{"trainer", t.id},         {"name", t.name},         {"workload", t.workload_type}, {"state", std::string{to_string(t.state)}},
           {"incarnation", t.incarnation}, {"restarts", t.restarts}, {"step", t.step},        {"stop_step", t.stop_step},
           {"slot", t.slot},          {"hyperparameters", core::to_json(t.hp)}};
    if (t.newest)
      x["metadata"] = core::to_json(*t.newest);
    if (!t.failure.text.empty())
      x["failure"] = t.failure.text;
    if (!t.reason.empty())
      x["reason"] = t.reason;
    out["trainers"].push_back(std::move(x));
  }
  for (auto& x : s.slots)
    out["slots"].push_back(to_json(x));
  return out;
}

core::result<actors::run_status> status_from_json(const json& j) {
  try {
    actors::run_status s;
    s.experiment = j.at("experiment").get<std::string>();
    s.rounds = j.at("rounds").get<std::uint64_t>();
    s.dropped = j.at("dropped").get<std::uint64_t>();
    s.seconds = j.at("seconds").get<double>();
    if (auto i = j.find("open_sync_point"); i != j.end())
      s.open_round = i->get<core::sync_index>();
    for (auto& x : j.at("trainers")) {
      actors::trainer_info t;
      t.id = x.at("trainer").get<core::trainer_id>();
      t.name = x.at("name").get<std::string>();
      t.workload_type = x.at("workload").get<std::string>();
      for (auto state : states)
        if (x.at("state") == std::string{to_string(state)})
          t.state = state;
      t.incarnation = x.at("incarnation").get<std::uint32_t>();
      t.restarts = x.at("restarts").get<std::uint32_t>();
      t.step = x.at("step").get<std::uint64_t>();
      t.stop_step = x.at("stop_step").get<std::uint64_t>();
      t.slot = x.at("slot").get<std::string>();
      auto hp = core::hyperparameters_from_json(x.at("hyperparameters"), "/hyperparameters");
      if (!hp)
        return hp.error();
      t.hp = *std::move(hp);
      if (auto i = x.find("metadata"); i != x.end()) {
        auto m = core::metadata_from_json(*i, "/metadata");
        if (!m)
          return m.error();
        t.newest = *std::move(m);
      }
      if (auto i = x.find("failure"); i != x.end())
        t.failure = {core::errc::failed, i->get<std::string>()};
      if (auto i = x.find("reason"); i != x.end())
        t.reason = i->get<std::string>();
      s.trainers.push_back(std::move(t));
    }
    if (auto i = j.find("slots"); i != j.end()) // a run of an earlier version has none
      for (auto& x : *i)
        s.slots.push_back(slot_from_json(x));
    return s;
  } catch (const json::exception& e) {
    return core::error{core::errc::internal, std::string{"the run's answer is not understood: "} + e.what()};
  }
}

control_desk::control_desk(actors::run_control run) : run_(std::move(run)), thread_([this] { loop(); }) {}

control_desk::~control_desk() { finish(); }

void control_desk::finish() {
  if (!thread_.joinable())
    return;
  {
    std::lock_guard lock{mutex_};
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

template <class T, class F>
void control_desk::await(std::future<core::result<T>> future, answer reply, F as_json) {
  auto shared = std::make_shared<std::future<core::result<T>>>(std::move(future));
  auto poll = [shared, as_json]() -> std::optional<json> {
    if (shared->wait_for(std::chrono::seconds{0}) != std::future_status::ready)
      return std::nullopt;
    try {
      auto x = shared->get();
      return x ? as_json(*x) : refused(x.error().text);
    } catch (const std::future_error&) { // its promise was dropped
      return refused("the run is over");
    }
  };
  {
    std::lock_guard lock{mutex_};
    if (!stop_) {
      arrived_.push_back({std::move(poll), std::move(reply)});
      wake_.notify_one();
      return;
    }
  }
  reply(poll().value_or(refused("the run is over")));
}

void control_desk::handle(const json& request, answer reply) {
  auto text = [&](const char* key) {
    auto i = request.find(key);
    return i != request.end() && i->is_string() ? i->get<std::string>() : std::string{};
  };
  auto what = text("command"), who = text("trainer");
  auto acknowledged = [](const actors::acknowledgements& xs) { return to_json(xs); };
  if (what == "status") {
    await(run_.status(), std::move(reply), [](const actors::run_status& s) {
      auto out = status_to_json(s);
      out["ok"] = true;
      return out;
    });
  } else if (what == "pause") {
    await(run_.pause(who), std::move(reply), acknowledged);
  } else if (what == "resume") {
    await(run_.resume(who), std::move(reply), acknowledged);
  } else if (what == "stop") {
    await(run_.stop(who), std::move(reply), acknowledged);
  } else if (what == "push") {
    auto changes = core::hyperparameters_from_json(request.contains("changes") ? request["changes"] : json{}, "/changes");
    if (!changes)
      return reply(refused(changes.error().text));
    await(run_.push(who, *std::move(changes)), std::move(reply), acknowledged);
  } else if (what == "add") {
    await(run_.add_trainer(text("entry")), std::move(reply),
          [](core::trainer_id t) { return json{{"ok", true}, {"trainer", t}}; });
  } else {
    reply(refused("'" + what + "' is no command; known are status, pause, resume, push, stop, add"));
  }
}

void control_desk::loop() {
  std::vector<pending> waiting;
  for (;;) {
    {
      std::unique_lock lock{mutex_};
      auto due = [this] { return stop_ || !arrived_.empty(); };
      // Futures cannot wake anyone: while some are open they are looked at every other millisecond.
      if (waiting.empty())
        wake_.wait(lock, due);
      else
        wake_.wait_for(lock, std::chrono::milliseconds{2}, due);
      std::move(arrived_.begin(), arrived_.end(), std::back_inserter(waiting));
      arrived_.clear();
      if (stop_)
        break;
    }
    std::erase_if(waiting, [](pending& p) {
      auto x = p.poll();
      if (x)
        p.reply(*std::move(x));
      return x.has_value();
    });
  }
  for (auto& p : waiting)
    p.reply(p.poll().value_or(refused("the run is over")));
}

} // namespace troupe::cli
