#pragma once

#include "kernels/elementwise.hpp"

/// Images in NHWC order: row (n h + y) w + x of a matrix is a pixel, a column is a channel.
namespace troupe::gpu::internal::TROUPE_KERNELS {

/// One line of a window over one line of outputs: kw pixels of an image lie side by side in memory, so that a whole
/// run of kw * c numbers is copied at once. outer = (image, output line, window line), row = output column.
struct im2col_op {
  columns_args a;

  struct element {
    const float* in;
    float* out;
    i64 begin, end; // what lies within the image
    TROUPE_HD void operator()(i64 j) const { out[j] = j >= begin && j < end ? in[j] : 0.0f; }
  };
  TROUPE_HD element at(i64 k, i64 outer, i64 ox) const {
    const window& s = a.s;
    const i64 line = quotient(outer, s.kh), ky = outer - line * s.kh, image = quotient(line, s.oh), oy = line - image * s.oh;
    const i64 iy = oy * s.stride - s.pad + ky, ix = ox * s.stride - s.pad, run = s.kw * s.c;
    const bool inside = iy >= 0 && iy < s.h;
    const float* in = a.in.data + k * a.in.stride + (image * s.h + (inside ? iy : 0)) * s.w * s.c + ix * s.c;
    float* out = row_of(a.out, k, line * s.ow + ox) + ky * run;
    const i64 begin = ix < 0 ? -ix * s.c : 0;
    return {in, out, begin, inside ? least(run, (s.w - ix) * s.c) : 0};
  }

#if !defined(__CUDACC__)
  /// Nearly all windows lie within the image: their runs are copied without looking at every number.
  TROUPE_HD void all_rows(i64 k, i64 outer) const {
    const window& s = a.s;
    const i64 run = s.kw * s.c;
    i64 ox = 0;
    const auto careful = [&](i64 end) {
      for (; ox < end; ++ox) {
        const element e = at(k, outer, ox);
        for (i64 j = 0; j < run; ++j)
          e(j);
      }
    };
    const i64 left = (s.pad + s.stride - 1) / s.stride; // the first window that begins within the line
    const i64 whole = s.w + s.pad >= s.kw ? least(s.ow, (s.w + s.pad - s.kw) / s.stride + 1) : 0;
    if (left >= whole || at(k, outer, left).end == 0) {
      careful(s.ow);
      return;
    }
    careful(left);
    const element e = at(k, outer, left);
    const float* in = e.in;
    float* out = e.out;
    const i64 in_step = s.stride * s.c, out_step = a.out.ld;
    if (run == 3) { // one channel: a loop would cost more than the copy
      for (; ox < whole; ++ox, in += in_step, out += out_step) {
        const float x = in[0], y = in[1], z = in[2];
        out[0] = x, out[1] = y, out[2] = z;
      }
    } else {
      for (; ox < whole; ++ox, in += in_step, out += out_step) {
        i64 j = 0;
        for (; j + 16 <= run; j += 16)
          TROUPE_VECTORIZE
          for (int l = 0; l < 16; ++l)
            out[j + l] = in[j + l];
        for (; j < run; ++j)
          out[j] = in[j];
      }
    }
    careful(s.ow);
  }
#endif
};

inline void im2col(const launch_target& on, const columns_args& a) {
  map_3d(on, a.members, a.s.n * a.s.oh * a.s.kh, a.s.ow, a.s.kw * a.s.c, im2col_op{a});
}

/// The outputs whose windows cover pixel p of a line: begin to end - 1.
struct cover {
  i64 begin, end;
};
TROUPE_HD cover covering(i64 p, i64 pad, i64 kernel, i64 stride, i64 outputs) {
  const i64 last = p + pad, first = last - kernel + 1;
  const i64 begin = first <= 0 ? 0 : (stride == 1 ? first : quotient(first + stride - 1, stride));
  return {begin, least(outputs, (stride == 1 ? last : quotient(last, stride)) + 1)};
}

struct col2im_op {
  columns_args a;

  struct element {
    const float* columns; // of this image
    float* out;
    cover y, x;
    i64 top, left; // of the pixel in the padded image
    i64 ld, ow, kw, stride, c;

    template <class F>
    TROUPE_HD void each_term(F f) const {
      for (i64 oy = y.begin; oy < y.end; ++oy)
        for (i64 ox = x.begin; ox < x.end; ++ox)
          f(columns + (oy * ow + ox) * ld + ((top - oy * stride) * kw + left - ox * stride) * c);
    }
    TROUPE_HD void store(i64 j, float v) const { out[j] = v; }
  };
  TROUPE_HD element at(i64 k, i64 outer, i64 ix) const {
    const window& s = a.s;
    const i64 image = quotient(outer, s.h), iy = outer - image * s.h;
    return {row_of(a.in, k, image * s.oh * s.ow),
            row_of(a.out, k, outer * s.w + ix),
            covering(iy, s.pad, s.kh, s.stride, s.oh),
            covering(ix, s.pad, s.kw, s.stride, s.ow),
            iy + s.pad,
            ix + s.pad,
            a.in.ld,
            s.ow,
            s.kw,
            s.stride,
            s.c};
  }
};

inline void col2im(const launch_target& on, const columns_args& a) {
  sum_terms_3d(on, a.members, a.s.n * a.s.h, a.s.w, a.s.c, col2im_op{a});
}

/// `Size` 2 or 3: a square window known to the compiler; 0: any.
template <int Size>
struct max_pool_op {
  max_pool_args a;

  struct element {
    const float* x; // the window's first pixel
    float* y;
    std::uint8_t* argmax;
    i64 ld, line, kh, kw;
    TROUPE_HD void operator()(i64 c) const {
      const i64 h = Size > 0 ? Size : kh, w = Size > 0 ? Size : kw;
      float best = x[c];
      i32 at = 0;
      for (i64 i = 0; i < h; ++i)
        for (i64 j = 0; j < w; ++j) {
          const float v = x[i * line + j * ld + c];
          const bool better = v > best || v != v; // NaN wins, to be seen
          best = better ? v : best;
          at = better ? i32(i * w + j) : at;
        }
      y[c] = best;
      argmax[c] = std::uint8_t(at);
    }
  };
  TROUPE_HD element at(i64 k, i64 outer, i64 ox) const {
    const window& s = a.s;
    const i64 image = quotient(outer, s.oh), oy = outer - image * s.oh;
    return {row_of(a.x, k, (image * s.h + oy * s.stride) * s.w + ox * s.stride),
            row_of(a.y, k, outer * s.ow + ox),
            row_of(a.argmax, k, outer * s.ow + ox),
            a.x.ld,
            a.x.ld * s.w,
            s.kh,
            s.kw};
  }
};

inline void max_pool(const launch_target& on, const max_pool_args& a) {
  const i64 outer = a.s.n * a.s.oh;
  if (a.s.kh == 2 && a.s.kw == 2)
    map_3d(on, a.members, outer, a.s.ow, a.s.c, max_pool_op<2>{a});
  else if (a.s.kh == 3 && a.s.kw == 3)
    map_3d(on, a.members, outer, a.s.ow, a.s.c, max_pool_op<3>{a});
  else
    map_3d(on, a.members, outer, a.s.ow, a.s.c, max_pool_op<0>{a});
}

/// `Overlap` false: no pixel lies in two windows.
template <bool Overlap>
struct max_pool_backward_op {
  max_pool_backward_args a;

  struct element {
    const float* dy; // of this image
    const std::uint8_t* argmax;
    float* dx;
    cover y, x;
    i64 iy, ix, dy_ld, argmax_ld, ow, kw, stride;
    TROUPE_HD void operator()(i64 c) const {
      if constexpr (Overlap) {
        float sum = 0;
        for (i64 oy = y.begin; oy < y.end; ++oy)
          for (i64 ox = x.begin; ox < x.end; ++ox) {
            const i64 place = (iy - oy * stride) * kw + ix - ox * stride, o = oy * ow + ox;
            sum += argmax[o * argmax_ld + c] == place ? dy[o * dy_ld + c] : 0.0f;
          }
        dx[c] = sum;
      } else {
        // Outside every window no place fits, and the first output's numbers are read in vain.
        const bool inside = y.begin < y.end && x.begin < x.end;
        const i64 o = inside ? y.begin * ow + x.begin : 0;
        const i32 place = inside ? i32((iy - y.begin * stride) * kw + ix - x.begin * stride) : -1;
        dx[c] = i32(argmax[o * argmax_ld + c]) == place ? dy[o * dy_ld + c] : 0.0f;
      }
    }
  };
  TROUPE_HD element at(i64 k, i64 outer, i64 ix) const {
    const window& s = a.s;
    const i64 image = quotient(outer, s.h), iy = outer - image * s.h, first = image * s.oh * s.ow;
    return {row_of(a.dy, k, first),
            row_of(a.argmax, k, first),
            row_of(a.dx, k, outer * s.w + ix),
            covering(iy, 0, s.kh, s.stride, s.oh),
            covering(ix, 0, s.kw, s.stride, s.ow),
            iy,
            ix,
            a.dy.ld,
            a.argmax.ld,
            s.ow,
            s.kw,
            s.stride};
  }
};

inline void max_pool_backward(const launch_target& on, const max_pool_backward_args& a) {
  with_flag(a.s.kh > a.s.stride || a.s.kw > a.s.stride, [&](auto overlap) {
    map_3d(on, a.members, a.s.n * a.s.h, a.s.w, a.s.c, max_pool_backward_op<decltype(overlap)::value>{a});
  });
}

} // namespace troupe::gpu::internal::TROUPE_KERNELS
