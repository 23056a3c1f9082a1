#pragma once

// The search as actors: a worker on each slot that trains folds, and a searcher that hands them out.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "svm.hpp"
#include "troupe/actors/gpu_actor.hpp"

namespace svm_search {

// 1. What a worker does. Its messages hold pointers to data that all slots of this process share, so they
// stay in it.

/// Compute the kernel of a draw, for all its folds.
struct kernel_job {
  settings with;
};
TROUPE_LOCAL_MESSAGE(kernel_job)

struct kernel_made {
  kernel_ptr kernel;
};
TROUPE_LOCAL_MESSAGE(kernel_made)

/// Train and test one fold; answered with its accuracy.
struct fold_job {
  settings with;
  int fold = 0;
  kernel_ptr kernel; ///< null: libsvm computes its own
};
TROUPE_LOCAL_MESSAGE(fold_job)

using worker = troupe::actors::typed_actor<troupe::actors::result<kernel_made>(kernel_job),
                                           troupe::actors::result<troupe::actors::wire_real>(fold_job)>;

/// A worker on the slot `at`.
worker spawn_worker(caf::actor_system& system, const troupe::actors::gpu_place& at,
                    std::shared_ptr<const problem> what);

// 2. What the searcher does.

/// What came of a draw.
struct draw_result {
  settings with;
  std::vector<double> folds; ///< accuracies; NaN for those that are missing
  unsigned open = 0;         ///< folds that have not been answered
  std::string failure;       ///< the first one's text; empty: none

  /// The mean over the folds, NaN if one is missing.
  double score() const;
};

struct search_result {
  std::vector<draw_result> draws;
  bool stopped = false; ///< before all were done

  /// The draw with the highest score, the first of equals; null if there is none.
  const draw_result* best() const;
};
TROUPE_LOCAL_MESSAGE(search_result)

struct search_options {
  std::vector<settings> draws;
  int folds = 5;
  bool share_kernels = true;
  /// Told in the searcher's turn when a draw is over. May be null; must be short.
  std::function<void(const search_result&, std::size_t over)> on_draw;
};

/// Begin. Answered when all draws are over, or after a stop.
struct run_search {
  std::uint32_t number = 0;
};
TROUPE_INSPECT(run_search, number)

/// Hand out nothing more; the folds at hand are awaited.
struct stop_search {
  std::uint32_t number = 0;
};
TROUPE_INSPECT(stop_search, number)

using searcher = troupe::actors::typed_actor<troupe::actors::result<search_result>(run_search),
                                             troupe::actors::result<void>(stop_search)>;

searcher spawn_searcher(caf::actor_system& system, std::vector<worker> workers, search_options options);

} // namespace svm_search

// 3. Every message type gets a number.
CAF_BEGIN_TYPE_ID_BLOCK(svm_search, troupe::actors::first_user_type_id)
CAF_ADD_TYPE_ID(svm_search, (svm_search::kernel_job))
CAF_ADD_TYPE_ID(svm_search, (svm_search::kernel_made))
CAF_ADD_TYPE_ID(svm_search, (svm_search::fold_job))
CAF_ADD_TYPE_ID(svm_search, (svm_search::search_result))
CAF_ADD_TYPE_ID(svm_search, (svm_search::run_search))
CAF_ADD_TYPE_ID(svm_search, (svm_search::stop_search))
CAF_END_TYPE_ID_BLOCK(svm_search)
