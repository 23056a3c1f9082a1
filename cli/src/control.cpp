#include "control.hpp"

#include <array>
#include <chrono>
#include <future>

#include <nlohmann/json.hpp>

#include "arguments.hpp"
#include "troupe/actors/slot_json.hpp"

namespace troupe::cli {

using nlohmann::json;

namespace {

json refused(const core::error& e) { return {{"ok", false}, {"error", e.text}, {"code", std::string{to_string(e.code)}}}; }
json refused(const std::string& text) { return refused(core::error{core::errc::refused, text}); }

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

} // namespace

json record_to_json(const actors::record_info& x) {
  return {{"unwritten", x.unwritten},
          {"unwritten_bytes", x.unwritten_bytes},
          {"most_unwritten", x.most_unwritten},
          {"held_back", x.held_back},
          {"held_back_seconds", x.held_back_seconds}};
}

json status_to_json(const actors::run_status& s) {
  json out{{"experiment", s.experiment}, {"rounds", s.rounds}, {"dropped", s.dropped}, {"seconds", s.seconds},
           {"trainers", json::array()}, {"slots", json::array()}, {"record", record_to_json(s.record)}};
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
    out["slots"].push_back(actors::to_json(x));
  return out;
}

int status_of_refusal(core::errc code) {
  return code == core::errc::invalid_argument || code == core::errc::not_found ? exit_wrong_use : exit_failed;
}

int status_of_refusal(const json& answer) {
  const auto code = answer.value("code", std::string{});
  for (auto wrong : {core::errc::invalid_argument, core::errc::not_found})
    if (code == to_string(wrong))
      return exit_wrong_use;
  return exit_failed;
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
        s.slots.push_back(actors::slot_from_json(x));
    if (auto i = j.find("record"); i != j.end()) {
      i->at("unwritten").get_to(s.record.unwritten);
      i->at("unwritten_bytes").get_to(s.record.unwritten_bytes);
      i->at("most_unwritten").get_to(s.record.most_unwritten);
      i->at("held_back").get_to(s.record.held_back);
      i->at("held_back_seconds").get_to(s.record.held_back_seconds);
    }
    return s;
  } catch (const json::exception& e) {
    return core::error{core::errc::internal, std::string{"the run's answer is not understood: "} + e.what()};
  }
}

control_desk::control_desk(actors::run_control run, entry_check check)
    : run_(std::move(run)), check_entry_(std::move(check)), thread_([this] { loop(); }) {}

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
      return x ? as_json(*x) : refused(x.error());
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
      return reply(refused(changes.error()));
    await(run_.push(who, *std::move(changes)), std::move(reply), acknowledged);
  } else if (what == "add") {
    if (auto ok = check_entry_ ? check_entry_(text("entry")) : core::result<void>{}; !ok)
      return reply(refused(ok.error()));
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
