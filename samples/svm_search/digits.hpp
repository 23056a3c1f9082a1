#pragma once

// The data, and how it is cut into folds.

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/core/result.hpp"

namespace svm_search {

/// Examples with a class each.
struct examples {
  std::size_t features = 0;
  std::vector<double> x; ///< row-major, one row per example
  std::vector<int> y;    ///< 0 … classes - 1, or any other whole numbers
  std::size_t size() const noexcept { return y.size(); }
  const double* row(std::size_t i) const { return x.data() + i * features; }
};

/// Where Debian's package python3-sklearn has the handwritten digits: 1797 pictures of 8 x 8 pixels, 0 to 16.
inline constexpr auto digits_file = "/usr/lib/python3/dist-packages/sklearn/datasets/data/digits.csv.gz";

/// Reads comma-separated numbers, the class last, plain or compressed by gzip. An error names the file and
/// the line.
troupe::core::result<examples> load_csv(const std::string& path);

/// Pictures of the same size and range as the digits, made up: ten blurred patterns with noise.
examples generated_digits(std::size_t count, std::uint64_t seed);

/// Which fold each example is tested in: the classes are spread evenly and the examples are not shuffled, as
/// scikit-learn's StratifiedKFold(folds) does it. Each class must have at least `folds` examples; otherwise
/// an error says which has not.
troupe::core::result<std::vector<int>> stratified_folds(const std::vector<int>& labels, int folds);

} // namespace svm_search
