#include "codelets/cuda/device.h"
#include "codelets/cuda/linear_finish.h"
#include "codelets/experts/expert_products_cuda.h"
#include "codelets/kernels/quantized/strip.h"

namespace sluice::cuda {
namespace {

constexpr int tile_threads = 256;
constexpr int tile_columns = static_cast<int>(strip_columns);
constexpr int tile_rows = static_cast<int>(ExpertsGpuMemory::fewest_tile_rows);
constexpr int tile_depth = 32;
constexpr int row_groups = tile_threads / tile_columns;
constexpr int rows_of_thread = tile_rows / row_groups;

/// Reads a packed weight value by value, as unpacking it does.
struct WeightReader {
  PackedBlocks blocks;  ///< of a plain weight; of codes the sizes alone
  WeightFormat format;
  quantized::StripLayout layout;  ///< of codes

  WeightReader(const PackedBlocks& its_blocks, const WeightFormat& its_format)
      : blocks(its_blocks),
        format(its_format),
        layout(
            its_format.is_plain() ? WeightFormat{.codes = WeightFormat::Codes::int8} : its_format,
            its_blocks.in) {}

  /// W[column, k], zero beyond the ends.
  __device__ float at(const std::byte* weight, std::int64_t k, std::int64_t column) const {
    if (k >= blocks.in || column >= blocks.out) return 0;
    if (!format.is_plain()) return value_of_code(weight, k, column);
    const std::int64_t at = blocks.offset(k, column);
    if (blocks.dtype == DType::f32) return reinterpret_cast<const float*>(weight)[at];
    return to_float(reinterpret_cast<const BFloat16*>(weight)[at]);
  }

 private:
  __device__ float value_of_code(const std::byte* weight, std::int64_t k,
                                 std::int64_t column) const {
    const std::byte* strip = weight + column / strip_columns * layout.size_bytes();
    column %= strip_columns;
    const std::int64_t group = k / layout.group();
    const std::int64_t eight = k / 8 * 8 - group * layout.group();
    const std::byte* codes = strip + group * layout.group_bytes() + layout.code_bytes(eight);
    const std::int64_t i = k % 8;
    // Inputs 0 to 3 are low nibbles, or a word of bytes; 4 to 7 high ones, or the next word.
    const bool narrow = format.bits_per_code() == 4;
    const std::int64_t word = narrow ? 0 : i / 4 * strip_columns * 4;
    const auto byte = static_cast<std::uint8_t>(codes[word + column * 4 + i % 4]);
    const auto code = static_cast<std::uint8_t>(narrow ? (byte >> (i / 4 * 4)) & 15 : byte);
    const auto scale_size = static_cast<std::int64_t>(sluice::size_bytes(format.scales));
    const std::byte* scale_at = strip + layout.scales_offset(group) + column * scale_size;
    std::uint32_t bits = 0;
    for (std::int64_t b = 0; b < scale_size; ++b)
      bits |= static_cast<std::uint32_t>(scale_at[b]) << (8 * b);
    const std::int32_t zero_point =
        format.has_zero_points
            ? static_cast<std::int32_t>(strip[layout.zero_points_offset(group) + column])
            : default_zero_point(format.codes);
    return quantized::dequantize(format, code, zero_point, scale_to_float(format.scales, bits));
  }
};

struct TileCall {
  WeightReader up;
  WeightReader gate_reader;  ///< of a gated pair
  const std::byte* weight;
  const std::byte* gate;  ///< null unless gated
  const void* x;
  DType x_dtype;
  std::int64_t x_stride;
  const ExpertTile* tiles;
  std::int64_t expert_bytes;
  LinearOutput output;

  __device__ float x_at(std::int64_t entry, std::int64_t k) const {
    if (k >= up.blocks.in) return 0;
    const std::int64_t at = entry * x_stride + k;
    return x_dtype == DType::f32 ? static_cast<const float*>(x)[at]
                                 : to_float(static_cast<const BFloat16*>(x)[at]);
  }
};

using WeightTile = float[tile_depth][tile_columns];

__device__ void load_tile(const WeightReader& reader, const std::byte* weight, std::int64_t first_k,
                          std::int64_t first_column, WeightTile& tile) {
  for (int i = static_cast<int>(threadIdx.x); i < tile_depth * tile_columns; i += tile_threads) {
    const int k = i / tile_columns;
    const int column = i % tile_columns;
    tile[k][column] = reader.at(weight, first_k + k, first_column + column);
  }
}

/// A block for each tile of rows and 64 columns; a thread has one of these and four rows.
__global__ void __launch_bounds__(tile_threads) multiply_expert_tiles(TileCall call) {
  __shared__ WeightTile of_w;
  __shared__ WeightTile of_gate;
  __shared__ float of_x[tile_rows][tile_depth];
  const ExpertTile tile = call.tiles[blockIdx.y];
  if (tile.rows == 0) return;
  const TileOfExpert of =
      tile_of_expert(tile, call.weight, call.gate, call.expert_bytes, call.output);
  const std::int64_t first_column = std::int64_t{blockIdx.x} * tile_columns;
  const int column = static_cast<int>(threadIdx.x) % tile_columns;
  const int first_row = static_cast<int>(threadIdx.x) / tile_columns * rows_of_thread;
  float y[rows_of_thread] = {};
  float gate[rows_of_thread] = {};
  for (std::int64_t k = 0; k < call.up.blocks.in; k += tile_depth) {
    load_tile(call.up, of.weight, k, first_column, of_w);
    if (of.gate != nullptr) load_tile(call.gate_reader, of.gate, k, first_column, of_gate);
    for (int i = static_cast<int>(threadIdx.x); i < tile.rows * tile_depth; i += tile_threads)
      of_x[i / tile_depth][i % tile_depth] =
          call.x_at(tile.first + i / tile_depth, k + i % tile_depth);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < rows_of_thread; ++r) {
      if (first_row + r >= tile.rows) continue;
      for (int d = 0; d < tile_depth; ++d) {
        y[r] += of_x[first_row + r][d] * of_w[d][column];
        if (of.gate != nullptr) gate[r] += of_x[first_row + r][d] * of_gate[d][column];
      }
    }
    __syncthreads();  // before the next tiles
  }
  if (first_column + column >= call.up.blocks.out) return;
#pragma unroll
  for (int r = 0; r < rows_of_thread; ++r) {
    if (first_row + r < tile.rows)
      put_finished(of.output, first_row + r, first_column + column, y[r], gate[r]);
  }
}

}  // namespace

void run_expert_tiles(const Context& gpu, const ExpertProduct& product) {
  const LinearJob& job = product.job;
  const WeightReader up(job.blocks, job.format);
  const TileCall call{
      .up = up,
      .gate_reader = job.output.gated ? WeightReader(job.gate_blocks, job.gate_format) : up,
      .weight = job.weight,
      .gate = job.gate,
      .x = job.x,
      .x_dtype = job.blocks.dtype,
      .x_stride = job.x_stride,
      .tiles = product.tiles,
      .expert_bytes = product.expert_bytes,
      .output = job.output};
  launch("multiply_expert_tiles", multiply_expert_tiles,
         {.blocks = dim3(static_cast<unsigned>(divide_up(job.blocks.out, tile_columns)),
                         static_cast<unsigned>(product.num_tiles)),
          .threads = dim3(tile_threads)},
         gpu.stream, call);
}

}  // namespace sluice::cuda
