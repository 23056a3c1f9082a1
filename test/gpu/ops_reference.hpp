#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

/// The operations as their definitions read, one member at a time, in doubles. Nothing here is fast.
namespace ops_reference {

using numbers = std::vector<double>;
using i64 = std::int64_t;

/// d(weights . f(x)) / dx by central differences.
inline numbers numeric_gradient(const std::function<numbers(const numbers&)>& f, numbers x, const numbers& weights) {
  numbers gradient(x.size());
  const auto weighted = [&] {
    const numbers y = f(x);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i)
      sum += weights[i] * y[i];
    return sum;
  };
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = x[i], h = 1e-5;
    x[i] = at + h;
    const double above = weighted();
    x[i] = at - h;
    gradient[i] = (above - weighted()) / (2 * h);
    x[i] = at;
  }
  return gradient;
}

inline double relu(double x) { return x > 0 ? x : 0; }
inline double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

/// Mean loss over rows; `correct` counts the rows whose first largest logit is the label's.
inline double cross_entropy(const numbers& logits, i64 rows, i64 cols, const std::vector<i64>& labels, double smoothing,
                            i64* correct = nullptr) {
  double loss = 0;
  for (i64 r = 0; r < rows; ++r) {
    const double* z = &logits[std::size_t(r * cols)];
    double sum = 0, top = z[0];
    i64 best = 0;
    for (i64 c = 0; c < cols; ++c)
      if (z[c] > top) {
        top = z[c];
        best = c;
      }
    for (i64 c = 0; c < cols; ++c)
      sum += std::exp(z[c] - top);
    for (i64 c = 0; c < cols; ++c) {
      const double wanted = (c == labels[std::size_t(r)] ? 1 - smoothing : 0) + smoothing / double(cols);
      loss -= wanted * (z[c] - top - std::log(sum));
    }
    if (correct != nullptr && best == labels[std::size_t(r)])
      ++*correct;
  }
  return loss / double(rows);
}

inline numbers layer_norm(const numbers& x, i64 rows, i64 cols, const numbers& gain, const numbers& bias, double eps,
                          numbers* stats = nullptr) {
  numbers y(x.size());
  for (i64 r = 0; r < rows; ++r) {
    double mean = 0, variance = 0;
    for (i64 c = 0; c < cols; ++c)
      mean += x[std::size_t(r * cols + c)] / double(cols);
    for (i64 c = 0; c < cols; ++c)
      variance += std::pow(x[std::size_t(r * cols + c)] - mean, 2) / double(cols);
    const double inverse = 1 / std::sqrt(variance + eps);
    for (i64 c = 0; c < cols; ++c)
      y[std::size_t(r * cols + c)] =
          (x[std::size_t(r * cols + c)] - mean) * inverse * gain[std::size_t(c)] + bias[std::size_t(c)];
    if (stats != nullptr) {
      stats->push_back(mean);
      stats->push_back(inverse);
    }
  }
  return y;
}

/// `mean` and `variance` (biased) receive the columns'.
inline numbers batch_norm(const numbers& x, i64 rows, i64 cols, const numbers& gain, const numbers& bias, double eps,
                          numbers* mean = nullptr, numbers* variance = nullptr) {
  numbers y(x.size());
  for (i64 c = 0; c < cols; ++c) {
    double m = 0, v = 0;
    for (i64 r = 0; r < rows; ++r)
      m += x[std::size_t(r * cols + c)] / double(rows);
    for (i64 r = 0; r < rows; ++r)
      v += std::pow(x[std::size_t(r * cols + c)] - m, 2) / double(rows);
    for (i64 r = 0; r < rows; ++r)
      y[std::size_t(r * cols + c)] =
          (x[std::size_t(r * cols + c)] - m) / std::sqrt(v + eps) * gain[std::size_t(c)] + bias[std::size_t(c)];
    if (mean != nullptr)
      mean->push_back(m);
    if (variance != nullptr)
      variance->push_back(v);
  }
  return y;
}

struct conv {
  i64 n, h, w, c, kh, kw, stride, pad;
  i64 oh() const { return (h + 2 * pad - kh) / stride + 1; }
  i64 ow() const { return (w + 2 * pad - kw) / stride + 1; }
};

/// For each column of each output the index of the pixel's channel it reads, or -1.
inline std::vector<i64> im2col_sources(const conv& s) {
  std::vector<i64> sources;
  for (i64 n = 0; n < s.n; ++n)
    for (i64 oy = 0; oy < s.oh(); ++oy)
      for (i64 ox = 0; ox < s.ow(); ++ox)
        for (i64 ky = 0; ky < s.kh; ++ky)
          for (i64 kx = 0; kx < s.kw; ++kx)
            for (i64 c = 0; c < s.c; ++c) {
              const i64 y = oy * s.stride - s.pad + ky, x = ox * s.stride - s.pad + kx;
              const bool inside = y >= 0 && y < s.h && x >= 0 && x < s.w;
              sources.push_back(inside ? ((n * s.h + y) * s.w + x) * s.c + c : -1);
            }
  return sources;
}

/// For each output the place in its window of the first largest input, and the input's index.
struct pooled {
  std::vector<i64> place, source;
};
inline pooled max_pool(const numbers& x, const conv& s) {
  pooled p;
  for (i64 n = 0; n < s.n; ++n)
    for (i64 oy = 0; oy < s.oh(); ++oy)
      for (i64 ox = 0; ox < s.ow(); ++ox)
        for (i64 c = 0; c < s.c; ++c) {
          i64 place = -1, source = -1;
          for (i64 ky = 0; ky < s.kh; ++ky)
            for (i64 kx = 0; kx < s.kw; ++kx) {
              const i64 at = ((n * s.h + oy * s.stride + ky) * s.w + ox * s.stride + kx) * s.c + c;
              if (source < 0 || x[std::size_t(at)] > x[std::size_t(source)]) {
                source = at;
                place = ky * s.kw + kx;
              }
            }
          p.place.push_back(place);
          p.source.push_back(source);
        }
  return p;
}

} // namespace ops_reference
