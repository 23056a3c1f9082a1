#include "gaussian_process.hpp"

#include <cmath>
#include <numbers>
#include <utility>

namespace troupe::core {

namespace {

using rows = std::vector<std::vector<double>>;

/// L z = b, from the front.
std::vector<double> solve_lower(const rows& l, std::vector<double> b) {
  for (std::size_t i = 0; i < b.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k)
      b[i] -= l[i][k] * b[k];
    b[i] /= l[i][i];
  }
  return b;
}

/// Lᵀ z = b, from the back.
std::vector<double> solve_upper(const rows& l, std::vector<double> b) {
  for (std::size_t i = b.size(); i-- > 0;) {
    for (std::size_t k = i + 1; k < b.size(); ++k)
      b[i] -= l[k][i] * b[k];
    b[i] /= l[i][i];
  }
  return b;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    sum += a[i] * b[i];
  return sum;
}

} // namespace

gaussian_process::gaussian_process(std::vector<point> at, std::vector<double> values, settings s)
    : at_(std::move(at)), values_(std::move(values)), settings_(s) {
  factorise();
}

double gaussian_process::kernel(const point& a, const point& b) const {
  double distance = 0;
  for (std::size_t i = 0; i < a.x.size(); ++i)
    distance += (a.x[i] - b.x[i]) * (a.x[i] - b.x[i]);
  return std::exp(-distance / (2 * settings_.length * settings_.length)) *
         std::pow(1 - settings_.drift, std::abs(a.t - b.t) / 2);
}

/// The noise keeps the matrix well away from singular, so that the factor always exists.
void gaussian_process::factorise() {
  const auto n = at_.size();
  factor_.assign(n, {});
  double half_log_det = 0;
  for (std::size_t i = 0; i < n; ++i) {
    factor_[i].resize(i + 1);
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = kernel(at_[i], at_[j]) + (i == j ? settings_.noise : 0.0);
      for (std::size_t k = 0; k < j; ++k)
        sum -= factor_[i][k] * factor_[j][k];
      factor_[i][j] = i == j ? std::sqrt(sum) : sum / factor_[j][j];
    }
    half_log_det += std::log(factor_[i][i]);
  }
  weights_ = solve_upper(factor_, solve_lower(factor_, values_));
  log_likelihood_ = -dot(values_, weights_) / 2 - half_log_det -
                    static_cast<double>(n) / 2 * std::log(2 * std::numbers::pi);
}

gaussian_process gaussian_process::fitted(const std::vector<point>& at, const std::vector<double>& values) {
  std::optional<gaussian_process> best;
  for (const double length : {0.1, 0.2, 0.4, 0.8, 1.6})
    for (const double drift : {0.0, 0.05, 0.2})
      for (const double noise : {0.01, 0.1, 0.5}) {
        gaussian_process x(at, values, {length, drift, noise});
        if (!best || x.log_likelihood() > best->log_likelihood())
          best = std::move(x);
      }
  return std::move(*best);
}

void gaussian_process::add_pending(point p) {
  values_.push_back(predict(p).mean);
  at_.push_back(std::move(p));
  factorise();
}

gaussian_process::prediction gaussian_process::predict(const point& p) const {
  std::vector<double> k;
  k.reserve(at_.size());
  for (const auto& x : at_)
    k.push_back(kernel(x, p));
  const auto mean = dot(k, weights_);
  const auto z = solve_lower(factor_, std::move(k));
  return {mean, std::sqrt(std::max(1 - dot(z, z), 1e-12))};
}

} // namespace troupe::core
