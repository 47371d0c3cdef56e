#pragma once

#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "base/weight_format.h"
#include "codelets/cuda/device.h"
#include "codelets/cuda/linear_finish.h"
#include "codelets/cuda/linear_job.h"
#include "codelets/cuda/mma.h"
#include "codelets/cuda/neighbours.h"
#include "codelets/cuda/widen.h"

namespace sluice::cuda {

// How one warp multiplies its share of a strip's depth, of each kind of strips. start() loads what
// comes first. multiply() adds `steps` steps to a lane's sums, those from `step` on that are
// `slices` apart and before `end`, and loads what comes later. A lane's sum[tile][h][j] is what the
// tensor core leaves it of 16 rows and of a block (h, j) of eight columns, see below. Its terms are
// added in the same order for all numbers of tiles.
//
// A step is 32 deep. In it lane 4 g + p takes k 8 p .. 8 p + 7, of x from rows g and g + 8 of a
// tile, of W from columns 4 g .. 4 g + 3 of either half of the strip: all loads are 16 bytes, and
// of W whole lines. So column 4 g + j of half h is column g of the product's block (h, j), and k 8
// p + 4 s .. + 3 are its step s's k 2 p, 2 p + 1, 2 p + 8, 2 p + 9.

constexpr int block_threads = 256;
constexpr int slices = block_threads / warp_threads / strips_per_block;
constexpr int tile_rows = 16;
constexpr int line_words = static_cast<int>(strip_columns) / 4;  ///< 16 bytes each

/// Where a strip of codes has its parts: see quantized::StripLayout.
struct CodeStrips {
  std::int64_t strip_bytes;
  std::int32_t group_shift;  ///< a group of inputs is 2^so many steps; a row is one group if 30
  std::int32_t tail_bytes;   ///< scales and zero points behind a group's codes
  WeightFormat::Scales scales;
};

struct StripCall {
  const std::byte* weight;
  const std::byte* gate;   ///< null unless gated
  const std::uint16_t* x;  ///< [rows, in] bf16
  std::int32_t x_stride;
  bool x_aligned;  ///< every row starts at a multiple of 16 bytes
  std::int32_t rows;
  std::int32_t in;
  std::int64_t out;
  std::int32_t num_strips;
  std::int32_t num_steps;        ///< of depth
  std::int32_t steps_per_split;  ///< of a block
  float* parts;                  ///< [splits][1 or 2][rows][num_strips * 64]; null: blocks finish
  unsigned* arrived;  ///< by blocks of the same columns, see Context; null: finish_parts() follows
  CodeStrips codes;   ///< of a weight of codes
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
__device__ inline Words load_x(const StripCall& call, int row, int k) {
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

/// What a lane has of 16 rows of x in one step: its part s, for s 0 and 1.
struct XStep {
  MmaA part[2];

  __device__ void load(const StripCall& call, int tile, int step, int lane) {
    const int row = tile * tile_rows + lane / 4;
    const int k = step * static_cast<int>(step_depth) + 8 * (lane % 4);
    const Words upper = load_x(call, row, k);
    const Words lower = load_x(call, row + 8, k);
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      part[s] = {
          {upper.word[2 * s], lower.word[2 * s], upper.word[2 * s + 1], lower.word[2 * s + 1]}};
    }
  }
};

/// Strips of bf16. Loads are one step ahead.
template <int Tiles>
class PlainStrips {
 public:
  static constexpr int tiles = Tiles;
  static constexpr int steps = 1;

  __device__ PlainStrips(const StripCall& call, const std::byte* weight, int strip, int lane)
      : lane_(lane),
        from_(reinterpret_cast<const Words*>(weight) +
              strip * (call.num_steps * (step_depth / 2) * line_words) +
              4 * (lane % 4) * line_words + lane / 4) {}

  __device__ void start(int step, int end) {
    if (step < end) load(step);
  }

  __device__ void multiply(const StripCall& call, int step, int end, MmaD (&sum)[Tiles][2][4]) {
    Words now[2][4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) now[h][pair] = next_[h][pair];
    }
    if (step + slices < end) load(step + slices);
#pragma unroll
    for (int tile = 0; tile < Tiles; ++tile) {
      XStep x;
      x.load(call, tile, step, lane_);
#pragma unroll
      for (int s = 0; s < 2; ++s) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const MmaB of_w = {{now[h][2 * s].word[j], now[h][2 * s + 1].word[j]}};
            mma_16x8x16<DType::bf16>(sum[tile][h][j], x.part[s], of_w);
          }
        }
      }
    }
  }

 private:
  __device__ void load(int step) {
    const Words* from = from_ + step * (step_depth / 2 * line_words);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        next_[h][pair] = load_streamed(from + pair * line_words + h * (line_words / 2));
      }
    }
  }

  int lane_;
  const Words* from_;
  Words next_[2][4];  ///< [h][pair]
};

/// Scales of eight neighbouring columns as they lie in memory, of so many bytes each.
template <int Bytes>
struct ScaleBits {
  std::uint32_t word[2 * Bytes];

  __device__ void load(const std::byte* from) {
    if constexpr (Bytes == 1) {
      const auto two = *reinterpret_cast<const uint2*>(from);
      word[0] = two.x;
      word[1] = two.y;
    } else {
#pragma unroll
      for (int i = 0; i < Bytes / 2; ++i) {
        const Words four = reinterpret_cast<const Words*>(from)[i];
#pragma unroll
        for (int j = 0; j < 4; ++j) word[4 * i + j] = four.word[j];
      }
    }
  }
  __device__ void to_floats(WeightFormat::Scales type, float (&scales)[8]) const {
    if constexpr (Bytes == 1) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {  // 2^(byte - 127)
        const std::uint32_t exponent = (word[i / 4] >> (8 * (i % 4)) & 255U) << 23;
        scales[i] = __uint_as_float(exponent > 0x00400000U ? exponent : 0x00400000U);
      }
    } else if constexpr (Bytes == 4) {
#pragma unroll
      for (int i = 0; i < 8; ++i) scales[i] = __uint_as_float(word[i]);
    } else if (type == WeightFormat::Scales::bf16) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scales[2 * i] = __uint_as_float(word[i] << 16);
        scales[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000U);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const auto half = static_cast<std::uint16_t>(word[i / 2] >> (16 * (i % 2)));
        scales[i] = __half2float(__ushort_as_half(half));
      }
    }
  }
};

/// Strips of codes, whose scales have so many bytes. Codes become bf16 exactly. What a step's codes
/// and x sum up to is multiplied by the scale of its group, and added to the sum, in f32.
template <int Tiles, WeightFormat::Codes codes, int ScaleBytes, bool HasZeroPoints>
class CodedStrips {
  static constexpr bool narrow = codes == WeightFormat::Codes::int4 ||  //
                                 codes == WeightFormat::Codes::fp4;
  /// Words of a step that a lane has of a half strip: eight codes of four columns.
  static constexpr int words = narrow ? 1 : 2;
  static constexpr int step_bytes = 4 * words * line_words * static_cast<int>(sizeof(Words));
  static constexpr int half_columns = static_cast<int>(strip_columns) / 2;

  /// Half a strip in one step, as it lies in memory.
  struct Half {
    Words code_words[words];
    ScaleBits<ScaleBytes> scales;
    std::uint32_t zero_points;  ///< of columns 4 g to 4 g + 3
  };
  static constexpr int step_registers = 2 * (4 * words + 2 * ScaleBytes + (HasZeroPoints ? 1 : 0));
  /// That a thread has for more than one step: 128 in all with one tile, else 255.
  static constexpr int load_registers = Tiles == 1 ? 34 : Tiles == 2 ? 64 : 0;

 public:
  static constexpr int tiles = Tiles;
  /// Steps that multiply() takes, each `slices` behind the one before, and whose loads are under
  /// way.
  static constexpr int steps = 2 * step_registers <= load_registers ? 2 : 1;

  __device__ CodedStrips(const StripCall& call, const std::byte* weight, int strip, int lane)
      : lane_(lane),
        layout_(call.codes),
        num_steps_(call.num_steps),
        strip_(weight + strip * call.codes.strip_bytes) {}

  __device__ void start(int step, int end) {
#pragma unroll
    for (int i = 0; i < steps; ++i) {
      if (step + i * slices >= end) continue;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        load_codes(step + i * slices, h, half_[i][h]);
        load_scales(step + i * slices, h, half_[i][h]);
      }
    }
  }

  __device__ void multiply(const StripCall& call, int step, int end, MmaD (&sum)[Tiles][2][4]) {
#pragma unroll
    for (int i = 0; i < steps; ++i) {
      if (step + i * slices < end) multiply_step(call, step + i * slices, end, half_[i], sum);
    }
  }

 private:
  /// Where a step's group has its scales, from the strip's start.
  __device__ int scales_offset(int step) const {
    const int group = step >> layout_.group_shift;
    const int group_end = std::min((group + 1) << layout_.group_shift, num_steps_);
    return group_end * step_bytes + group * layout_.tail_bytes;
  }

  __device__ void load_codes(int step, int h, Half& half) const {
    const int offset = step * step_bytes + (step >> layout_.group_shift) * layout_.tail_bytes;
    const auto* from = reinterpret_cast<const Words*>(strip_ + offset) +
                       (lane_ % 4 * words * line_words + h * (line_words / 2) + lane_ / 4);
#pragma unroll
    for (int i = 0; i < words; ++i) half.code_words[i] = load_streamed(from + i * line_words);
    if constexpr (HasZeroPoints) {
      const int of_columns = 2 * half_columns * ScaleBytes + h * half_columns + 4 * (lane_ / 4);
      half.zero_points =
          *reinterpret_cast<const std::uint32_t*>(strip_ + (scales_offset(step) + of_columns));
    }
  }
  __device__ void load_scales(int step, int h, Half& half) const {
    const int of_columns = (h * half_columns + 8 * (lane_ % 4)) * ScaleBytes;
    half.scales.load(strip_ + (scales_offset(step) + of_columns));
  }

  /// Loads what is multiplied `steps` turns later as soon as there is room.
  __device__ void multiply_step(const StripCall& call, int step, int end, Half (&halves)[2],
                                MmaD (&sum)[Tiles][2][4]) const {
    constexpr bool keeps_x = Tiles <= 2;  // more would take too many registers
    XStep x[Tiles];
#pragma unroll
    for (int tile = 0; tile < Tiles; ++tile) {
      if (keeps_x) x[tile].load(call, tile, step, lane_);
    }
    const int later = step + steps * slices;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      MmaB of_w[2][4];  // [s][j]
      float scales[8];
#pragma unroll
      for (int tile = 0; tile < Tiles; ++tile) {
        if (!keeps_x) x[tile].load(call, tile, step, lane_);
        MmaD part[4] = {};
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          if (tile == 0) widen_part(halves[h], s, of_w[s]);
          if (tile == 0 && s == 1 && later < end) load_codes(later, h, halves[h]);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            mma_16x8x16<DType::bf16>(part[j], x[tile].part[s], of_w[s][j]);
          }
        }
        if (tile == 0) halves[h].scales.to_floats(layout_.scales, scales);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
          for (int v = 0; v < 4; ++v) {  // of column 8 p + 4 (v % 2) + j of the half
            float& value = sum[tile][h][j].value[v];
            value = fmaf(part[j].value[v], scales[4 * (v % 2) + j], value);
          }
        }
      }
      if (later < end) load_scales(later, h, halves[h]);
    }
  }

  /// Four codes, as widen() wants them.
  __device__ static std::uint32_t four_codes(const Half& half, int s, int j) {
    const std::uint32_t word = half.code_words[narrow ? 0 : s].word[j];
    if constexpr (codes == WeightFormat::Codes::int4) return word >> (4 * s) & 0x0f0f0f0fU;
    if constexpr (codes == WeightFormat::Codes::fp4) return s == 0 ? word << 4 : word;
    return word;
  }

  __device__ static void widen_part(const Half& half, int s, MmaB (&of_w)[4]) {
    std::uint32_t nan = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      std::uint32_t minus = 0;
      if constexpr (HasZeroPoints) {
        minus = minus_zero_point<codes>(half.zero_points, static_cast<unsigned>(j));
      }
      const std::uint32_t four = four_codes(half, s, j);
      of_w[j] = widen<codes, HasZeroPoints>(four, minus);
      if constexpr (codes == WeightFormat::Codes::fp8) nan |= nan_bits(four);
    }
    if (nan == 0) return;
#pragma unroll
    for (int j = 0; j < 4; ++j) of_w[j] = with_nan(of_w[j], four_codes(half, s, j));
  }

  int lane_;
  CodeStrips layout_;
  int num_steps_;
  const std::byte* strip_;
  Half half_[steps][2];
};

}  // namespace sluice::cuda
