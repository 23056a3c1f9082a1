#pragma once

#include "kernels/cross_entropy.hpp"

/// Texts: row i t + j of a matrix is token j of text i.
namespace troupe::gpu::internal::TROUPE_KERNELS {

/// outer = text, row = token.
struct embed_op {
  embed_args a;

  struct element {
    const float *word, *place;
    float* y;
    float fault; // NaN where there is no such token
    TROUPE_HD void operator()(i64 c) const { y[c] = word[c] + place[c] + fault; }
  };
  TROUPE_HD element at(i64 k, i64 text, i64 j) const {
    const i64 token = row_of(a.tokens, k, text)[j];
    const bool known = token >= 0 && token < a.table.rows;
    return {row_of(a.table, k, known ? token : 0), row_of(a.positions, k, j), row_of(a.y, k, text * a.tokens.cols + j),
            known ? 0.0f : float_of(0x7fc00000u)};
  }
};

inline void embed(const launch_target& on, const embed_args& a) {
  map_3d(on, a.members, a.tokens.rows, a.tokens.cols, a.y.cols, embed_op{a});
}

struct embed_backward_op {
  embed_backward_args a;

  TROUPE_HD i64 target(i64 k, i64 r) const {
    const i64 text = quotient(r, a.tokens.cols);
    return row_of(a.tokens, k, text)[r - text * a.tokens.cols];
  }
  TROUPE_HD const float* row(i64 k, i64 r) const { return row_of(a.dy, k, r); }
  TROUPE_HD float* out(i64 k, i64 token) const { return row_of(a.dtable, k, token); }
};

/// All tokens of a text as one row: its columns' sums over the texts are the positions' gradients.
struct position_sums_op {
  static constexpr int sums = 1;
  mat<const float> x; // texts x (t d)
  mat<float> y;       // t x d
  i64 d;

  struct element {
    const float* x;
    TROUPE_HD column_terms<1> operator()(i64 c) const { return {{x[c]}}; }
  };
  TROUPE_HD element at(i64 k, i64 r) const { return {row_of(x, k, r)}; }
  TROUPE_HD void finish(i64 k, i64 c, const float (&total)[1]) const {
    const i64 j = quotient(c, d);
    row_of(y, k, j)[c - j * d] = total[0];
  }
};

inline void embed_backward(const launch_target& on, const embed_backward_args& a) {
  const i64 texts = a.tokens.rows, wide = a.tokens.cols * a.dy.cols;
  scatter_rows(on, a.members, texts * a.tokens.cols, a.dtable.rows, a.dy.cols, embed_backward_op{a});
  columnwise(on, a.members, texts, wide, nullptr,
             position_sums_op{{a.dy.data, texts, wide, wide, a.dy.stride}, a.dpositions, a.dy.cols});
}

struct softmax_op {
  softmax_args a;
  i64 run; // rows that share a length

#if !defined(__CUDACC__) && !defined(TROUPE_CUDA_EMULATION)
  static constexpr int lanes = 16;
  typedef float vector __attribute__((vector_size(4 * lanes), aligned(4)));
  typedef i32 integers __attribute__((vector_size(4 * lanes)));

  /// A row by whole vectors: rows are short, and g++ makes no vector code of a maximum in `team`.
  TROUPE_HD void in_lanes(const float* x, float* y, i64 cols, i32 n, float scale) const {
    const float none = -infinity();
    const integers count = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const vector nothing = vector{} + none;
    vector top = nothing;
    for (i64 c = 0; c < n; c += lanes) {
      vector v = {};
      if (c + lanes <= cols)
        __builtin_memcpy(&v, x + c, sizeof v);
      else
        for (i64 l = 0; c + l < cols; ++l)
          v[l] = x[c + l];
      const vector counted = count + i32(c) < n ? v * scale : nothing;
      top = counted > top ? counted : top;
      if (c + lanes <= cols)
        __builtin_memcpy(y + c, &counted, sizeof counted);
      else
        for (i64 l = 0; c + l < cols; ++l)
          y[c + l] = counted[l];
    }
    float lane[lanes];
    __builtin_memcpy(lane, &top, sizeof lane);
    const float most = fold_max(lane);
    vector sum = {};
    for (i64 c = 0; c < n; c += lanes) {
      float v[lanes], e[lanes];
      const i64 rest = least(lanes, cols - c);
      for (int l = 0; l < lanes; ++l)
        v[l] = none;
      if (rest == lanes)
        __builtin_memcpy(v, y + c, sizeof v);
      else
        for (i64 l = 0; l < rest; ++l)
          v[l] = y[c + l];
      for (int l = 0; l < lanes; ++l)
        e[l] = exp_of(v[l] - most);
      vector terms;
      __builtin_memcpy(&terms, e, sizeof terms);
      sum += terms;
      if (rest == lanes)
        __builtin_memcpy(y + c, e, sizeof e);
      else
        for (i64 l = 0; l < rest; ++l)
          y[c + l] = e[l];
    }
    __builtin_memcpy(lane, &sum, sizeof lane);
    const float inverse = 1.0f / fold_sum(lane);
    const i64 used = least((i64(n) + lanes - 1) / lanes * lanes, cols);
    TROUPE_VECTORIZE
    for (i64 c = 0; c < used; ++c)
      y[c] *= inverse;
    for (i64 c = used; c < cols; ++c)
      y[c] = 0;
  }
#endif

  template <class Team>
  TROUPE_HD void operator()(Team t, i64 k, i64 r) const {
    const float* x = row_of(a.x, k, r);
    float* y = row_of(a.y, k, r);
    const i64 cols = a.x.cols;
    i32 n = i32(least(cols, 0x7fffffff));
    if (a.lengths.data != nullptr) {
      const i32 length = a.lengths.data[k * a.lengths.stride + quotient(r, run)];
      n = length < n ? length : n;
    }
    if (n <= 0) {
      t.each(cols, [=](i64 c) { y[c] = 0; });
      return;
    }
    const float scale = a.scale;
#if !defined(__CUDACC__) && !defined(TROUPE_CUDA_EMULATION)
    in_lanes(x, y, cols, n, scale);
#else
    const float none = -infinity(); // what is left out counts as
    t.each(cols, [=](i64 c) {
      const float v = x[c] * scale;
      y[c] = i32(c) < n ? v : none;
    });
    const auto read = [=](i64 c) { return y[c]; };
    const float top = t.max(cols, read);
    t.map(cols, read, [=](float v) { return exp_of(v - top); }, [=](i64 c, float v) { y[c] = v; });
    const float inverse = 1.0f / t.sum(cols, read, [](float v) { return v; });
    t.each(cols, [=](i64 c) { y[c] *= inverse; });
#endif
  }
};

inline void softmax(const launch_target& on, const softmax_args& a) {
  const i64 run = a.lengths.data != nullptr && a.lengths.size > 0 ? a.x.rows / a.lengths.size : 1;
  rowwise(on, a.members, a.x.rows, softmax_op{a, run});
}

struct softmax_backward_op {
  softmax_backward_args a;

  template <class Team>
  TROUPE_HD void operator()(Team t, i64 k, i64 r) const {
    const float* dy = row_of(a.dy, k, r);
    const float* y = row_of(a.y, k, r);
    float* dx = row_of(a.dx, k, r);
    const float scale = a.scale;
    const float mean = t.sum(a.y.cols, [=](i64 c) { return y[c] * dy[c]; }, [](float v) { return v; });
    t.each(a.y.cols, [=](i64 c) { dx[c] = scale * (y[c] * (dy[c] - mean)); });
  }
};

inline void softmax_backward(const launch_target& on, const softmax_backward_args& a) {
  rowwise(on, a.members, a.y.rows, softmax_backward_op{a});
}

/// Tokens that count of a text whose rows number t.
TROUPE_HD i64 length_of(const vec<const i32>& lengths, i64 k, i64 text, i64 t) {
  const i64 length = lengths.data[k * lengths.stride + text];
  return length < 1 ? 1 : least(length, t);
}

/// One outer group, row = text.
struct mean_tokens_op {
  mean_tokens_args a;
  i64 t;

  struct element {
    const float* x;
    float* y;
    i64 ld, length;
    float share;
    template <class F>
    TROUPE_HD void each_term(F f) const {
      for (i64 j = 0; j < length; ++j)
        f(x + j * ld);
    }
    TROUPE_HD void store(i64 c, float sum) const { y[c] = sum * share; }
  };
  TROUPE_HD element at(i64 k, i64, i64 text) const {
    const i64 length = length_of(a.lengths, k, text, t);
    return {row_of(a.in, k, text * t), row_of(a.out, k, text), a.in.ld, length, 1.0f / float(length)};
  }
};

inline void mean_tokens(const launch_target& on, const mean_tokens_args& a) {
  if (a.out.rows > 0)
    sum_terms_3d(on, a.members, 1, a.out.rows, a.out.cols, mean_tokens_op{a, a.in.rows / a.out.rows});
}

/// outer = text, row = token.
struct mean_tokens_backward_op {
  mean_tokens_args a;
  i64 t;

  struct element {
    const float* dy;
    float* dx;
    float share; // 0 for padding
    TROUPE_HD void operator()(i64 c) const { dx[c] = share == 0 ? 0.0f : dy[c] * share; }
  };
  TROUPE_HD element at(i64 k, i64 text, i64 j) const {
    const i64 length = length_of(a.lengths, k, text, t);
    return {row_of(a.in, k, text), row_of(a.out, k, text * t + j), j < length ? 1.0f / float(length) : 0.0f};
  }
};

inline void mean_tokens_backward(const launch_target& on, const mean_tokens_args& a) {
  if (a.in.rows > 0) {
    const i64 t = a.out.rows / a.in.rows;
    map_3d(on, a.members, a.in.rows, t, a.in.cols, mean_tokens_backward_op{a, t});
  }
}

template <bool Bias>
struct add_residual_op {
  add_residual_args a;

  struct element {
    const float *x, *bias, *residual;
    float* y;
    TROUPE_HD void operator()(i64 c) const {
      float v = x[c];
      if constexpr (Bias)
        v += bias[c];
      y[c] = residual[c] + v;
    }
  };
  TROUPE_HD element at(i64 k, i64 r) const {
    return {row_of(a.x, k, r), Bias ? a.bias.data + k * a.bias.stride : nullptr, row_of(a.residual, k, r), row_of(a.y, k, r)};
  }
};

inline void add_residual(const launch_target& on, const add_residual_args& a) {
  with_flag(a.bias.data != nullptr, [&](auto bias) {
    map(on, a.members, a.x.rows, a.x.cols, nullptr, add_residual_op<decltype(bias)::value>{a});
  });
}

} // namespace troupe::gpu::internal::TROUPE_KERNELS
