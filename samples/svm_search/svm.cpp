#include "svm.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>

namespace svm_search {

namespace core = troupe::core;

core::result<std::shared_ptr<const problem>> problem::make(const examples& data, int folds) {
  auto fold_of = stratified_folds(data.y, folds);
  if (!fold_of)
    return fold_of.error();
  // Sorted by class, and otherwise in their order. libsvm numbers classes as they first appear in the
  // training data, and ties between votes go to the first: so it is scikit-learn's order. And the rows and
  // columns of the kernel matrix that are used together, those of two classes, lie together in memory.
  std::vector<std::size_t> order(data.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return data.y[a] < data.y[b]; });
  auto out = std::make_shared<problem>();
  auto& d = out->data_;
  d.features = data.features;
  out->cuts_.resize(static_cast<std::size_t>(folds));
  for (const auto i : order) {
    for (int f = 0; f < folds; ++f) {
      auto& cut = out->cuts_[static_cast<std::size_t>(f)];
      ((*fold_of)[i] == f ? cut.test : cut.train).push_back(d.size());
    }
    d.y.push_back(data.y[i]);
    d.x.insert(d.x.end(), data.row(i), data.row(i) + data.features);
  }
  const auto n = d.size();

  for (auto& cut : out->cuts_) {
    std::map<int, std::size_t> count;
    for (const auto i : cut.train)
      ++count[d.y[i]];
    for (const auto& [label, examples] : count) {
      cut.labels.push_back(label);
      cut.balance.push_back(static_cast<double>(cut.train.size()) /
                            static_cast<double>(count.size() * examples));
    }
  }

  out->squared_distances_.resize(n * n);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < i; ++j) {
      double sum = 0;
      for (std::size_t k = 0; k < d.features; ++k)
        sum += (d.row(i)[k] - d.row(j)[k]) * (d.row(i)[k] - d.row(j)[k]);
      out->squared_distances_[i * n + j] = out->squared_distances_[j * n + i] = sum;
    }

  for (std::size_t i = 0; i < n; ++i) {
    out->sparse_row_.push_back(out->sparse_.size());
    for (std::size_t k = 0; k < d.features; ++k)
      if (d.row(i)[k] != 0)
        out->sparse_.push_back({static_cast<int>(k + 1), d.row(i)[k]});
    out->sparse_.push_back({-1, 0});
  }
  return std::shared_ptr<const problem>{out};
}

kernel_ptr problem::make_kernel(double gamma) const {
  const auto n = data_.size();
  auto out = std::make_shared<kernel_matrix>();
  out->width_ = n + 1;
  out->nodes_ = std::make_unique_for_overwrite<svm_node[]>(n * (n + 1));
  for (std::size_t i = 0; i < n; ++i) {
    auto* row = out->nodes_.get() + i * (n + 1);
    row[0] = {0, static_cast<double>(i + 1)}; // which row of the matrix this is
    for (std::size_t j = 0; j < n; ++j)
      row[j + 1] = {static_cast<int>(j + 1), std::exp(-gamma * squared_distances_[i * n + j])};
  }
  return out;
}

double problem::score(const settings& s, int fold, const kernel_matrix* kernel) const {
  const auto& cut = cuts_.at(static_cast<std::size_t>(fold));
  // A row of the kernel, or of the data. Training examples are named by pointers, so that a fold copies
  // nothing.
  const auto row = [&](std::size_t i) {
    return const_cast<svm_node*>(kernel ? kernel->row(i)
                                        : sparse_.data() + sparse_row_[i]); // libsvm only reads it
  };
  std::vector<svm_node*> x;
  std::vector<double> y;
  for (const auto i : cut.train) {
    x.push_back(row(i));
    y.push_back(data_.y[i]);
  }
  const svm_problem train{static_cast<int>(x.size()), y.data(), x.data()};

  auto labels = cut.labels;
  auto weights = cut.balance;
  svm_parameter p{};
  p.svm_type = C_SVC;
  p.kernel_type = kernel ? PRECOMPUTED : RBF;
  p.gamma = s.gamma;
  p.C = s.c;
  p.eps = s.tol;
  p.cache_size = 200; // MB; scikit-learn's
  p.shrinking = 1;
  if (s.balanced) {
    p.nr_weight = static_cast<int>(labels.size());
    p.weight_label = labels.data();
    p.weight = weights.data();
  }
  if (const char* wrong = svm_check_parameter(&train, &p))
    throw std::invalid_argument(std::string{"libsvm refuses the settings: "} + wrong);

  const auto free_model = [](svm_model* m) { svm_free_and_destroy_model(&m); };
  const std::unique_ptr<svm_model, decltype(free_model)> model{svm_train(&train, &p)};
  std::size_t right = 0;
  for (const auto i : cut.test)
    right += svm_predict(model.get(), row(i)) == data_.y[i] ? 1 : 0;
  return static_cast<double>(right) / static_cast<double>(cut.test.size());
}

} // namespace svm_search
