#include <algorithm>

#include "codelets/cuda/device.h"
#include "codelets/cuda/linear_finish.h"
#include "codelets/cuda/linear_strips.h"
#include "codelets/cuda/mma.h"
#include "codelets/cuda/neighbours.h"

namespace sluice::cuda {
namespace {

struct StripCall {
  const std::byte* weight;
  const std::byte* gate;   ///< null unless gated
  const std::uint16_t* x;  ///< [rows, in] bf16
  std::int64_t x_stride;
  bool x_aligned;  ///< every row starts at a multiple of 16 bytes
  std::int32_t rows;
  std::int64_t in;
  std::int64_t out;
  std::int32_t num_strips;
  std::int32_t num_steps;        ///< of depth
  std::int32_t steps_per_split;  ///< of a block
  float* parts;                  ///< [splits][1 or 2][rows][num_strips * 64]; null: blocks finish
  unsigned* arrived;  ///< by blocks of the same columns, see Context; null: finish_parts() follows
  LinearOutput output;

  __host__ __device__ LinearParts all_parts(std::int64_t splits) const {
    const std::int64_t stride = std::int64_t{num_strips} * strip_columns;
    const std::int64_t elements = rows * stride;
    return {.y = parts,
            .gate = output.gated ? parts + elements : nullptr,
            .count = splits,
            .elements = (output.gated ? 2 : 1) * elements,
            .stride = stride};
  }
};

/// Eight k of a row of x from `k` on; zero beyond its ends.
__device__ Words load_x(const StripCall& call, std::int32_t row, std::int64_t k) {
  Words words = {};
  if (row >= call.rows || k >= call.in) return words;
  const std::uint16_t* from = call.x + row * call.x_stride + k;
  if (call.x_aligned && k + 8 <= call.in) return *reinterpret_cast<const Words*>(from);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (k + i < call.in) words.word[i / 2] |= std::uint32_t{from[i]} << (16 * (i % 2));
  }
  return words;
}

constexpr int block_threads = 256;
constexpr int slices = block_threads / warp_threads / strips_per_block;
/// Floats between the rows of a tile in shared memory: rows four apart share no bank.
constexpr int tile_stride = strip_columns + 4;
constexpr int tile_rows = 16;

/// The last block to come here of those with the same columns, from `first_column` on, adds up what
/// all of them have left; in the same order whichever it is. The whole block.
__device__ void finish_columns(const StripCall& call, std::int64_t first_column, int columns) {
  __shared__ bool is_last;
  __syncthreads();  // what the block has left
  if (threadIdx.x == 0) {
    __threadfence();
    unsigned* arrived = call.arrived + blockIdx.x;
    is_last = atomicAdd(arrived, 1U) + 1 == gridDim.y;
    if (is_last) *arrived = 0;  // for the next call
    __threadfence();
  }
  __syncthreads();
  if (!is_last) return;
  const LinearParts parts = call.all_parts(gridDim.y);
  for (int i = static_cast<int>(threadIdx.x); i < call.rows * columns; i += block_threads) {
    const int row = i / columns;
    const std::int64_t column = first_column + i % columns;
    if (column >= call.out) continue;
    const std::int64_t at = row * parts.stride + column;
    put_finished(call.output, row, column, sum_parts(parts.y, parts, at),
                 call.output.gated ? sum_parts(parts.gate, parts, at) : 0);
  }
}

/// Up to 16 * Tiles rows of x by two strips: neighbours, or the same one of a gated pair. Four
/// warps share a strip, each takes every fourth step of depth. In a step lane 4 g + p takes k
/// 8 p .. 8 p + 7, of x from rows g and g + 8 of a tile, of W from columns 4 g .. 4 g + 3 of either
/// half of the strip: all loads are 16 bytes, and of W whole lines. So column 4 g + j of half h is
/// column g of the product's block (h, j), and k 8 p + 4 s .. + 3 are its step s's k 2 p, 2 p + 1,
/// 2 p + 8, 2 p + 9.
template <int Tiles>
__global__ void __launch_bounds__(block_threads, Tiles == 1 ? 2 : 1)
    multiply_strips(StripCall call) {
  __shared__ float4 tiles[strips_per_block][slices][tile_rows][tile_stride / 4];
  let_next_start();
  const int warp = static_cast<int>(threadIdx.x) / warp_threads;
  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
  const int group = lane / 4;
  const int place = lane % 4;
  const int side = warp / slices;
  const int slice = warp % slices;
  const bool gated = call.output.gated;
  const int first_strip = static_cast<int>(blockIdx.x) * (gated ? 1 : strips_per_block);
  const int strip = gated ? first_strip : first_strip + side;
  const std::int64_t line_words = strip_columns / 4;  // Words of one k-pair
  const Words* b = reinterpret_cast<const Words*>(gated && side == 1 ? call.gate : call.weight) +
                   strip * (call.num_steps * (step_depth / 2) * line_words) +
                   4 * place * line_words + group;

  MmaD sum[Tiles][2][4] = {};
  const int first_step = static_cast<int>(blockIdx.y) * call.steps_per_split;
  const int end_step = strip < call.num_strips
                           ? std::min(first_step + call.steps_per_split, call.num_steps)
                           : 0;  // an odd number of strips
  Words next[2][4];              // [h][pair]
  const auto load_weight = [&](int step) {
    const Words* from = b + step * (step_depth / 2 * line_words);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        next[h][pair] = load_streamed(from + pair * line_words + h * (line_words / 2));
      }
    }
  };
  int step = first_step + slice;
  if (step < end_step) load_weight(step);  // while the kernel before this one ends
  wait_for_last();
  for (; step < end_step; step += slices) {
    Words now[2][4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) now[h][pair] = next[h][pair];
    }
    if (step + slices < end_step) load_weight(step + slices);
#pragma unroll
    for (int tile = 0; tile < Tiles; ++tile) {
      const std::int64_t k = step * step_depth + 8 * place;
      const Words upper = load_x(call, tile * tile_rows + group, k);
      const Words lower = load_x(call, tile * tile_rows + group + 8, k);
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const MmaA a = {
            {upper.word[2 * s], lower.word[2 * s], upper.word[2 * s + 1], lower.word[2 * s + 1]}};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const MmaB of_w = {{now[h][2 * s].word[j], now[h][2 * s + 1].word[j]}};
            mma_16x8x16<DType::bf16>(sum[tile][h][j], a, of_w);
          }
        }
      }
    }
  }

  const std::int64_t part_stride = call.num_strips * strip_columns;
  const std::int64_t part_elements = call.rows * part_stride;
  float* part = call.parts;
  if (part != nullptr) part += std::int64_t{blockIdx.y} * (gated ? 2 : 1) * part_elements;
#pragma unroll
  for (int tile = 0; tile < Tiles; ++tile) {
    if (tile > 0) __syncthreads();  // the last tile was read
#pragma unroll
    for (int v = 0; v < 4; ++v) {  // of rows group and group + 8, columns 8 place + 4 (v % 2) + j
      float4* row = tiles[side][slice][group + v / 2 * 8];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        row[8 * h + 2 * place + v % 2] =
            make_float4(sum[tile][h][0].value[v], sum[tile][h][1].value[v],
                        sum[tile][h][2].value[v], sum[tile][h][3].value[v]);
      }
    }
    __syncthreads();
    const int count = tile_rows * static_cast<int>(strip_columns) * (gated ? 1 : strips_per_block);
    for (int i = static_cast<int>(threadIdx.x); i < count; i += block_threads) {
      const int column = i % static_cast<int>(strip_columns);
      const int row = i / static_cast<int>(strip_columns) % tile_rows;
      const int of_side = i / static_cast<int>(strip_columns * tile_rows);
      const std::int64_t to_row = tile * tile_rows + row;
      const std::int64_t to_column = (first_strip + of_side) * strip_columns + column;
      if (to_row >= call.rows || to_column >= call.out) continue;
      const auto add_slices = [&](int from) {
        float total = 0;
#pragma unroll
        for (int of_slice = 0; of_slice < slices; ++of_slice) {
          total += reinterpret_cast<const float*>(tiles[from][of_slice][row])[column];
        }
        return total;
      };
      const float y = add_slices(of_side);
      const float gate = gated ? add_slices(1) : 0;
      if (part == nullptr) {
        put_finished(call.output, to_row, to_column, y, gate);
      } else {
        part[to_row * part_stride + to_column] = y;
        if (gated) part[part_elements + to_row * part_stride + to_column] = gate;
      }
    }
  }
  if (call.arrived != nullptr) {
    finish_columns(call, first_strip * strip_columns,
                   static_cast<int>(strip_columns) * (gated ? 1 : strips_per_block));
  }
}

/// How few rows are computed, and in how much scratch memory.
struct StripPlan {
  std::int64_t tiles, num_strips, num_steps, blocks, splits, steps_per_split;
  std::size_t scratch_bytes;

  StripPlan(const Context& gpu, const LinearJob& job)
      : tiles(divide_up(job.rows, tile_rows)),
        num_strips(divide_up(job.blocks.out, strip_columns)),
        num_steps(divide_up(job.blocks.in, step_depth)),
        blocks(job.output.gated ? num_strips : divide_up(num_strips, strips_per_block)) {
    // One wave of blocks, each with some steps for every warp.
    constexpr std::int64_t least_steps = std::int64_t{2} * slices;
    const std::int64_t at_once =
        std::int64_t{gpu.num_multiprocessors} * (tiles == 1 ? strip_blocks_at_once : 1);
    const std::int64_t wanted = std::clamp<std::int64_t>(
        at_once / blocks, 1, std::max<std::int64_t>(1, num_steps / least_steps));
    steps_per_split = divide_up(num_steps, wanted);
    splits = divide_up(num_steps, steps_per_split);
    const std::int64_t matrices = job.output.gated ? 2 : 1;
    scratch_bytes =
        splits == 1
            ? 0
            : static_cast<std::size_t>(splits * matrices * job.rows * num_strips * strip_columns) *
                  sizeof(float);
  }

  static bool serves(const Context& gpu, const LinearJob& job) {
    return gpu.compute_capability >= 80 && job.rows <= most_strip_rows && job.format.is_plain() &&
           job.blocks.is_strips() && (!job.output.gated || job.gate_format == job.format);
  }
};

}  // namespace

bool strips_serve(const Context& gpu, const LinearJob& job) { return StripPlan::serves(gpu, job); }

std::size_t strips_scratch_bytes(const Context& gpu, const LinearJob& job) {
  return StripPlan(gpu, job).scratch_bytes;
}

void run_strips(const Context& gpu, const LinearJob& job, std::byte* scratch) {
  const StripPlan plan(gpu, job);
  // More rows are finished sooner by all multiprocessors.
  constexpr std::int64_t rows_of_last_block = 4;
  const bool last_block_finishes = plan.splits > 1 && job.rows <= rows_of_last_block;
  const StripCall call{.weight = job.weight,
                       .gate = job.gate,
                       .x = static_cast<const std::uint16_t*>(job.x),
                       .x_stride = job.x_stride,
                       .x_aligned = is_aligned(job.x) && job.x_stride % 8 == 0,
                       .rows = static_cast<std::int32_t>(job.rows),
                       .in = job.blocks.in,
                       .out = job.blocks.out,
                       .num_strips = static_cast<std::int32_t>(plan.num_strips),
                       .num_steps = static_cast<std::int32_t>(plan.num_steps),
                       .steps_per_split = static_cast<std::int32_t>(plan.steps_per_split),
                       .parts = plan.splits == 1 ? nullptr : reinterpret_cast<float*>(scratch),
                       .arrived = last_block_finishes ? gpu.arrived : nullptr,
                       .output = job.output};
  void (*const kernels[])(StripCall) = {multiply_strips<1>, multiply_strips<2>, multiply_strips<3>,
                                        multiply_strips<4>};
  launch("multiply_strips", kernels[plan.tiles - 1],
         {.blocks = dim3(static_cast<unsigned>(plan.blocks), static_cast<unsigned>(plan.splits)),
          .threads = dim3(block_threads),
          .early = starts_early(gpu)},
         gpu.stream, call);
  if (plan.splits == 1 || call.arrived != nullptr) return;
  finish_linear(gpu, call.all_parts(plan.splits), job.output, job.rows, job.blocks.out);
}

}  // namespace sluice::cuda
