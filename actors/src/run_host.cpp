#include "run_host.hpp"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

namespace troupe::actors::internal {

namespace {
/// Of the listener: progress is left out while it has so much to do.
constexpr std::size_t busy_listener = 16;
} // namespace

void run_host::tell(std::function<void(run_listener&)> what) {
  if (const auto l = options.listener)
    listening->post([l, what = std::move(what)] { what(*l); });
}

void run_host::tell_missed() {
  const auto sync_points = std::exchange(missed_sync_points_, 0), events = std::exchange(missed_events_, 0);
  if (sync_points + events > 0)
    tell([sync_points, events](run_listener& l) { l.on_missed(sync_points, events); });
}

/// Once it misses some, it goes on when half of the queue is gone: else it would miss every other one.
void run_host::tell_unless_behind(std::uint64_t weight, std::uint64_t& missed, std::function<void(run_listener&)> what) {
  if (!options.listener)
    return;
  const std::lock_guard lock(listener_mutex_);
  const bool missing = missed_sync_points_ + missed_events_ > 0;
  if (listener_waits_ >= std::max<std::uint64_t>(missing ? options.listener_backlog / 2 : options.listener_backlog, 1)) {
    ++missed;
    return;
  }
  tell_missed();
  listener_waits_ += weight;
  tell([this, weight, what = std::move(what)](run_listener& l) {
    what(l);
    const std::lock_guard told(listener_mutex_);
    listener_waits_ -= weight;
  });
}

void run_host::tell_sync_point(std::shared_ptr<const sync_point_event> x) {
  const auto weight = std::max<std::uint64_t>(x->reports.size(), 1);
  tell_unless_behind(weight, missed_sync_points_, [x = std::move(x)](run_listener& l) { l.on_sync_point(*x); });
}

void run_host::tell_event(const std::string& kind, const nlohmann::json& details) {
  tell_unless_behind(1, missed_events_, [kind, details](run_listener& l) { l.on_event(kind, details); });
}

void run_host::tell_finished(const run_summary& x) {
  const std::lock_guard lock(listener_mutex_);
  tell_missed();
  tell([x](run_listener& l) { l.on_finished(x); });
}

void run_host::tell_progress(run_status x) {
  if (options.listener && listening->waiting() < busy_listener)
    tell([x = std::move(x)](run_listener& l) { l.on_progress(x); });
}

state_ref run_host::put(core::checkpoint_ptr x) const { return blobs->put(std::move(x)); }

void run_host::fetch(const state_ref& x, std::function<void(core::result<core::checkpoint_ptr>)> then) const {
  if (x.node == 0) {
    if (auto state = blobs->get(x.blob))
      then(std::move(state));
    else
      then(core::error{core::errc::not_found, "state " + std::to_string(x.blob) + " was dropped"});
    return;
  }
  if (!options.fetch || x.host.empty()) {
    then(core::error{core::errc::refused, "the state lies on node " + std::to_string(x.node) +
                                              ", to which there is no tensor transport"});
    return;
  }
  options.fetch({x.host, x.port, x.blob, x.bytes, x.hash}, std::move(then));
}

} // namespace troupe::actors::internal
