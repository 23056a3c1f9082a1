#include "search.hpp"

#include <chrono>
#include <cmath>
#include <deque>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

using namespace troupe::actors;

namespace svm_search {

double draw_result::score() const {
  return std::accumulate(folds.begin(), folds.end(), 0.0) / static_cast<double>(folds.size());
}

const draw_result* search_result::best() const {
  const draw_result* out = nullptr;
  for (const auto& d : draws)
    if (const auto s = d.score(); !std::isnan(s) && (!out || s > out->score()))
      out = &d;
  return out;
}

// The handlers run on the slot's thread, one after the other. What they throw answers the request as an
// error.
worker spawn_worker(caf::actor_system& system, const gpu_place& at, std::shared_ptr<const problem> what) {
  return spawn_gpu<worker>(
      system, at, {},
      [what](gpu_call&, const kernel_job& m) -> kernel_made { return {what->make_kernel(m.with.gamma)}; },
      [what](gpu_call&, const fold_job& m) -> wire_real {
        return what->score(m.with, m.fold, m.kernel.get());
      });
}

namespace {

/// A fold can take minutes, if tol is small and C large. An answer that never comes is a failed fold all the
/// same.
constexpr auto patience = std::chrono::minutes{360};

struct waiting_fold {
  std::size_t draw = 0;
  int fold = 0;
  kernel_ptr kernel;
};

struct searcher_state {
  search_options options;
  std::vector<worker> idle;
  std::size_t workers = 0;

  std::size_t next_draw = 0;
  std::deque<waiting_fold> folds; ///< of draws that have begun
  std::size_t over = 0;           ///< draws
  search_result found;
  std::optional<promise<search_result>> answer;
  static constexpr const char* name = "searcher";
};
using pointer = searcher::stateful_pointer<searcher_state>;

void hand_out(pointer self);

void fold_over(pointer self, std::size_t draw, int fold, double accuracy, std::string failure) {
  auto& st = state(self);
  auto& d = st.found.draws[draw];
  d.folds[static_cast<std::size_t>(fold)] = accuracy;
  if (d.failure.empty())
    d.failure = std::move(failure);
  if (--d.open > 0)
    return;
  ++st.over;
  if (st.options.on_draw)
    st.options.on_draw(st.found, draw);
}

/// `who` has nothing to do now.
void free_again(pointer self, const worker& who) {
  state(self).idle.push_back(who);
  hand_out(self);
}

void begin_folds(pointer self, std::size_t draw, const kernel_ptr& kernel) {
  for (int f = 0; f < state(self).options.folds; ++f)
    state(self).folds.push_back({draw, f, kernel});
}

void ask_for_kernel(pointer self, const worker& who, std::size_t draw) {
  mail(self, kernel_job{state(self).found.draws[draw].with})
      .request(who, patience)
      .then(
          [=](const kernel_made& m) {
            if (!state(self).found.stopped)
              begin_folds(self, draw, m.kernel);
            free_again(self, who);
          },
          [=](const caf::error& e) { // such as too little memory: this draw is lost, the others are not
            for (int f = 0; f < state(self).options.folds; ++f)
              fold_over(self, draw, f, std::numeric_limits<double>::quiet_NaN(), error_text(e));
            free_again(self, who);
          });
}

void ask_for_fold(pointer self, const worker& who, const waiting_fold& x) {
  mail(self, fold_job{state(self).found.draws[x.draw].with, x.fold, x.kernel})
      .request(who, patience)
      .then(
          [=, draw = x.draw, fold = x.fold](const wire_real& accuracy) {
            fold_over(self, draw, fold, accuracy, {});
            free_again(self, who);
          },
          [=, draw = x.draw, fold = x.fold](const caf::error& e) {
            fold_over(self, draw, fold, std::numeric_limits<double>::quiet_NaN(), error_text(e));
            free_again(self, who);
          });
}

/// Gives every idle worker something to do. Folds of draws that have begun come first, so that there are
/// never more kernels in memory than slots. Answers when nothing is left.
void hand_out(pointer self) {
  auto& st = state(self);
  while (!st.idle.empty()) {
    if (!st.folds.empty()) {
      const auto fold = std::move(st.folds.front());
      st.folds.pop_front();
      const auto who = std::move(st.idle.back());
      st.idle.pop_back();
      ask_for_fold(self, who, fold);
    } else if (st.next_draw < st.options.draws.size() && !st.found.stopped) {
      const auto draw = st.next_draw++;
      if (!st.options.share_kernels) {
        begin_folds(self, draw, nullptr);
        continue;
      }
      const auto who = std::move(st.idle.back());
      st.idle.pop_back();
      ask_for_kernel(self, who, draw);
    } else {
      break;
    }
  }
  if (st.idle.size() == st.workers && st.answer) {
    st.answer->deliver(std::move(st.found));
    st.answer.reset();
  }
}

searcher::behavior_type search(pointer self, std::vector<worker> workers, search_options options) {
  on_exception(self);
  auto& st = state(self);
  st.options = std::move(options);
  st.workers = workers.size();
  st.idle = std::move(workers);
  const auto folds = static_cast<std::size_t>(st.options.folds);
  for (const auto& s : st.options.draws)
    st.found.draws.push_back({s,
                              std::vector<double>(folds, std::numeric_limits<double>::quiet_NaN()),
                              static_cast<unsigned>(folds),
                              {}});
  return {
      [=](const run_search&) -> result<search_result> {
        auto& st = state(self);
        if (st.answer || st.next_draw > 0)
          return troupe::actors::make_error("the search has begun already");
        promise<search_result> answer{self};
        st.answer = answer;
        hand_out(self);
        return answer;
      },
      [=](const stop_search&) {
        auto& st = state(self);
        st.found.stopped = st.over < st.found.draws.size();
        st.folds.clear();
        hand_out(self);
      },
  };
}

} // namespace

searcher spawn_searcher(caf::actor_system& system, std::vector<worker> workers, search_options options) {
  return system.spawn(search, std::move(workers), std::move(options));
}

} // namespace svm_search
