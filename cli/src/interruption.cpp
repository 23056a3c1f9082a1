#include "interruption.hpp"

#include <csignal>
#include <cstdlib>

#include "signals.hpp"

namespace troupe::cli {

leave_rule::answer leave_rule::on_signal(int number, time_point now) {
  constexpr std::chrono::milliseconds same_wish{500};
  if (!first_) {
    first_ = now;
    return answer::save;
  }
  return number == SIGINT && now - *first_ >= same_wish ? answer::leave : answer::nothing;
}

namespace {

std::string_view text_of(int number) {
  switch (number) {
  case SIGTERM: return "SIGTERM: finishing the step at hand and saving; Ctrl-C to leave at once\n";
  case SIGHUP: return "SIGHUP: finishing the step at hand and saving; Ctrl-C to leave at once\n";
  default: return "finishing the step at hand and saving; again to leave at once\n";
  }
}

} // namespace

interruption::~interruption() {
  if (saying_.joinable())
    saying_.join();
}

void interruption::on_signal(int number) {
  if (number == SIGTSTP)
    return suspend();
  const auto what = rule_.on_signal(number, leave_rule::time_point::clock::now());
  if (what == leave_rule::answer::leave)
    std::_Exit(130); // as the shell reports death by Ctrl-C; nothing may hold this up
  if (what == leave_rule::answer::nothing)
    return;
  std::lock_guard lock{mutex_};
  asked_ = true;
  if (run_)
    run_->interrupt();
  saying_ = std::thread([this, number] { say_(text_of(number)); }); // a screen that nobody reads holds up its writers
}

void interruption::begin(actors::run_control run) {
  std::lock_guard lock{mutex_};
  if (asked_)
    run.interrupt();
  run_ = std::move(run);
}

void interruption::lead(net::cluster_head* cluster) {
  std::lock_guard lock{mutex_};
  cluster_ = cluster;
}

void interruption::suspend() {
  std::lock_guard lock{mutex_};
  if (cluster_)
    cluster_->suspend();
  stop_here();
  if (cluster_)
    cluster_->resume();
}

} // namespace troupe::cli
