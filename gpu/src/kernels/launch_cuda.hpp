#pragma once

#include "kernels/prelude.hpp"

#if !defined(TROUPE_CUDA_EMULATION)
#include "cuda_support.hpp"
#endif

/// The forms of launch_cpu.hpp on the GPU. Rows lie across threads of a warp, so that reads and writes coalesce; sums are
/// formed in a fixed order, without atomics, so that a run repeats bit for bit. Members lie on grid axis z or y, and every
/// kernel walks its axes in strides, so any size fits the limits of a grid.
///
/// Tests also run this file on the CPU (test/gpu/cuda_emulation.hpp), which then defines `enqueue` and CUDA's names.
namespace troupe::gpu::internal::TROUPE_KERNELS {

/// Whether the threads of a block or warp wait for each other; for the emulation.
enum class threads : std::uint8_t { independent, cooperating };

#if !defined(TROUPE_CUDA_EMULATION)
template <threads, class... Params, class... Args>
void enqueue(const launch_target& on, const char* form, void (*kernel)(Params...), dim3 grid, dim3 block,
             const Args&... args) {
  kernel<<<grid, block, 0, static_cast<cudaStream_t>(on.stream)>>>(args...);
  check_cuda(cudaGetLastError(), on.who, form, static_cast<cudaStream_t>(on.stream));
}
#endif

TROUPE_HD bool takes_part(const std::uint8_t* active, i64 member) {
  return active == nullptr || active[member] != 0;
}

inline unsigned blocks_for(i64 n, i64 per_block, i64 limit) {
  const i64 blocks = (n + per_block - 1) / per_block;
  return unsigned(blocks < limit ? blocks : limit);
}
constexpr i64 limit_x = 0x7fffffff, limit_yz = 65535; // of a grid, on every GPU since 3.0

/// 256 threads, as wide as the columns ask for.
inline dim3 block_for(i64 cols) {
  unsigned x = 1;
  while (x < 256 && i64(x) < cols)
    x *= 2;
  return dim3(x, 256 / x, 1);
}

// -- teams --------------------------------------------------------------------------------------------------------

/// A warp. All its 32 threads make the same calls; each gets the whole sum.
struct warp_team {
  unsigned lane;

  TROUPE_HD bool leader() const { return lane == 0; }

  template <class F>
  TROUPE_HD void each(i64 n, F f) const {
    for (i64 c = lane; c < n; c += 32)
      f(c);
  }
  template <class Read, class F, class Write>
  TROUPE_HD void map(i64 n, Read read, F f, Write write) const {
    for (i64 c = lane; c < n; c += 32)
      write(c, f(read(c)));
  }
  template <class Read, class F>
  __device__ float sum(i64 n, Read read, F f) const {
    float acc = 0;
    for (i64 c = lane; c < n; c += 32)
      acc += f(read(c));
    for (int step = 16; step > 0; step /= 2)
      acc += __shfl_xor_sync(0xffffffffu, acc, step);
    return acc;
  }
  template <class Read>
  __device__ float max(i64 n, Read read) const {
    float acc = -infinity();
    for (i64 c = lane; c < n; c += 32) {
      const float v = read(c);
      acc = v > acc ? v : acc;
    }
    for (int step = 16; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, acc, step);
      acc = other > acc ? other : acc;
    }
    return acc;
  }
};

/// A block that only shares out columns.
struct block_team {
  TROUPE_HD bool leader() const {
#if defined(__CUDA_ARCH__) || defined(TROUPE_CUDA_EMULATION)
    return threadIdx.x == 0;
#else
    return true;
#endif
  }
  template <class F>
  TROUPE_HD void each(i64 n, F f) const {
#if defined(__CUDA_ARCH__) || defined(TROUPE_CUDA_EMULATION)
    for (i64 c = threadIdx.x; c < n; c += blockDim.x)
      f(c);
#endif
  }
};

// -- element by element ---------------------------------------------------------------------------------------------

template <class Op>
__global__ void __launch_bounds__(256)
    map_kernel(i64 members, i64 rows, i64 cols, const std::uint8_t* active, const Op op) {
  for (i64 k = blockIdx.z; k < members; k += gridDim.z) {
    if (!takes_part(active, k))
      continue;
    for (i64 r = i64(blockIdx.y) * blockDim.y + threadIdx.y; r < rows; r += i64(gridDim.y) * blockDim.y) {
      const auto e = op.at(k, r);
      for (i64 c = i64(blockIdx.x) * blockDim.x + threadIdx.x; c < cols; c += i64(gridDim.x) * blockDim.x)
        e(c);
    }
  }
}

template <class Op>
void map(const launch_target& on, i64 members, i64 rows, i64 cols, const std::uint8_t* active, const Op& op) {
  if (members == 0 || rows == 0 || cols == 0)
    return;
  const dim3 block = block_for(cols);
  const dim3 grid(blocks_for(cols, block.x, limit_x), blocks_for(rows, block.y, limit_yz), blocks_for(members, 1, limit_yz));
  enqueue<threads::independent>(on, "elementwise kernel", map_kernel<Op>, grid, block, members, rows, cols, active, op);
}

template <class Op>
__global__ void __launch_bounds__(256) map_3d_kernel(i64 members, i64 outer, i64 rows, i64 cols, const Op op) {
  for (i64 k = blockIdx.z; k < members; k += gridDim.z)
    for (i64 line = i64(blockIdx.y) * blockDim.y + threadIdx.y; line < outer * rows;
         line += i64(gridDim.y) * blockDim.y) {
      const i64 q = quotient(line, rows);
      const auto e = op.at(k, q, line - q * rows);
      for (i64 c = i64(blockIdx.x) * blockDim.x + threadIdx.x; c < cols; c += i64(gridDim.x) * blockDim.x)
        e(c);
    }
}

template <class Op>
void map_3d(const launch_target& on, i64 members, i64 outer, i64 rows, i64 cols, const Op& op) {
  if (members == 0 || outer == 0 || rows == 0 || cols == 0)
    return;
  const dim3 block = block_for(cols);
  const dim3 grid(blocks_for(cols, block.x, limit_x), blocks_for(outer * rows, block.y, limit_yz),
                  blocks_for(members, 1, limit_yz));
  enqueue<threads::independent>(on, "image kernel", map_3d_kernel<Op>, grid, block, members, outer, rows, cols, op);
}

template <class Op>
__global__ void __launch_bounds__(256) sum_terms_3d_kernel(i64 members, i64 outer, i64 rows, i64 cols, const Op op) {
  for (i64 k = blockIdx.z; k < members; k += gridDim.z)
    for (i64 line = i64(blockIdx.y) * blockDim.y + threadIdx.y; line < outer * rows;
         line += i64(gridDim.y) * blockDim.y) {
      const i64 q = quotient(line, rows);
      const auto e = op.at(k, q, line - q * rows);
      for (i64 c = i64(blockIdx.x) * blockDim.x + threadIdx.x; c < cols; c += i64(gridDim.x) * blockDim.x) {
        float sum = 0;
        e.each_term([&](const float* term) { sum += term[c]; });
        e.store(c, sum);
      }
    }
}

template <class Op>
void sum_terms_3d(const launch_target& on, i64 members, i64 outer, i64 rows, i64 cols, const Op& op) {
  if (members == 0 || outer == 0 || rows == 0 || cols == 0)
    return;
  const dim3 block = block_for(cols);
  const dim3 grid(blocks_for(cols, block.x, limit_x), blocks_for(outer * rows, block.y, limit_yz),
                  blocks_for(members, 1, limit_yz));
  enqueue<threads::independent>(on, "image sum kernel", sum_terms_3d_kernel<Op>, grid, block, members, outer, rows, cols,
                                op);
}

/// A thread draws for four elements that lie 16 apart.
template <class Op>
__global__ void __launch_bounds__(256) random_map_kernel(i64 members, i64 rows, i64 cols, const Op op) {
  const i64 total = rows * cols, draws = (total + 63) / 64 * 16;
  for (i64 k = blockIdx.y; k < members; k += gridDim.y) {
    const bool random = op.random(k);
    for (i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x; i < draws; i += i64(gridDim.x) * blockDim.x) {
      const i64 group = i / 16, lane = i % 16;
      auto words = op.draw(k, u64(group), u32(lane));
      for (int w = 0; w < 4; ++w) {
        const i64 element = group * 64 + w * 16 + lane;
        if (element >= total)
          break;
        const i64 r = quotient(element, cols);
        op.at(k, r)(element - r * cols, random ? words.w[w] : 0xffffffffu);
      }
    }
  }
}

template <class Op>
void random_map(const launch_target& on, i64 members, i64 rows, i64 cols, const Op& op) {
  if (members == 0 || rows == 0 || cols == 0)
    return;
  const dim3 grid(blocks_for((rows * cols + 63) / 64 * 16, 256, limit_x), blocks_for(members, 1, limit_yz), 1);
  enqueue<threads::independent>(on, "random kernel", random_map_kernel<Op>, grid, dim3(256, 1, 1), members, rows, cols,
                                op);
}

template <class Op>
__global__ void __launch_bounds__(64) per_member_kernel(i64 members, const std::uint8_t* active, const Op op) {
  const i64 k = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (k < members && takes_part(active, k))
    op(k);
}

template <class Op>
void per_member(const launch_target& on, i64 members, const std::uint8_t* active, const Op& op) {
  if (members == 0)
    return;
  enqueue<threads::independent>(on, "member kernel", per_member_kernel<Op>, dim3(blocks_for(members, 64, limit_x), 1, 1),
                                dim3(64, 1, 1), members, active, op);
}

// -- row by row -----------------------------------------------------------------------------------------------------

/// A warp a row.
template <class Op>
__global__ void __launch_bounds__(256) rowwise_kernel(i64 members, i64 rows, const Op op) {
  for (i64 k = blockIdx.y; k < members; k += gridDim.y)
    for (i64 r = i64(blockIdx.x) * blockDim.y + threadIdx.y; r < rows; r += i64(gridDim.x) * blockDim.y)
      op(warp_team{threadIdx.x}, k, r);
}

template <class Op>
void rowwise(const launch_target& on, i64 members, i64 rows, const Op& op) {
  if (members == 0 || rows == 0)
    return;
  enqueue<threads::cooperating>(on, "row kernel", rowwise_kernel<Op>,
                                dim3(blocks_for(rows, 8, limit_x), blocks_for(members, 1, limit_yz), 1), dim3(32, 8, 1),
                                members, rows, op);
}

/// A block a row; its first thread finds the source.
template <class Op>
__global__ void __launch_bounds__(128) indexed_rows_kernel(i64 members, i64 rows, const Op op) {
  __shared__ i64 source;
  for (i64 k = blockIdx.y; k < members; k += gridDim.y)
    for (i64 r = blockIdx.x; r < rows; r += gridDim.x) {
      if (threadIdx.x == 0)
        source = op.member(k).source(r);
      __syncthreads();
      op.row(block_team{}, k, r, source);
      __syncthreads();
    }
}

template <class Op>
void indexed_rows(const launch_target& on, i64 members, i64 rows, const Op& op) {
  if (members == 0 || rows == 0)
    return;
  enqueue<threads::cooperating>(on, "gather kernel", indexed_rows_kernel<Op>,
                                dim3(blocks_for(rows, 1, limit_x), blocks_for(members, 1, limit_yz), 1), dim3(128, 1, 1),
                                members, rows, op);
}

/// A block a member, a warp a row; the warps' totals are added up in order.
template <class Op>
__global__ void __launch_bounds__(512) member_rows_kernel(i64 members, i64 rows, const std::uint8_t* active, const Op op) {
  using value = decltype(Op::nothing());
  __shared__ value totals[16];
  for (i64 k = blockIdx.x; k < members; k += gridDim.x) {
    if (!takes_part(active, k))
      continue;
    value mine = Op::nothing();
    for (i64 r = threadIdx.y; r < rows; r += blockDim.y)
      mine = Op::add(mine, op.row(warp_team{threadIdx.x}, k, r));
    if (threadIdx.x == 0)
      totals[threadIdx.y] = mine;
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) {
      value total = totals[0];
      for (unsigned w = 1; w < blockDim.y; ++w)
        total = Op::add(total, totals[w]);
      op.finish(k, total);
    }
    __syncthreads();
  }
}

template <class Op>
void member_rows(const launch_target& on, i64 members, i64 rows, const std::uint8_t* active, const Op& op) {
  if (members == 0)
    return;
  enqueue<threads::cooperating>(on, "loss kernel", member_rows_kernel<Op>, dim3(blocks_for(members, 1, limit_x), 1, 1),
                                dim3(32, 16, 1), members, rows, active, op);
}

/// A block a target, a thread a column. The block looks at as many rows at once as it has threads, so that finding the few rows
/// that count costs little; each thread then adds them up in order.
template <class Op>
__global__ void __launch_bounds__(256) scatter_rows_kernel(i64 members, i64 rows, i64 targets, i64 cols, const Op op) {
  __shared__ u64 hits[32]; // a byte for each of up to 256 rows
  for (i64 k = blockIdx.z; k < members; k += gridDim.z)
    for (i64 t = blockIdx.y; t < targets; t += gridDim.y)
      for (i64 c0 = i64(blockIdx.x) * blockDim.x; c0 < cols; c0 += i64(gridDim.x) * blockDim.x) {
        const i64 c = c0 + threadIdx.x;
        float sum = 0;
        for (i64 r0 = 0; r0 < rows; r0 += blockDim.x) {
          const i64 mine = r0 + threadIdx.x;
          reinterpret_cast<unsigned char*>(hits)[threadIdx.x] = mine < rows && op.target(k, mine) == t ? 1 : 0;
          __syncthreads();
          for (unsigned w = 0; c < cols && w < blockDim.x / 8; ++w) {
            if (hits[w] == 0)
              continue;
            for (unsigned i = 8 * w; i < 8 * w + 8; ++i)
              if (reinterpret_cast<const unsigned char*>(hits)[i] != 0)
                sum += op.row(k, r0 + i)[c];
          }
          __syncthreads();
        }
        if (c < cols)
          op.out(k, t)[c] = sum;
      }
}

template <class Op>
void scatter_rows(const launch_target& on, i64 members, i64 rows, i64 targets, i64 cols, const Op& op) {
  if (members == 0 || targets == 0 || cols == 0)
    return;
  unsigned width = 32;
  while (width < 256 && i64(width) < cols)
    width *= 2;
  enqueue<threads::cooperating>(
      on, "scatter kernel", scatter_rows_kernel<Op>,
      dim3(blocks_for(cols, width, limit_x), blocks_for(targets, 1, limit_yz), blocks_for(members, 1, limit_yz)),
      dim3(width, 1, 1), members, rows, targets, cols, op);
}

// -- sums over rows ---------------------------------------------------------------------------------------------------

/// A block of 32 columns and 16 threads a column. Where there are few columns and many rows, the rows are split among
/// blocks, and `split_sums` of (member, split, sum, column) take what each of them found.
template <class Op>
__global__ void __launch_bounds__(512) columnwise_kernel(i64 members, i64 rows, i64 cols, i64 rows_per_split,
                                                         const std::uint8_t* active, float* split_sums, const Op op) {
  constexpr int sums = Op::sums;
  __shared__ float partial[sums][16][32];
  const i64 c = i64(blockIdx.x) * 32 + threadIdx.x;
  const i64 begin = i64(blockIdx.y) * rows_per_split;
  const i64 end = least(begin + rows_per_split, rows);
  for (i64 k = blockIdx.z; k < members; k += gridDim.z) {
    if (!takes_part(active, k))
      continue;
    float acc[sums];
    for (int s = 0; s < sums; ++s)
      acc[s] = 0;
    if (c < cols)
      for (i64 r = begin + threadIdx.y; r < end; r += 16) {
        const auto v = op.at(k, r)(c);
        for (int s = 0; s < sums; ++s)
          acc[s] += v.value[s];
      }
    for (int s = 0; s < sums; ++s)
      partial[s][threadIdx.y][threadIdx.x] = acc[s];
    __syncthreads();
    if (threadIdx.y == 0 && c < cols) {
      float total[sums];
      for (int s = 0; s < sums; ++s) {
        total[s] = 0;
        for (int y = 0; y < 16; ++y)
          total[s] += partial[s][y][threadIdx.x];
      }
      if (split_sums == nullptr)
        op.finish(k, c, total);
      else
        for (int s = 0; s < sums; ++s)
          split_sums[((k * gridDim.y + blockIdx.y) * sums + s) * cols + c] = total[s];
    }
    __syncthreads();
  }
}

template <class Op>
__global__ void __launch_bounds__(128) columnwise_finish_kernel(i64 members, i64 cols, i64 splits, const std::uint8_t* active,
                                                                const float* split_sums, const Op op) {
  constexpr int sums = Op::sums;
  const i64 c = i64(blockIdx.x) * blockDim.x + threadIdx.x;
  for (i64 k = blockIdx.y; k < members; k += gridDim.y) {
    if (c >= cols || !takes_part(active, k))
      continue;
    float total[sums];
    for (int s = 0; s < sums; ++s) {
      total[s] = 0;
      for (i64 i = 0; i < splits; ++i)
        total[s] += split_sums[((k * splits + i) * sums + s) * cols + c];
    }
    op.finish(k, c, total);
  }
}

template <class Op>
void columnwise(const launch_target& on, i64 members, i64 rows, i64 cols, const std::uint8_t* active, const Op& op) {
  if (members == 0 || cols == 0)
    return;
  const i64 tiles = (cols + 31) / 32, wanted_blocks = 512; // two waves on the largest GPUs
  i64 splits = wanted_blocks / (tiles * members);
  splits = least(splits, rows / 512); // at least 32 rows a thread, or the second kernel costs more than it brings
  splits = least(splits, on.scratch_floats / (members * cols * Op::sums));
  if (splits < 2)
    splits = 1;
  const i64 rows_per_split = (rows + splits - 1) / splits;
  float* const split_sums = splits > 1 ? on.scratch : nullptr;
  const unsigned z = blocks_for(members, 1, limit_yz);
  enqueue<threads::cooperating>(on, "column kernel", columnwise_kernel<Op>, dim3(unsigned(tiles), unsigned(splits), z),
                                dim3(32, 16, 1), members, rows, cols, rows_per_split, active, split_sums, op);
  if (splits > 1)
    enqueue<threads::independent>(on, "column sum kernel", columnwise_finish_kernel<Op>,
                                  dim3(blocks_for(cols, 128, limit_x), z, 1), dim3(128, 1, 1), members, cols, splits,
                                  active, static_cast<const float*>(split_sums), op);
}

// -- sums over vectors --------------------------------------------------------------------------------------------------

/// The sum of a block's 256 values, in thread 0.
template <class T>
__device__ T block_sum(T mine, T* shared) {
  shared[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned half = 128; half > 0; half /= 2) {
    if (threadIdx.x < half)
      shared[threadIdx.x] += shared[threadIdx.x + half];
    __syncthreads();
  }
  return shared[0];
}

template <class Op>
__global__ void __launch_bounds__(256) block_sums_kernel(i64 members, i64 n, i64 per_block, const std::uint8_t* active,
                                                         const Op op) {
  __shared__ float shared[256];
  const i64 begin = i64(blockIdx.x) * per_block, end = least(begin + per_block, n);
  for (i64 k = blockIdx.y; k < members; k += gridDim.y) {
    if (!takes_part(active, k))
      continue;
    const auto e = op.at(k);
    float acc = 0;
    for (i64 i = begin + threadIdx.x; i < end; i += 256)
      acc += e.term(e.read(i));
    acc = block_sum(acc, shared);
    if (threadIdx.x == 0)
      op.partial(k)[blockIdx.x] = acc;
    __syncthreads();
  }
}

template <class Op>
__global__ void __launch_bounds__(256) block_sums_finish_kernel(i64 members, i64 blocks, const std::uint8_t* active,
                                                                const Op op) {
  __shared__ double shared[256];
  for (i64 k = blockIdx.x; k < members; k += gridDim.x) {
    if (!takes_part(active, k))
      continue;
    const double total = block_sum(i64(threadIdx.x) < blocks ? double(op.partial(k)[threadIdx.x]) : 0.0, shared);
    if (threadIdx.x == 0)
      op.finish(k, total);
    __syncthreads();
  }
}

/// op.partial(member) gives room for 256 floats.
template <class Op>
void block_sums(const launch_target& on, i64 members, i64 n, const std::uint8_t* active, const Op& op) {
  if (members == 0)
    return;
  i64 blocks = least(256, (n + 4095) / 4096);
  if (blocks == 0)
    blocks = 1;
  const i64 per_block = (n + blocks - 1) / blocks;
  enqueue<threads::cooperating>(on, "sum kernel", block_sums_kernel<Op>,
                                dim3(unsigned(blocks), blocks_for(members, 1, limit_yz), 1), dim3(256, 1, 1), members, n,
                                per_block, active, op);
  enqueue<threads::cooperating>(on, "sum kernel", block_sums_finish_kernel<Op>, dim3(blocks_for(members, 1, limit_x), 1, 1),
                                dim3(256, 1, 1), members, blocks, active, op);
}

} // namespace troupe::gpu::internal::TROUPE_KERNELS
