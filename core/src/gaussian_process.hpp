#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace troupe::core {

/// Regression of a function that drifts over time: k((x, t), (x', t')) = exp(-|x - x'|² / 2 l²) (1 - w)^(|t -
/// t'| / 2), the time-varying kernel of Bogunovic et al. 2016 ("Time-varying Gaussian process bandit
/// optimization"), with noise. Dense and small: a fit costs n³, a prediction n². Values are taken to have
/// mean 0 and deviation 1.
class gaussian_process {
public:
  struct point {
    std::vector<double> x; ///< each about 0 … 1
    double t = 0;
  };
  struct settings {
    double length = 0.4;
    double drift = 0.05; ///< w; 0: the function stands still
    double noise = 0.1;  ///< variance
  };
  struct prediction {
    double mean = 0, deviation = 1;
  };

  gaussian_process(std::vector<point> at, std::vector<double> values, settings s);
  /// The settings under which the values are likeliest, of a fixed grid.
  static gaussian_process fitted(const std::vector<point>& at, const std::vector<double>& values);

  /// One more observation, as if it had come out as predicted: it lowers the deviation near it and moves no
  /// mean (Desautels et al. 2014, "Parallelizing exploration-exploitation tradeoffs in Gaussian process
  /// bandit optimization").
  void add_pending(point p);
  prediction predict(const point& p) const;
  double log_likelihood() const { return log_likelihood_; }
  const settings& used() const { return settings_; }

private:
  double kernel(const point& a, const point& b) const;
  void factorise();

  std::vector<point> at_;
  std::vector<double> values_;
  settings settings_;
  std::vector<std::vector<double>> factor_; ///< rows of the lower Cholesky factor
  std::vector<double> weights_;             ///< K⁻¹ y
  double log_likelihood_ = 0;
};

} // namespace troupe::core
