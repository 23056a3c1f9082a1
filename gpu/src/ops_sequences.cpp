#include <string>

#include "checks.hpp"
#include "kernel_table.hpp"

// As ops.cpp, for the operations on texts.
namespace troupe::gpu {

using internal::checker;
using internal::target_of;

namespace {

std::string count(std::int64_t n) { return std::to_string(n); }

/// Rows of x as texts of equally many tokens.
void check_texts(checker& check, const char* name, std::int64_t rows, std::int64_t texts) {
  check.hold(texts > 0 ? rows % texts == 0 : rows == 0, [&] {
    return std::string(name) + " has " + count(rows) + " rows, which " + count(texts) + " texts do not share evenly";
  });
}

/// Checks one operand of gemm_grid as the rows x cols matrices it is.
template <class T>
void check_grid(checker& check, const char* name, const mat_grid<T>& x, std::int64_t outer, std::int64_t inner, bool written) {
  const mat<T> one{x.data, x.rows, x.cols, x.ld, x.stride};
  check.in(name, one);
  if (!written || x.rows == 0 || x.cols == 0)
    return;
  // Heads may interleave along a row, or follow one another as whole matrices; texts follow one another.
  const auto whole = (x.rows - 1) * x.ld + x.cols;
  const bool beside = x.inner_stride >= x.cols && (inner - 1) * x.inner_stride + x.cols <= x.ld;
  const auto extent = (inner - 1) * x.inner_stride + whole;
  check.hold(inner <= 1 || beside || x.inner_stride >= whole, [&] {
    return std::string(name) + "'s matrices overlap: " + count(x.rows) + " x " + count(x.cols) + ", row distance " + count(x.ld)
           + ", inner distance " + count(x.inner_stride);
  });
  check.hold(outer <= 1 || x.outer_stride >= extent, [&] {
    return std::string(name) + "'s groups overlap: each takes " + count(extent) + ", but they are " + count(x.outer_stride) + " apart";
  });
  check.out(name, mat<T>{x.data, 1, (outer - 1) * x.outer_stride + extent, (outer - 1) * x.outer_stride + extent, x.stride});
}

} // namespace

void gather_tokens(context& ctx, std::int64_t members, const data_source& data, const member_counters* counters,
                   std::int64_t offset, mat<std::int32_t> tokens, vec<std::int32_t> lengths, vec<std::int32_t> labels) {
  checker check(ctx, "gather_tokens", members);
  check.out("tokens", tokens).there("the data source's tokens", data.tokens);
  check.hold(tokens.cols == data.features && data.features > 0, [&] {
    return "tokens has " + count(tokens.cols) + " columns, but an example has " + count(data.features) + " tokens";
  });
  check.hold(data.examples > 0, [] { return "the data source is empty"; });
  check.sized("lengths", lengths, 1, tokens.rows).out("lengths", lengths);
  if (labels.data != nullptr)
    check.sized("labels", labels, 1, tokens.rows).out("labels", labels).there("the data source's labels", data.labels);
  if (offset < 0)
    check.there("counters", counters).hold(tokens.rows <= data.examples, [&] {
      return "a batch of " + count(tokens.rows) + " rows is larger than the data, " + count(data.examples) + " examples";
    });
  if (tokens.rows != 0)
    ctx.kernels().gather_tokens(target_of(ctx), {members, data, counters, offset, tokens, lengths, labels});
}

void gemm_grid(context& ctx, std::int64_t members, std::int64_t outer, std::int64_t inner, bool trans_a, bool trans_b,
               float alpha, mat_grid<const float> a, mat_grid<const float> b, mat_grid<float> c) {
  checker check(ctx, "gemm_grid", members);
  check.hold(outer >= 0 && inner >= 0, [&] { return "the grid is " + count(outer) + " x " + count(inner); });
  const auto m = trans_a ? a.cols : a.rows, k = trans_a ? a.rows : a.cols;
  const auto n = trans_b ? b.rows : b.cols, kb = trans_b ? b.cols : b.rows;
  check.hold(m == c.rows && n == c.cols && k == kb, [&] {
    return "op(A) is " + count(m) + " x " + count(k) + ", op(B) " + count(kb) + " x " + count(n) + ", C " + count(c.rows) + " x "
           + count(c.cols) + ", which do not fit";
  });
  if (outer == 0 || inner == 0)
    return;
  check_grid(check, "A", a, outer, inner, false);
  check_grid(check, "B", b, outer, inner, false);
  check_grid(check, "C", c, outer, inner, true);
  ctx.kernels().gemm_grid(target_of(ctx), {members, outer, inner, m, n, k, trans_a, trans_b, alpha, a, b, c});
}

void embed(context& ctx, std::int64_t members, mat<const std::int32_t> tokens, mat<const float> table,
           mat<const float> positions, mat<float> y) {
  checker check(ctx, "embed", members);
  check.in("tokens", tokens).in("table", table);
  check.hold(table.rows > 0, [] { return "table has no rows"; });
  check.sized("positions", positions, tokens.cols, table.cols).in("positions", positions);
  check.sized("y", y, tokens.rows * tokens.cols, table.cols).out("y", y);
  ctx.kernels().embed(target_of(ctx), {members, tokens, table, positions, y});
}

void embed_backward(context& ctx, std::int64_t members, mat<const std::int32_t> tokens, mat<const float> dy,
                    mat<float> dtable, mat<float> dpositions) {
  checker check(ctx, "embed_backward", members);
  check.in("tokens", tokens).out("dtable", dtable);
  check.sized("dy", dy, tokens.rows * tokens.cols, dtable.cols).in("dy", dy);
  check.hold(dy.ld == dy.cols, [&] {
    return "dy's rows must be dense, but are " + count(dy.ld) + " apart for " + count(dy.cols) + " columns";
  });
  check.sized("dpositions", dpositions, tokens.cols, dtable.cols).out("dpositions", dpositions);
  ctx.kernels().embed_backward(target_of(ctx), {members, tokens, dy, dtable, dpositions});
}

void softmax(context& ctx, std::int64_t members, float scale, mat<const float> x, vec<const std::int32_t> lengths,
             mat<float> y) {
  checker check(ctx, "softmax", members);
  check.in("x", x).sized("y", y, x.rows, x.cols).out("y", y);
  if (lengths.data != nullptr) {
    check.in("lengths", lengths);
    check_texts(check, "x", x.rows, lengths.size);
  }
  ctx.kernels().softmax(target_of(ctx), {members, scale, x, lengths, y});
}

void softmax_backward(context& ctx, std::int64_t members, float scale, mat<const float> dy, mat<const float> y, mat<float> dx) {
  checker check(ctx, "softmax_backward", members);
  check.in("y", y).sized("dy", dy, y.rows, y.cols).in("dy", dy).sized("dx", dx, y.rows, y.cols).out("dx", dx);
  ctx.kernels().softmax_backward(target_of(ctx), {members, scale, dy, y, dx});
}

void mean_tokens(context& ctx, std::int64_t members, mat<const float> x, vec<const std::int32_t> lengths, mat<float> y) {
  checker check(ctx, "mean_tokens", members);
  check.in("x", x).in("lengths", lengths);
  check_texts(check, "x", x.rows, lengths.size);
  check.sized("y", y, lengths.size, x.cols).out("y", y);
  ctx.kernels().mean_tokens(target_of(ctx), {members, x, lengths, y});
}

void mean_tokens_backward(context& ctx, std::int64_t members, mat<const float> dy, vec<const std::int32_t> lengths,
                          mat<float> dx) {
  checker check(ctx, "mean_tokens_backward", members);
  check.in("lengths", lengths).sized("dy", dy, lengths.size, dx.cols).in("dy", dy).out("dx", dx);
  check_texts(check, "dx", dx.rows, lengths.size);
  ctx.kernels().mean_tokens_backward(target_of(ctx), {members, dy, lengths, dx});
}

void add_residual(context& ctx, std::int64_t members, mat<const float> x, vec<const float> bias, mat<const float> residual,
                  mat<float> y) {
  checker check(ctx, "add_residual", members);
  check.in("x", x).sized("residual", residual, x.rows, x.cols).in("residual", residual);
  check.sized("y", y, x.rows, x.cols).out("y", y);
  if (bias.data != nullptr)
    check.sized("bias", bias, 1, x.cols).in("bias", bias);
  ctx.kernels().add_residual(target_of(ctx), {members, x, bias, residual, y});
}

} // namespace troupe::gpu
