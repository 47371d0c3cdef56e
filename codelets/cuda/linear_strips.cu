#include <algorithm>
#include <bit>

#include "codelets/cuda/device.h"
#include "codelets/cuda/linear_finish.h"
#include "codelets/cuda/linear_strips.h"
#include "codelets/cuda/strip_readers.h"
#include "codelets/kernels/quantized/strip.h"

namespace sluice::cuda {
namespace {

/// Floats between the rows of a tile in shared memory: rows four apart share no bank.
constexpr int tile_stride = strip_columns + 4;

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

/// Up to 16 * Strips::tiles rows of x by two strips: neighbours, or the same one of a gated pair.
/// Four warps share a strip, each takes every fourth step of depth, as `Strips` multiplies it.
template <typename Strips>
__global__ void __launch_bounds__(block_threads, Strips::tiles == 1 ? 2 : 1)
    multiply_strips(StripCall call) {
  constexpr int num_tiles = Strips::tiles;
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
  Strips strips(call, gated && side == 1 ? call.gate : call.weight, strip, lane);

  MmaD sum[num_tiles][2][4] = {};
  const int first_step = static_cast<int>(blockIdx.y) * call.steps_per_split;
  const int end_step = strip < call.num_strips
                           ? std::min(first_step + call.steps_per_split, call.num_steps)
                           : 0;  // an odd number of strips
  int step = first_step + slice;
  strips.start(step, end_step);  // while the kernel before this one ends
  wait_for_last();
  for (; step < end_step; step += Strips::steps * slices) {
    strips.multiply(call, step, end_step, sum);
  }

  const std::int64_t part_stride = call.num_strips * strip_columns;
  const std::int64_t part_elements = call.rows * part_stride;
  float* part = call.parts;
  if (part != nullptr) part += std::int64_t{blockIdx.y} * (gated ? 2 : 1) * part_elements;
#pragma unroll
  for (int tile = 0; tile < num_tiles; ++tile) {
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
    // One wave of blocks, each with some steps for every warp. Of codes as many whatever the rows,
    // in two waves if they are more than a tile: a row's sums are the same in every batch.
    constexpr std::int64_t least_steps = std::int64_t{2} * slices;
    const std::int64_t at_once = std::int64_t{gpu.num_multiprocessors} *
                                 (tiles == 1 || !job.format.is_plain() ? strip_blocks_at_once : 1);
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
};

using StripKernel = void (*)(StripCall);

template <WeightFormat::Codes codes, int ScaleBytes, bool HasZeroPoints>
StripKernel coded_kernel(std::int64_t tiles) {
  constexpr StripKernel kernels[] = {
      multiply_strips<CodedStrips<1, codes, ScaleBytes, HasZeroPoints>>,
      multiply_strips<CodedStrips<2, codes, ScaleBytes, HasZeroPoints>>,
      multiply_strips<CodedStrips<3, codes, ScaleBytes, HasZeroPoints>>,
      multiply_strips<CodedStrips<4, codes, ScaleBytes, HasZeroPoints>>};
  return kernels[tiles - 1];
}

/// The kernel for strips of codes with scales of 2 or of 4 bytes; null for others.
template <WeightFormat::Codes codes, bool HasZeroPoints>
StripKernel coded_kernel(std::int64_t tiles, std::size_t scale_bytes) {
  if (scale_bytes == 2) return coded_kernel<codes, 2, HasZeroPoints>(tiles);
  if (scale_bytes == 4) return coded_kernel<codes, 4, HasZeroPoints>(tiles);
  return nullptr;
}

/// Null where none multiplies such strips.
StripKernel kernel_of(const WeightFormat& format, std::int64_t tiles) {
  using Codes = WeightFormat::Codes;
  constexpr StripKernel plain[] = {multiply_strips<PlainStrips<1>>, multiply_strips<PlainStrips<2>>,
                                   multiply_strips<PlainStrips<3>>,
                                   multiply_strips<PlainStrips<4>>};
  const std::size_t scale_bytes = size_bytes(format.scales);
  switch (format.codes) {
    case Codes::bf16:
      return plain[tiles - 1];
    case Codes::int4:
      return format.has_zero_points ? coded_kernel<Codes::int4, true>(tiles, scale_bytes)
                                    : coded_kernel<Codes::int4, false>(tiles, scale_bytes);
    case Codes::int8:
      return format.has_zero_points ? coded_kernel<Codes::int8, true>(tiles, scale_bytes)
                                    : coded_kernel<Codes::int8, false>(tiles, scale_bytes);
    case Codes::fp8:
      return coded_kernel<Codes::fp8, false>(tiles, scale_bytes);
    case Codes::fp4:
      return scale_bytes == 1 ? coded_kernel<Codes::fp4, 1, false>(tiles) : nullptr;
    default:
      return nullptr;
  }
}

CodeStrips code_strips(const LinearJob& job) {
  if (job.format.is_plain()) return {};
  const quantized::StripLayout layout(job.format, job.blocks.in);
  const auto steps_of_group = static_cast<unsigned>(layout.group() / step_depth);
  const bool one_group = layout.num_groups() == 1;
  return {.strip_bytes = layout.size_bytes(),
          .group_shift = one_group ? 30 : std::countr_zero(steps_of_group),
          .tail_bytes =
              static_cast<std::int32_t>(layout.group_bytes() - layout.code_bytes(layout.group())),
          .scales = job.format.scales};
}

}  // namespace

bool strips_serve(const Context& gpu, const LinearJob& job) {
  const bool are_strips = job.format.is_plain() ? job.blocks.is_strips()  //
                                                : job.blocks.dtype == DType::bf16;
  return gpu.compute_capability >= 80 && job.rows <= most_strip_rows && are_strips &&
         (!job.output.gated || job.gate_format == job.format) &&
         kernel_of(job.format, StripPlan(gpu, job).tiles) != nullptr;
}

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
                       .x_stride = static_cast<std::int32_t>(job.x_stride),
                       .x_aligned = is_aligned(job.x) && job.x_stride % 8 == 0,
                       .rows = static_cast<std::int32_t>(job.rows),
                       .in = static_cast<std::int32_t>(job.blocks.in),
                       .out = job.blocks.out,
                       .num_strips = static_cast<std::int32_t>(plan.num_strips),
                       .num_steps = static_cast<std::int32_t>(plan.num_steps),
                       .steps_per_split = static_cast<std::int32_t>(plan.steps_per_split),
                       .parts = plan.splits == 1 ? nullptr : reinterpret_cast<float*>(scratch),
                       .arrived = last_block_finishes ? gpu.arrived : nullptr,
                       .codes = code_strips(job),
                       .output = job.output};
  launch("multiply_strips", kernel_of(job.format, plan.tiles),
         {.blocks = dim3(static_cast<unsigned>(plan.blocks), static_cast<unsigned>(plan.splits)),
          .threads = dim3(block_threads),
          .early = starts_early(gpu)},
         gpu.stream, call);
  if (plan.splits == 1 || call.arrived != nullptr) return;
  finish_linear(gpu, call.all_parts(plan.splits), job.output, job.rows, job.blocks.out);
}

}  // namespace sluice::cuda
