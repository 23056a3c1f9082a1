#pragma once

#include "kernels/prelude.hpp"

/// The forms of a kernel, as loops. launch_cuda.hpp defines the same names for the GPU.
///
/// map          op.at(member, row) loads pointers and hyperparameters into a small object e; e(column) does one element.
///              Vectors are maps of one row.
/// map_3d       the same over outer x rows x columns: op.at(member, outer, row). Where op has all_rows(member, outer), the CPU
///              calls that instead.
/// sum_terms_3d op.at(member, outer, row) gives e; e.each_term(f) calls f with each row to add up, e.store(column, sum).
/// random_map   as map, where e(column, bits) also gets 32 random bits: op.draw(member, group, lane) gives those of four
///              elements of a group of 64 (see random.hpp); not called where op.random(member) is false.
/// rowwise      op(team, member, row): a team of threads shares a row and can sum over it.
/// indexed_rows op.row(team, member, row, source), where op.member(member).source(row) chose what to read.
/// scatter_rows rows added up by target: op.out(member, target) = sum of op.row(member, row) over the rows, in order, whose
///              op.target(member, row) it is; other targets lose the row.
/// columnwise   op.at(member, row)(column) returns `sums` numbers, added up over the rows; op.finish(member, column,
///              totals) takes them. It may write its own element on the way.
/// member_rows  op.row(team, member, row) returns a value to be added up; op.finish(member, total) takes the sum.
/// block_sums   op.at(member)(i) summed over a vector; op.finish(member, total).
/// per_member   op(member).
namespace troupe::gpu::internal::TROUPE_KERNELS {

TROUPE_HD bool takes_part(const std::uint8_t* active, i64 member) {
  return active == nullptr || active[member] != 0;
}

/// Lanes folded in halves: an order that is the same for every instruction set. Written out, since g++ makes a slow loop of it.
template <class F>
TROUPE_HD float fold(float (&lane)[16], F f) {
  for (int l = 0; l < 8; ++l)
    lane[l] = f(lane[l], lane[l + 8]);
  for (int l = 0; l < 4; ++l)
    lane[l] = f(lane[l], lane[l + 4]);
  for (int l = 0; l < 2; ++l)
    lane[l] = f(lane[l], lane[l + 2]);
  return f(lane[0], lane[1]);
}
TROUPE_HD float fold_sum(float (&lane)[16]) {
  return fold(lane, [](float a, float b) { return a + b; });
}
TROUPE_HD float fold_max(float (&lane)[16]) {
  return fold(lane, [](float a, float b) { return a > b ? a : b; });
}

/// One thread that works on 16 lanes at a time. Sums are formed per lane and then folded, so that their order is the
/// same for every instruction set. `read` must be cheap; `f` is what is worth vector code, and may be called on padding.
struct team {
  static constexpr int width = 16;

  TROUPE_HD bool leader() const { return true; }

  template <class F>
  TROUPE_HD void each(i64 n, F f) const {
    TROUPE_VECTORIZE
    for (i64 c = 0; c < n; ++c)
      f(c);
  }

  template <class Read, class F, class Write>
  TROUPE_HD void map(i64 n, Read read, F f, Write write) const {
    i64 c = 0;
    for (; c + width <= n; c += width) {
      float v[width];
      for (int l = 0; l < width; ++l)
        v[l] = f(read(c + l));
      for (int l = 0; l < width; ++l)
        write(c + l, v[l]);
    }
    if (c < n) {
      float v[width] = {};
      const int rest = int(n - c);
      for (int l = 0; l < rest; ++l)
        v[l] = read(c + l);
      for (int l = 0; l < width; ++l)
        v[l] = f(v[l]);
      for (int l = 0; l < rest; ++l)
        write(c + l, v[l]);
    }
  }

  template <class Read, class F>
  TROUPE_HD float sum(i64 n, Read read, F f) const {
    float acc[width] = {};
    i64 c = 0;
    for (; c + width <= n; c += width)
      for (int l = 0; l < width; ++l)
        acc[l] += f(read(c + l));
    if (c < n) {
      float v[width] = {};
      const int rest = int(n - c);
      for (int l = 0; l < rest; ++l)
        v[l] = read(c + l);
      for (int l = 0; l < width; ++l)
        v[l] = f(v[l]);
      for (int l = 0; l < width; ++l)
        acc[l] += l < rest ? v[l] : 0.0f;
    }
    return fold_sum(acc);
  }

  template <class Read>
  TROUPE_HD float max(i64 n, Read read) const {
    float acc[width];
    for (int l = 0; l < width; ++l)
      acc[l] = -infinity();
    i64 c = 0;
    for (; c + width <= n; c += width)
      for (int l = 0; l < width; ++l) {
        const float v = read(c + l);
        acc[l] = v > acc[l] ? v : acc[l];
      }
    for (int l = 0; c + l < n; ++l) {
      const float v = read(c + l);
      acc[l] = v > acc[l] ? v : acc[l];
    }
    return fold_max(acc);
  }
};

template <class Op>
void map(const launch_target&, i64 members, i64 rows, i64 cols, const std::uint8_t* active, const Op& op) {
  for (i64 k = 0; k < members; ++k) {
    if (!takes_part(active, k))
      continue;
    for (i64 r = 0; r < rows; ++r) {
      const auto e = op.at(k, r);
      TROUPE_VECTORIZE
      for (i64 c = 0; c < cols; ++c)
        e(c);
    }
  }
}

template <class Op>
void map_3d(const launch_target&, i64 members, i64 outer, i64 rows, i64 cols, const Op& op) {
  for (i64 k = 0; k < members; ++k)
    for (i64 q = 0; q < outer; ++q) {
      if constexpr (requires { op.all_rows(k, q); }) {
        op.all_rows(k, q);
        continue;
      }
      for (i64 r = 0; r < rows; ++r) {
        const auto e = op.at(k, q, r);
        // Channels are few, often 16 or 32: a loop of unknown length over bytes and floats would be vector code for 64 at once
        // and leave them all to its scalar rest.
        i64 c = 0;
        for (; c + team::width <= cols; c += team::width)
          TROUPE_VECTORIZE
          for (int l = 0; l < team::width; ++l)
            e(c + l);
        for (; c < cols; ++c)
          e(c);
      }
    }
}

template <class Op>
void sum_terms_3d(const launch_target&, i64 members, i64 outer, i64 rows, i64 cols, const Op& op) {
  constexpr i64 tile = 256;
  for (i64 k = 0; k < members; ++k)
    for (i64 q = 0; q < outer; ++q)
      for (i64 r = 0; r < rows; ++r) {
        const auto e = op.at(k, q, r);
        for (i64 c0 = 0; c0 < cols; c0 += tile) {
          const i64 n = least(tile, cols - c0);
          float sum[tile];
          for (i64 j = 0; j < n; ++j)
            sum[j] = 0;
          e.each_term([&](const float* term) {
            TROUPE_VECTORIZE
            for (i64 j = 0; j < n; ++j)
              sum[j] += term[c0 + j];
          });
          TROUPE_VECTORIZE
          for (i64 j = 0; j < n; ++j)
            e.store(c0 + j, sum[j]);
        }
      }
}

template <class Op>
void random_map(const launch_target&, i64 members, i64 rows, i64 cols, const Op& op) {
  constexpr int lanes = 16, group = 64;
  for (i64 k = 0; k < members; ++k) {
    const bool random = op.random(k);
    u32 bits[group];
    for (int i = 0; i < group; ++i)
      bits[i] = 0xffffffffu;
    i64 r = 0, c = 0;
    for (i64 g = 0; g * group < rows * cols; ++g) {
      if (random)
        for (int l = 0; l < lanes; ++l) {
          const auto words = op.draw(k, u64(g), u32(l));
          bits[l] = words.w[0];
          bits[lanes + l] = words.w[1];
          bits[2 * lanes + l] = words.w[2];
          bits[3 * lanes + l] = words.w[3];
        }
      for (i64 used = 0; used < group && r < rows;) {
        const i64 run = least(group - used, cols - c);
        const auto e = op.at(k, r);
        TROUPE_VECTORIZE
        for (i64 j = 0; j < run; ++j)
          e(c + j, bits[used + j]);
        used += run;
        c += run;
        if (c == cols) {
          c = 0;
          ++r;
        }
      }
    }
  }
}

template <class Op>
void rowwise(const launch_target&, i64 members, i64 rows, const Op& op) {
  for (i64 k = 0; k < members; ++k)
    for (i64 r = 0; r < rows; ++r)
      op(team{}, k, r);
}

template <class Op>
void indexed_rows(const launch_target&, i64 members, i64 rows, const Op& op) {
  constexpr i64 ahead = 16; // rows whose sources are known, and on their way to the cache, before they are read
  for (i64 k = 0; k < members; ++k) {
    const auto m = op.member(k);
    for (i64 r0 = 0; r0 < rows; r0 += ahead) {
      const i64 count = least(ahead, rows - r0);
      i64 source[ahead];
      for (i64 i = 0; i < count; ++i)
        source[i] = m.source(r0 + i);
      for (i64 i = 0; i < count; ++i)
        m.prefetch(source[i]);
      for (i64 i = 0; i < count; ++i)
        op.row(team{}, k, r0 + i, source[i]);
    }
  }
}

template <class Op>
void scatter_rows(const launch_target&, i64 members, i64 rows, i64 targets, i64 cols, const Op& op) {
  for (i64 k = 0; k < members; ++k) {
    for (i64 t = 0; t < targets; ++t) {
      float* out = op.out(k, t);
      for (i64 c = 0; c < cols; ++c)
        out[c] = 0;
    }
    for (i64 r = 0; r < rows; ++r) {
      const i64 t = op.target(k, r);
      if (t < 0 || t >= targets)
        continue;
      float* out = op.out(k, t);
      const float* row = op.row(k, r);
      TROUPE_VECTORIZE
      for (i64 c = 0; c < cols; ++c)
        out[c] += row[c];
    }
  }
}

template <class Op>
void columnwise(const launch_target&, i64 members, i64 rows, i64 cols, const std::uint8_t* active, const Op& op) {
  constexpr int sums = Op::sums;
  constexpr i64 tile = 256, block = 128; // columns at a time; rows added up before they join the total
  for (i64 k = 0; k < members; ++k) {
    if (!takes_part(active, k))
      continue;
    for (i64 c0 = 0; c0 < cols; c0 += tile) {
      const i64 n = least(tile, cols - c0);
      float total[sums][tile], part[sums][tile];
      for (int s = 0; s < sums; ++s)
        for (i64 j = 0; j < n; ++j)
          total[s][j] = 0;
      for (i64 r0 = 0; r0 < rows; r0 += block) {
        for (int s = 0; s < sums; ++s)
          for (i64 j = 0; j < n; ++j)
            part[s][j] = 0;
        const i64 end = least(r0 + block, rows);
        for (i64 r = r0; r < end; ++r) {
          const auto e = op.at(k, r);
          TROUPE_VECTORIZE
          for (i64 j = 0; j < n; ++j) {
            const auto v = e(c0 + j);
            for (int s = 0; s < sums; ++s)
              part[s][j] += v.value[s];
          }
        }
        for (int s = 0; s < sums; ++s)
          for (i64 j = 0; j < n; ++j)
            total[s][j] += part[s][j];
      }
      for (i64 j = 0; j < n; ++j) {
        float t[sums];
        for (int s = 0; s < sums; ++s)
          t[s] = total[s][j];
        op.finish(k, c0 + j, t);
      }
    }
  }
}

template <class Op>
void member_rows(const launch_target&, i64 members, i64 rows, const std::uint8_t* active, const Op& op) {
  for (i64 k = 0; k < members; ++k) {
    if (!takes_part(active, k))
      continue;
    auto total = Op::nothing();
    for (i64 r = 0; r < rows; ++r)
      total = Op::add(total, op.row(team{}, k, r));
    op.finish(k, total);
  }
}

template <class Op>
void block_sums(const launch_target&, i64 members, i64 n, const std::uint8_t* active, const Op& op) {
  constexpr i64 block = 4096;
  for (i64 k = 0; k < members; ++k) {
    if (!takes_part(active, k))
      continue;
    const auto e = op.at(k);
    double total = 0;
    for (i64 i = 0; i < n; i += block)
      total += double(team{}.sum(
          least(block, n - i), [=](i64 j) { return e.read(i + j); }, [=](float v) { return e.term(v); }));
    op.finish(k, total);
  }
}

template <class Op>
void per_member(const launch_target&, i64 members, const std::uint8_t* active, const Op& op) {
  for (i64 k = 0; k < members; ++k)
    if (takes_part(active, k))
      op(k);
}

} // namespace troupe::gpu::internal::TROUPE_KERNELS
