#include "codelets/cuda/device.h"
#include "codelets/cuda/strip_product.h"
#include "codelets/experts/expert_products_cuda.h"

namespace sluice::cuda {
namespace {

/// A block for each tile of rows and two of its expert's strips.
template <typename Strips>
__global__ void __launch_bounds__(block_threads, Strips::tiles == 1 ? 2 : 1)
    multiply_expert_strips(StripCall call, const ExpertTile* tiles, std::int64_t expert_bytes) {
  const ExpertTile tile = tiles[blockIdx.y];
  if (tile.rows == 0) return;
  const TileOfExpert of = tile_of_expert(tile, call.weight, call.gate, expert_bytes, call.output);
  call.weight = of.weight;
  call.gate = of.gate;
  call.output = of.output;
  call.x += std::int64_t{tile.first} * call.x_stride;
  call.rows = tile.rows;
  const int first_strip = static_cast<int>(blockIdx.x) * (call.output.gated ? 1 : strips_per_block);
  multiply_two_strips<Strips>(call, first_strip, 0, call.num_steps,
                              [&](std::int64_t row, std::int64_t column, float y, float gate) {
                                put_finished(call.output, row, column, y, gate);
                              });
}

struct ExpertStripKernels {
  using Kernel = void (*)(StripCall, const ExpertTile*, std::int64_t);
  template <typename Strips>
  static Kernel of() {
    return multiply_expert_strips<Strips>;
  }
  static constexpr bool has_tiles(int tiles) { return tiles == 1 || tiles == 4; }
};

}  // namespace

bool expert_strips_serve(const Context& gpu, const LinearJob& job) {
  const bool are_strips = job.format.is_plain() ? job.blocks.is_strips()  //
                                                : job.blocks.dtype == DType::bf16;
  return gpu.compute_capability >= 80 && are_strips &&
         (!job.output.gated || job.gate_format == job.format) &&
         strip_kernel<ExpertStripKernels>(job.format, 1) != nullptr;
}

void run_expert_strips(const Context& gpu, const ExpertProduct& product) {
  const LinearJob& job = product.job;
  const std::int64_t num_strips = divide_up(job.blocks.out, strip_columns);
  const StripCall call{.weight = job.weight,
                       .gate = job.gate,
                       .x = static_cast<const std::uint16_t*>(job.x),
                       .x_stride = static_cast<std::int32_t>(job.x_stride),
                       .x_aligned = is_aligned(job.x) && job.x_stride % 8 == 0,
                       .rows = 0,
                       .in = static_cast<std::int32_t>(job.blocks.in),
                       .out = job.blocks.out,
                       .num_strips = static_cast<std::int32_t>(num_strips),
                       .num_steps = static_cast<std::int32_t>(divide_up(job.blocks.in, step_depth)),
                       .steps_per_split = 0,
                       .parts = nullptr,
                       .arrived = nullptr,
                       .codes = code_strips(job.format, job.blocks.in),
                       .output = job.output};
  const std::int64_t blocks =
      job.output.gated ? num_strips : divide_up(num_strips, strips_per_block);
  launch("multiply_expert_strips",
         strip_kernel<ExpertStripKernels>(job.format, product.tile_rows / tile_rows),
         {.blocks = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(product.num_tiles)),
          .threads = dim3(block_threads)},
         gpu.stream, call, product.tiles, product.expert_bytes);
}

}  // namespace sluice::cuda
