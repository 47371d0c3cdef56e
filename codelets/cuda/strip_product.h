#pragma once

#include <algorithm>
#include <bit>

#include "codelets/cuda/device.h"
#include "codelets/cuda/strip_readers.h"
#include "codelets/kernels/quantized/strip.h"

namespace sluice::cuda {

/// Floats between the rows of a tile in shared memory: rows four apart share no bank.
constexpr int tile_stride = strip_columns + 4;

/// Up to 16 * Strips::tiles rows of x by two strips, over the steps of depth from `first_step` to
/// `end_step`: neighbours, or the same one of a gated pair. Four warps share a strip, each takes
/// every fourth step, as `Strips` multiplies it. `put(row, column, y, gate)` gets each element of
/// the call once. The whole block; waits for the kernel before this one.
template <typename Strips, typename Put>
__device__ void multiply_two_strips(const StripCall& call, int first_strip, int first_step,
                                    int end_step, const Put& put) {
  constexpr int num_tiles = Strips::tiles;
  __shared__ float4 tiles[strips_per_block][slices][tile_rows][tile_stride / 4];
  const int warp = static_cast<int>(threadIdx.x) / warp_threads;
  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
  const int group = lane / 4;
  const int place = lane % 4;
  const int side = warp / slices;
  const int slice = warp % slices;
  const bool gated = call.output.gated;
  const int strip = gated ? first_strip : first_strip + side;
  if (strip >= call.num_strips) end_step = 0;  // an odd number of strips
  Strips strips(call, gated && side == 1 ? call.gate : call.weight, strip, lane);

  MmaD sum[num_tiles][2][4] = {};
  int step = first_step + slice;
  strips.start(step, end_step);  // while the kernel before this one ends
  wait_for_last();
  for (; step < end_step; step += Strips::steps * slices) {
    strips.multiply(call, step, end_step, sum);
  }

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
      put(to_row, to_column, add_slices(of_side), gated ? add_slices(1) : 0.0F);
    }
  }
}

template <typename Kernels, WeightFormat::Codes codes, int ScaleBytes, bool HasZeroPoints>
typename Kernels::Kernel coded_strip_kernel(std::int64_t tiles) {
  if constexpr (Kernels::has_tiles(1)) {
    if (tiles == 1) return Kernels::template of<CodedStrips<1, codes, ScaleBytes, HasZeroPoints>>();
  }
  if constexpr (Kernels::has_tiles(2)) {
    if (tiles == 2) return Kernels::template of<CodedStrips<2, codes, ScaleBytes, HasZeroPoints>>();
  }
  if constexpr (Kernels::has_tiles(3)) {
    if (tiles == 3) return Kernels::template of<CodedStrips<3, codes, ScaleBytes, HasZeroPoints>>();
  }
  if constexpr (Kernels::has_tiles(4)) {
    if (tiles == 4) return Kernels::template of<CodedStrips<4, codes, ScaleBytes, HasZeroPoints>>();
  }
  return nullptr;
}

/// For strips of codes with scales of 2 or of 4 bytes; null for others.
template <typename Kernels, WeightFormat::Codes codes, bool HasZeroPoints>
typename Kernels::Kernel coded_strip_kernel(std::int64_t tiles, std::size_t scale_bytes) {
  if (scale_bytes == 2) return coded_strip_kernel<Kernels, codes, 2, HasZeroPoints>(tiles);
  if (scale_bytes == 4) return coded_strip_kernel<Kernels, codes, 4, HasZeroPoints>(tiles);
  return nullptr;
}

template <typename Kernels>
typename Kernels::Kernel plain_strip_kernel(std::int64_t tiles) {
  if constexpr (Kernels::has_tiles(1)) {
    if (tiles == 1) return Kernels::template of<PlainStrips<1>>();
  }
  if constexpr (Kernels::has_tiles(2)) {
    if (tiles == 2) return Kernels::template of<PlainStrips<2>>();
  }
  if constexpr (Kernels::has_tiles(3)) {
    if (tiles == 3) return Kernels::template of<PlainStrips<3>>();
  }
  if constexpr (Kernels::has_tiles(4)) {
    if (tiles == 4) return Kernels::template of<PlainStrips<4>>();
  }
  return nullptr;
}

/// Kernels::of<Strips> of those strips that are a format's, for so many tiles of rows, as far as
/// Kernels::has_tiles(); null where nothing reads such strips.
template <typename Kernels>
typename Kernels::Kernel strip_kernel(const WeightFormat& format, std::int64_t tiles) {
  using Codes = WeightFormat::Codes;
  const std::size_t scale_bytes = size_bytes(format.scales);
  switch (format.codes) {
    case Codes::bf16:
      return plain_strip_kernel<Kernels>(tiles);
    case Codes::int4:
      return format.has_zero_points
                 ? coded_strip_kernel<Kernels, Codes::int4, true>(tiles, scale_bytes)
                 : coded_strip_kernel<Kernels, Codes::int4, false>(tiles, scale_bytes);
    case Codes::int8:
      return format.has_zero_points
                 ? coded_strip_kernel<Kernels, Codes::int8, true>(tiles, scale_bytes)
                 : coded_strip_kernel<Kernels, Codes::int8, false>(tiles, scale_bytes);
    case Codes::fp8:
      return coded_strip_kernel<Kernels, Codes::fp8, false>(tiles, scale_bytes);
    case Codes::fp4:
      return scale_bytes == 1 ? coded_strip_kernel<Kernels, Codes::fp4, 1, false>(tiles) : nullptr;
    default:
      return nullptr;
  }
}

/// Where strips of a format, `in` deep, have their parts; nothing of a plain one.
inline CodeStrips code_strips(const WeightFormat& format, std::int64_t in) {
  if (format.is_plain()) return {};
  const quantized::StripLayout layout(format, in);
  const auto steps_of_group = static_cast<unsigned>(layout.group() / step_depth);
  const bool one_group = layout.num_groups() == 1;
  return {.strip_bytes = layout.size_bytes(),
          .group_shift = one_group ? 30 : std::countr_zero(steps_of_group),
          .tail_bytes =
              static_cast<std::int32_t>(layout.group_bytes() - layout.code_bytes(layout.group())),
          .scales = format.scales};
}

}  // namespace sluice::cuda
