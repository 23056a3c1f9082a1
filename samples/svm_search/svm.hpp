#pragma once

// One fold: train on four fifths, test on the fifth. Knows libsvm and nothing of actors.

#include <libsvm/svm.h>

#include <memory>
#include <vector>

#include "digits.hpp"

namespace svm_search {

/// One draw: what the search varies.
struct settings {
  double c = 1, gamma = 0.1, tol = 1e-3;
  bool balanced = false; ///< rare classes weigh as much as frequent ones
};

/// exp(-gamma |x_i - x_j|^2) of all examples, as libsvm takes a precomputed kernel. The folds of a draw share
/// one: libsvm would compute the same numbers in each of them again, and for each test example once more.
class kernel_matrix {
public:
  const svm_node* row(std::size_t i) const { return nodes_.get() + i * width_; }

private:
  friend class problem;
  std::unique_ptr<svm_node[]> nodes_;
  std::size_t width_ = 0;
};
using kernel_ptr = std::shared_ptr<const kernel_matrix>;

/// The data, its folds, and everything that is the same for all draws. Never changes, so all slots read the
/// same one.
class problem {
public:
  /// Each class needs at least `folds` examples.
  static troupe::core::result<std::shared_ptr<const problem>> make(const examples& data, int folds);

  /// 16 bytes per pair of examples: 52 MB for the digits.
  kernel_ptr make_kernel(double gamma) const;
  /// The part of the test examples that is classified rightly. Without a kernel libsvm computes its own.
  /// Throws std::invalid_argument with libsvm's text if it refuses the settings.
  double score(const settings& s, int fold, const kernel_matrix* kernel) const;

private:
  struct cut {
    std::vector<std::size_t> train, test;
    std::vector<int> labels;     ///< of the training examples
    std::vector<double> balance; ///< a weight for each
  };
  examples data_; ///< sorted by class
  std::vector<cut> cuts_;
  std::vector<double> squared_distances_;
  std::vector<svm_node> sparse_; ///< what is not zero, for libsvm's own kernel
  std::vector<std::size_t> sparse_row_;
};

} // namespace svm_search
