#include <algorithm>

#include "codelets/cuda/device.h"
#include "codelets/cuda/linear_finish.h"
#include "codelets/cuda/linear_strips.h"
#include "codelets/cuda/strip_product.h"

namespace sluice::cuda {
namespace {

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

/// Up to 16 * Strips::tiles rows of x by two strips, see multiply_two_strips().
template <typename Strips>
__global__ void __launch_bounds__(block_threads, Strips::tiles == 1 ? 2 : 1)
    multiply_strips(StripCall call) {
  let_next_start();
  const bool gated = call.output.gated;
  const int first_strip = static_cast<int>(blockIdx.x) * (gated ? 1 : strips_per_block);
  const int first_step = static_cast<int>(blockIdx.y) * call.steps_per_split;
  const std::int64_t part_stride = call.num_strips * strip_columns;
  const std::int64_t part_elements = call.rows * part_stride;
  float* part = call.parts;
  if (part != nullptr) part += std::int64_t{blockIdx.y} * (gated ? 2 : 1) * part_elements;
  multiply_two_strips<Strips>(call, first_strip, first_step,
                              std::min(first_step + call.steps_per_split, call.num_steps),
                              [&](std::int64_t row, std::int64_t column, float y, float gate) {
                                if (part == nullptr) {
                                  put_finished(call.output, row, column, y, gate);
                                } else {
                                  part[row * part_stride + column] = y;
                                  if (gated)
                                    part[part_elements + row * part_stride + column] = gate;
                                }
                              });
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

/// The kernels of these strips, see strip_kernel().
struct StripKernels {
  using Kernel = void (*)(StripCall);
  template <typename Strips>
  static Kernel of() {
    return multiply_strips<Strips>;
  }
  static constexpr bool has_tiles(int /*tiles*/) { return true; }
};

}  // namespace

bool strips_serve(const Context& gpu, const LinearJob& job) {
  const bool are_strips = job.format.is_plain() ? job.blocks.is_strips()  //
                                                : job.blocks.dtype == DType::bf16;
  return gpu.compute_capability >= 80 && job.rows <= most_strip_rows && are_strips &&
         (!job.output.gated || job.gate_format == job.format) &&
         strip_kernel<StripKernels>(job.format, StripPlan(gpu, job).tiles) != nullptr;
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
                       .codes = code_strips(job.format, job.blocks.in),
                       .output = job.output};
  launch("multiply_strips", strip_kernel<StripKernels>(job.format, plan.tiles),
         {.blocks = dim3(static_cast<unsigned>(plan.blocks), static_cast<unsigned>(plan.splits)),
          .threads = dim3(block_threads),
          .early = starts_early(gpu)},
         gpu.stream, call);
  if (plan.splits == 1 || call.arrived != nullptr) return;
  finish_linear(gpu, call.all_parts(plan.splits), job.output, job.rows, job.blocks.out);
}

}  // namespace sluice::cuda
